#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention on the CPU: kvfolio beside ONNX Runtime and OpenVINO, the same cases in one run.

Each result is checked against float64 before it is timed; what is wrong is not timed. All that is
compared takes turns within each round. scripts/peers makes what this needs; README.md says what is
compared and what is unfair in it."""

import argparse
import importlib
import itertools
import json
import math
import os
import pathlib
import platform
import statistics
import sys
import time

# numpy's own threads would still look for work when the first step is timed.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import cases  # noqa: E402

MODULES = {"kvfolio": "peer_kvfolio", "onnxruntime": "peer_ort", "openvino": "peer_openvino"}
ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build/release/bench/peers/libkvfolio_bench_peer.so"
PAUSE = 0.003  # seconds before each time, so that threads that still look for work go to sleep


def thread_counts(text):
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1 or max(counts) > 1024 or len(set(counts)) != len(counts):
        raise argparse.ArgumentTypeError(f"{text}; allowed: numbers from 1 to 1024, as in 1,2")
    return counts


def at_least_one(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}; allowed: 1 or more")
    return int(text)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--peers", type=cases.peer_names(MODULES), default="onnxruntime,openvino",
                        help="none, onnxruntime, openvino or both (the default)")
    parser.add_argument("--threads", type=thread_counts,
                        default="1,2" if (os.cpu_count() or 1) > 1 else "1")
    parser.add_argument("--rounds", type=at_least_one, help="9 unless --quick: then 3")
    parser.add_argument("--filter", default="",
                        help="only cases whose name contains it, as decode.8x16384.g8.bf16")
    parser.add_argument("--quick", action="store_true",
                        help="small cases: shows that all runs and is right, no figure counts")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true")
    form.add_argument("--json", action="store_true", help="an object for each case and peer")
    parser.add_argument("--library", default=LIBRARY, help="libkvfolio_bench_peer.so")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 9)
    options.cases = [case for case in cases.all_cases(options.quick)
                     if options.filter in case.name]
    if not options.cases:
        names = "\n  ".join(case.name for case in cases.all_cases(options.quick))
        parser.error(f"--filter {options.filter}: no case has it in its name; there are\n  {names}")
    return options


def load_peers(options):
    """name -> (its module, its peer), kvfolio first."""
    loaded = {}
    for name in ("kvfolio", *options.peers):
        module = importlib.import_module(MODULES[name])
        loaded[name] = module, module.Peer(*[options.library] if name == "kvfolio" else [])
    return loaded


def machine():
    model = platform.processor()
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")),
                     model)
    except OSError:
        pass
    return {"model": model, "cpus": os.cpu_count(), "l3_mib": cases.l3_bytes() >> 20,
            "load": round(os.getloadavg()[0], 2)}


class Contender:
    """A peer with its cache of one case. status is ok, wrong, or impossible."""

    def __init__(self, name, peer, case, reference):
        self.name = name
        self.case = case
        self.reference = reference
        allowed = cases.TOLERANCE if name == "kvfolio" else cases.PEER_TOLERANCE
        self.tolerance = allowed[case.dtype]
        self.status, self.note, self.error = "ok", "", None
        self.steps = {}  # by threads
        self.cache = None
        self.guard(lambda: self.open(peer))

    def open(self, peer):
        self.cache = peer.open(self.case)
        self.note = self.cache.note()

    def guard(self, work):
        try:
            work()
        except cases.Impossible as error:
            self.status, self.note = "impossible", str(error)
        except Exception as error:
            if self.name == "kvfolio":
                raise
            self.status = "impossible"
            self.note = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

    def judge(self):
        """Of what it computed last."""
        error = self.reference.error(self.cache.out())
        self.error = max(self.error or 0.0, error)
        if not error <= self.tolerance:
            self.status = "wrong"
            self.note = f"differs from float64 by {error:.2g}, allowed: {self.tolerance:.2g}"

    def prepare(self, threads):
        if self.status == "ok":
            self.guard(lambda: self.check(threads))

    def check(self, threads):
        step = self.cache.prepare(threads)
        for _ in range(2):  # the second one appends what is there already
            self.cache.poison()
            step()
            self.judge()
        self.steps[threads] = step

    def close(self):
        self.steps.clear()
        if self.cache:
            self.cache.close()
        self.cache = None


def time_rounds(pieces, rounds, at_least):
    """Seconds of each piece by round; every second round goes backwards. Short ones repeat until
    they take `at_least` seconds."""
    repeats = []
    for piece in pieces:
        begin = time.perf_counter()
        piece()
        repeats.append(max(1, round(at_least / max(time.perf_counter() - begin, 1e-6))))
    seconds = [[] for _ in pieces]
    for number in range(rounds):
        order = range(len(pieces)) if number % 2 == 0 else range(len(pieces) - 1, -1, -1)
        for i in order:
            time.sleep(PAUSE)
            begin = time.perf_counter()
            for _ in range(repeats[i]):
                pieces[i]()
            seconds[i].append((time.perf_counter() - begin) / repeats[i])
    return seconds


def rows_of(case, options, loaded):
    """A row for each number of threads and peer."""
    reference = cases.Reference(case)
    contenders = [Contender(name, peer, case, reference) for name, (_, peer) in loaded.items()]
    ours = contenders[0]
    rows = []
    for threads in options.threads:
        for contender in contenders:
            contender.prepare(threads)
        timed = [x for x in contenders if x.status == "ok"]
        reads = ours.cache.reads(threads) if case.family == "decode" else []
        seconds = time_rounds(reads + [x.steps[threads] for x in timed], options.rounds,
                              0.002 if options.quick else 0.05)
        for contender in timed:
            contender.judge()  # what came out at the end is right too
        by_name = {x.name: s for x, s in zip(timed, seconds[len(reads):]) if x.status == "ok"}
        read = min(seconds[:len(reads)], key=statistics.median, default=None)
        rows += [row_of(case, threads, x, by_name, read, ours.cache.bytes, options)
                 for x in contenders]
    for contender in contenders:
        contender.close()
    return rows


def spread_of(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def row_of(case, threads, contender, by_name, read, read_bytes, options):
    row = {"case": case.name, "family": case.family, "dtype": case.dtype, "q_per_kv": case.q_per_kv,
           "kv_heads": case.kv_heads, "sequences": case.sequences, "kv_len": case.kv_len,
           "queries": case.queries, "threads": threads, "peer": contender.name,
           "status": contender.status,
           "error": contender.error if math.isfinite(contender.error or 0) else None,
           "tolerance": contender.tolerance, "rounds": options.rounds,
           "unit": "M token-heads/s" if case.family == "decode" else "Gop/s",
           "seconds": None, "value": None, "gb_s": None, "read_gb_s": None, "of_read": None,
           "ours_over": None, "note": contender.note}
    if read:
        row["read_gb_s"] = read_bytes / statistics.median(read) * 1e-9
    mine, ours = by_name.get(contender.name), by_name.get("kvfolio")
    if mine:
        row["seconds"] = spread_of(mine)
        row["value"] = case.token_heads / row["seconds"]["median"] * 1e-6 \
            if case.family == "decode" else case.operations / row["seconds"]["median"] * 1e-9
        if read:
            row["gb_s"] = case.cache_bytes / row["seconds"]["median"] * 1e-9
            row["of_read"] = statistics.median([a / b for a, b in zip(read, mine)])
        if ours and contender.name != "kvfolio":
            row["ours_over"] = spread_of([a / b for a, b in zip(mine, ours)])
    return row


def cell(row):
    if row["status"] != "ok":
        return {"wrong": "wrong", "impossible": "-"}[row["status"]]
    value = f"{row['value']:.3g}"
    return value if row["of_read"] is None else f"{value} ({row['of_read']:.2f})"


def ratio_cell(row):
    ratio = row["ours_over"]
    return "-" if ratio is None else \
        f"{ratio['median']:.2f} ({ratio['min']:.2f} .. {ratio['max']:.2f})"


def table_of(rows, names):
    """Lines of cells, the head first. Rows of one case and number of threads follow each other."""
    peers = [name for name in names if name != "kvfolio"]
    lines = [["case", "threads", "unit", "read GB/s", *names, *[f"over {name}" for name in peers]]]
    for _, group in itertools.groupby(rows, key=lambda row: (row["case"], row["threads"])):
        by_name = {row["peer"]: row for row in group}
        first = by_name["kvfolio"]
        read = "" if first["read_gb_s"] is None else f"{first['read_gb_s']:.1f}"
        lines.append([first["case"], str(first["threads"]), first["unit"], read,
                      *[cell(by_name[name]) for name in names],
                      *[ratio_cell(by_name[name]) for name in peers]])
    return lines


def print_table(lines, markdown):
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for number, line in enumerate(lines):
        padded = [text.ljust(width) for text, width in zip(line, widths)]
        print("| " + " | ".join(padded) + " |" if markdown else "  ".join(padded).rstrip())
        if markdown and number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def explanation(rows, loaded, options, about):
    """What the table does not say by itself."""
    yield (f"{about['model']}, {about['cpus']} cpus, {about['l3_mib']} MiB of third-level cache, "
           f"load {about['load']} before; median of {options.rounds} alternating rounds"
           + (" of SMALL cases: no figure counts" if options.quick else ""))
    for name, (module, peer) in loaded.items():
        how = {}  # note -> the types of which it is said
        for row in rows:
            if (row["peer"], row["status"]) == (name, "ok"):
                how.setdefault(row["note"], {})[row["dtype"]] = None
        yield f"{name} {peer.version()}: {module.NOTE}" + "".join(
            f"; {note} ({', '.join(dtypes)})" for note, dtypes in how.items())
    yield ("A step appends the new tokens and attends. In brackets: of reading all of kvfolio's "
           "blocks in its best order. over: how many times as fast kvfolio is, median (min .. max) "
           "of the rounds' ratios.")
    seen = dict.fromkeys((row["peer"], row["dtype"], row["status"], row["note"]) for row in rows
                         if row["status"] != "ok")
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        errors = []
        for name in loaded:
            known = [row["error"] for row in rows if row["error"] is not None
                     and (row["peer"], row["dtype"]) == (name, dtype)]
            allowed = (cases.TOLERANCE if name == "kvfolio" else cases.PEER_TOLERANCE)[dtype]
            errors += [f"{name} {max(known):.1e} of {allowed:.1e}"] if known else []
        yield (f"{dtype}: largest relative error of a row against float64, of what is allowed: "
               f"{', '.join(errors)}")
    for peer, dtype, status, note in seen:
        yield f"{peer}, {dtype}: {'no result' if status == 'impossible' else status}: {note}"


def main(arguments=None):
    options = parse(arguments)
    try:
        loaded = load_peers(options)
    except cases.Missing as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    about = machine()
    if options.json:
        versions = {name: peer.version() for name, (_, peer) in loaded.items()}
        print(json.dumps({"machine": about, "versions": versions}), flush=True)
    rows = []
    for case in options.cases:
        if not options.json:
            print(f"{case.name} ...", file=sys.stderr, flush=True)
        made = rows_of(case, options, loaded)
        rows += made
        if options.json:
            print("\n".join(json.dumps(row) for row in made), flush=True)
    if not options.json:
        print_table(table_of(rows, list(loaded)), options.markdown)
        print()
        for line in explanation(rows, loaded, options, about):
            print(f"- {line}" if options.markdown else line)
    wrong = [row for row in rows if row["peer"] == "kvfolio" and row["status"] == "wrong"]
    for row in wrong:
        print(f"peers: kvfolio, {row['case']}, {row['threads']} threads: {row['note']}",
              file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
