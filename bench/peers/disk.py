#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records on the same disk by kvfolio's disk tier, vLLM's file tier and LMCache's local disk.

All take turns within each round, and every byte that is loaded is compared. Then one byte of each
stored record is flipped: who notices? scripts/peers-disk makes what this needs; README.md says what
is measured and what is unfair in it.
"""

import argparse
import ctypes
import importlib
import json
import mmap
import os
import pathlib
import statistics
import sys
import tempfile
import time

import cases
import numpy as np
import peers

# name -> its module, and what its Peer takes. kvfolio's takes the library.
CONTENDERS = {"kvfolio": ("disk_kvfolio", ()), "vllm": ("disk_vllm", ()),
              "lmcache": ("disk_lmcache", (False,)), "lmcache.direct": ("disk_lmcache", (True,))}
LIBRARY = peers.ROOT / "build/release/bench/peers/libkvfolio_bench_peer_disk.so"
FLIPPED = 16  # records
FIGURES = {
    "store": "until it says that all are stored",
    "store+sync": "and until all of it is on the disk: syncfs() behind it",
    "load": "in random order, what the page cache has of it comes from there",
    "load cold": "again, the page cache of its files dropped before",
}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--peers", type=cases.peer_names(CONTENDERS),
                        default=[name for name in CONTENDERS if name != "kvfolio"],
                        help="none, or some of vllm,lmcache,lmcache.direct (default: all)")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(os.environ.get("TMPDIR", "/tmp")),
                        help="on the disk that is measured; default: $TMPDIR, or /tmp")
    parser.add_argument("--rounds", type=peers.at_least_one, help="9 unless --quick: then 2")
    parser.add_argument("--quick", action="store_true",
                        help="few records: shows that all runs and is right, no figure counts")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true")
    form.add_argument("--json", action="store_true",
                      help="an object for each size, figure and contender, then for each flip")
    parser.add_argument("--library", default=LIBRARY, help="libkvfolio_bench_peer_disk.so")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"--folder {options.folder}: there is no such folder")
    options.rounds = options.rounds or (2 if options.quick else 9)
    options.bytes_of_all = (8 if options.quick else 256) << 20
    return options


def load_peers(options):
    """name -> (its module, its peer), kvfolio first."""
    loaded = {}
    for name in ("kvfolio", *options.peers):
        module, arguments = CONTENDERS[name]
        module = importlib.import_module(module)
        loaded[name] = module, module.Peer(*([options.library] if name == "kvfolio" else arguments))
    return loaded


def sync(folder):
    """Everything that was written to this file system is on the disk."""
    file = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(file) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", str(folder))
    finally:
        os.close(file)


def files_in(folder):
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]


def drop_page_cache(folder):
    """Of the files in the folder. What is not on the disk yet would stay: sync() first."""
    for path in files_in(folder):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


class Contender:
    """A peer with its folder and records of one size. Times are seconds by figure and round."""

    def __init__(self, name, peer, folder, record_bytes, count):
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.disk = peer.open(self.folder, record_bytes, count)
        self.note = self.disk.note()
        random = np.random.Generator(np.random.Philox(key=[count, record_bytes]))
        self.expected = random.integers(0, 256, (count, record_bytes), np.uint8)
        self.order = [int(i) for i in random.permutation(count)]
        self.seconds = {figure: [] for figure in FIGURES}
        self.first = 0  # name of the first record; each round has new names
        self.wrong = 0  # records that came back as others
        self.failed = ""

    def store(self):
        """Both times of a store under new names, and other bytes than before."""
        self.first += len(self.expected)
        for i, row in enumerate(self.expected):
            row[:8].view(np.uint64)[0] = self.first + i
            self.disk.payloads[i][:] = row
        sync(self.folder)
        time.sleep(peers.PAUSE)
        begin = time.perf_counter()
        self.disk.store(self.first)
        stored = time.perf_counter()
        sync(self.folder)
        return stored - begin, time.perf_counter() - begin

    def load(self):
        self.disk.clear()
        time.sleep(peers.PAUSE)
        begin = time.perf_counter()
        self.disk.load(self.first, self.order)
        seconds = time.perf_counter() - begin
        for i, row in enumerate(self.expected):
            got = self.disk.loaded(i)
            self.wrong += got is None or not np.array_equal(got, row)
        return seconds

    def guard(self, work):
        """The result of a step of its own. A peer that fails is left out, kvfolio is not."""
        try:
            return work()
        except Exception as error:
            if self.name == "kvfolio":
                raise
            self.failed = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            print(f"peers-disk: {self.name} is left out: {self.failed}", file=sys.stderr)
            return None

    def round(self):
        stored, on_disk = self.store()
        as_it_is = self.load()
        drop_page_cache(self.folder)
        for figure, seconds in zip(FIGURES, (stored, on_disk, as_it_is, self.load())):
            self.seconds[figure].append(seconds)
        self.disk.forget(self.first)

    def flip(self):
        """Of each record that is stored one byte is flipped on the disk; then they are loaded, and
        once more. What became of them, by how often."""
        self.store()
        for i, row in enumerate(self.expected):
            flip_byte(self.folder, row.tobytes(), (7919 * (i + 1)) % len(row))
        sync(self.folder)
        drop_page_cache(self.folder)
        return [self.fate(), self.fate()]

    def fate(self):
        self.disk.clear()
        self.disk.load(self.first, self.order)
        fates = {}
        for i, row in enumerate(self.expected):
            got = self.disk.loaded(i)
            fate = f"not handed over: {self.disk.says(i)}"
            if got is not None:
                differ = int((got != row).sum())
                fate = "wrong bytes handed over as right" if differ else "read right: not flipped"
            fates[fate] = fates.get(fate, 0) + 1
        return fates


def flip_byte(folder, payload, at):
    """Finds a record by its bytes, wherever its file has it."""
    for path in files_in(folder):
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as whole:
            begin = whole.find(payload[:4096])
            if begin >= 0:
                whole[begin + at] ^= 0x10
                whole.flush()
                return
    raise RuntimeError(f"{folder}: a record that was stored is in no file")


def contenders_of(loaded, folder, record_bytes, count):
    return [Contender(name, peer, folder, record_bytes, count)
            for name, (_, peer) in loaded.items()]


def measure(loaded, folder, record_bytes, options):
    """A row for each figure and contender."""
    count = options.bytes_of_all // record_bytes
    contenders = contenders_of(loaded, folder, record_bytes, count)
    for one in contenders:  # what is made at the first use is not timed
        one.guard(one.round)
        one.seconds = {figure: [] for figure in FIGURES}
    for number in range(options.rounds):
        for one in contenders if number % 2 == 0 else reversed(contenders):
            if not one.failed:
                one.guard(one.round)
    for one in contenders:
        one.disk.close()
    ours = contenders[0]
    return [row_of(figure, one, ours, record_bytes, count, options.rounds)
            for figure in FIGURES for one in contenders if not one.failed]


def row_of(figure, one, ours, record_bytes, count, rounds):
    gigabytes = [record_bytes * count / seconds * 1e-9 for seconds in one.seconds[figure]]
    row = {"figure": figure, "record_kib": record_bytes >> 10, "records": count, "peer": one.name,
           "rounds": rounds, "unit": "GB/s", "gb_s": peers.spread_of(gigabytes),
           "wrong": one.wrong, "ours_over": None, "note": one.note}
    if one is not ours:
        row["ours_over"] = peers.spread_of(
            [a / b for a, b in zip(one.seconds[figure], ours.seconds[figure])])
    return row


def flips(loaded, folder, record_bytes):
    rows = []
    for one in contenders_of(loaded, folder, record_bytes, FLIPPED):
        fates = one.guard(one.flip)
        one.disk.close()
        if fates is None:
            continue
        first, second = fates
        rows.append({"figure": "flipped byte", "record_kib": record_bytes >> 10,
                     "records": FLIPPED, "peer": one.name, "noticed": sum(
                         n for fate, n in first.items() if fate.startswith("not handed over")),
                     "loaded": first, "loaded_again": second})
    return rows


def cell(row):
    spread = row["gb_s"]
    return f"wrong: {row['wrong']} records" if row["wrong"] else \
        f"{spread['median']:.2f} ({spread['min']:.2f} .. {spread['max']:.2f})"


def ratio_cell(row):
    ratio = row["ours_over"]
    return "" if ratio is None else \
        f"{ratio['median']:.2f} ({ratio['min']:.2f} .. {ratio['max']:.2f})"


def print_tables(rows, flipped, markdown):
    lines = [["figure", "KiB", "contender", "GB/s", "kvfolio over it"]]
    lines += [[row["figure"], str(row["record_kib"]), row["peer"], cell(row), ratio_cell(row)]
              for row in rows]
    peers.print_table(lines, markdown)
    print()
    lines = [["one byte flipped in each", "KiB", "loaded", "loaded again"]]
    said = [[", ".join(f"{n} {fate}" for fate, n in row[which].items())
             for which in ("loaded", "loaded_again")] for row in flipped]
    lines += [[row["peer"], str(row["record_kib"]), *both] for row, both in zip(flipped, said)]
    peers.print_table(lines, markdown)


def explanation(rows, loaded, options, about):
    yield (f"{about['model']}, {about['cpus']} cpus, load {about['load']} before, "
           f"{options.folder}; median of {options.rounds} alternating rounds of "
           f"{options.bytes_of_all >> 20} MiB" +
           (": FEW records, no figure counts" if options.quick else ""))
    for figure, says in FIGURES.items():
        yield f"{figure}: {says}"
    for name, (module, peer) in loaded.items():
        note = next((row["note"] for row in rows if row["peer"] == name), "left out")
        yield f"{name} {peer.version()}: {module.NOTE}; {note}"
    yield "kvfolio over it: how many times as fast kvfolio is, median (min .. max) of the rounds' ratios"


def main(arguments=None):
    options = parse(arguments)
    try:
        loaded = load_peers(options)
    except cases.Missing as error:
        print(f"peers-disk: {error}", file=sys.stderr)
        return 2
    about = peers.machine()
    if options.json:
        versions = {name: peer.version() for name, (_, peer) in loaded.items()}
        print(json.dumps({"machine": about, "versions": versions}), flush=True)
    rows, flipped = [], []
    for record_bytes in (256 << 10, 1 << 20):
        if not options.json:
            print(f"{record_bytes >> 10} KiB ...", file=sys.stderr, flush=True)
        for work, into in ((measure, rows), (flips, flipped)):
            with tempfile.TemporaryDirectory(prefix="kvfolio-peers-", dir=options.folder) as folder:
                more = (options,) if work is measure else ()
                into += work(loaded, pathlib.Path(folder), record_bytes, *more)
    if options.json:
        print("\n".join(json.dumps(row) for row in rows + flipped))
    else:
        print_tables(rows, flipped, options.markdown)
        print()
        for line in explanation(rows, loaded, options, about):
            print(f"- {line}" if options.markdown else line)
    wrong = [row for row in rows if row["peer"] == "kvfolio" and row["wrong"]]
    unnoticed = [row for row in flipped if row["peer"] == "kvfolio" and row["noticed"] < FLIPPED]
    for row in wrong:
        print(f"peers-disk: kvfolio: {row['wrong']} records of {row['record_kib']} KiB came back "
              "wrong or not at all", file=sys.stderr)
    for row in unnoticed:
        print(f"peers-disk: kvfolio noticed {row['noticed']} of {FLIPPED} flipped bytes",
              file=sys.stderr)
    return 1 if wrong or unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
