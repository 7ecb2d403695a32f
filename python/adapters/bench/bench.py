#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/adapters bench: each adapter beside the tiers of its host, in one run, on one disk and one Redis.

All sides of a host take turns within each round, every second round backwards. The first round, and each after it, is
compared byte by byte, not timed; a side that hands over other bytes is named, and if it is ours the exit code is 1.
docs/adapters.md says what is measured, and what is unfair in it."""

import argparse
import importlib
import json
import logging
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
for folder in (HERE, ROOT / "bench/peers", ROOT / "python/tests", *sorted((ROOT / "python/adapters").glob("kvfolio_*"))):
    sys.path.insert(0, str(folder))

import disk  # noqa: E402
import peers  # noqa: E402

HOSTS = ("vllm", "lmcache", "sglang")
SIZES = {"64k": 64 << 10, "1m": 1 << 20, "4m": 4 << 20}
FIGURES = {"disk": ("store", "store+sync", "load", "load cold"), "redis": ("store", "load")}


def parse(arguments):
    parser = argparse.ArgumentParser(prog="scripts/adapters bench", description=__doc__.split("\n", maxsplit=1)[0])

    def some_of(known):
        def parsed(text):
            names = text.split(",")
            if set(names) - set(known):
                raise argparse.ArgumentTypeError(f"{text}; allowed: some of {','.join(known)}")
            return names
        return parsed

    parser.add_argument("--hosts", type=some_of(HOSTS), default=list(HOSTS))
    parser.add_argument("--sizes", type=some_of(SIZES), default=list(SIZES))
    parser.add_argument("--on", type=some_of(("disk", "redis")), default=["disk", "redis"])
    parser.add_argument("--sides", default="", help="only these beside ours, as fs,resp")
    parser.add_argument("--rounds", type=peers.at_least_one, help="7 unless --quick: then 2")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(os.environ.get("TMPDIR", "/tmp")),
                        help="on the disk that is measured; default: $TMPDIR, or /tmp")
    parser.add_argument("--quick", action="store_true", help="few objects: shows that all runs, no figure counts")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="an object for each figure and side")
    form.add_argument("--markdown", action="store_true")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"--folder {options.folder}: there is no such folder")
    options.rounds = options.rounds or (2 if options.quick else 7)
    return options


def bytes_of_all(record_bytes, quick):
    """Of a round: enough objects of each size, and not too many of the small ones."""
    if quick:
        return max(8 << 20, 2 * record_bytes)
    return 64 << 20 if record_bytes < 1 << 20 else 128 << 20 if record_bytes == 1 << 20 else 256 << 20


def can_drop(folder):
    """Whether the page cache of a file can be dropped here: a hypervisor's or tmpfs' cannot."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(bytes(4 << 20))
        file.flush()
        disk.sync(folder)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        import ctypes
        import mmap

        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            pages = (ctypes.c_ubyte * 1024)()
            libc = ctypes.CDLL(None, use_errno=True)
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
            at = libc.mmap(None, 4 << 20, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
            libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
            if libc.mincore(at, 4 << 20, pages) != 0:
                return False
            libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
            libc.munmap(at, 4 << 20)
            assert len(mapped) == 4 << 20
            return sum(page & 1 for page in pages) < 64


def measure(peers_of, folder, record_bytes, options, medium):
    """A row for each figure and side; ours is the first of them."""
    count = bytes_of_all(record_bytes, options.quick) // record_bytes
    one_each = [disk.Contender(name, peer, folder, record_bytes, count) for name, peer in peers_of.items()]
    for one in one_each:  # what is made at the first use is not timed
        one.guard(one.round)
        one.seconds = {figure: [] for figure in disk.FIGURES}
        if one.wrong:
            one.failed = f"{one.wrong} of {2 * count} objects came back as others, or not at all"
    for number in range(options.rounds):
        for one in one_each if number % 2 == 0 else reversed(one_each):
            if not one.failed:
                one.guard(one.round)
    rows = [disk.row_of(figure, one, one_each[0], record_bytes, count, options.rounds)
            for figure in FIGURES[medium] for one in one_each if not one.failed and not one_each[0].failed]
    failed = [{"figure": "failed", "record_kib": record_bytes >> 10, "peer": one.name, "why": one.failed}
              for one in one_each if one.failed]
    for one in one_each:
        one.disk.close()
    return rows + failed


def measure_all(options):
    rows = []
    for host in options.hosts:
        module = importlib.import_module(f"of_{host}")
        for medium, known in (("disk", module.DISK), ("redis", module.REDIS)):
            wanted = {name: peer for name, peer in known.items()
                      if name == "kvfolio" or not options.sides or name in options.sides.split(",")}
            if len(wanted) < 2 or medium not in options.on:
                continue
            server = None
            if medium == "redis":
                import tier_cache

                if tier_cache.redis_program() is None:
                    print("adapters bench: no redis-server here, so no rows of Redis", file=sys.stderr)
                    continue
            for size in options.sizes:
                print(f"{host}, {medium}, {SIZES[size] >> 10} KiB ...", file=sys.stderr, flush=True)
                with tempfile.TemporaryDirectory(prefix="kvfolio-adapters-", dir=options.folder) as folder:
                    if medium == "redis":
                        server = tier_cache.Server(folder)
                        for peer in wanted.values():
                            peer.server = server
                    try:
                        found = measure(wanted, pathlib.Path(folder), SIZES[size], options, medium)
                    finally:
                        if server is not None:
                            server.stop()
                for row in found:
                    row |= {"host": f"{host} {module.VERSION}", "medium": medium}
                    rows.append(row)
                    if options.json:
                        print(json.dumps(row), flush=True)
    return rows


def print_table(rows, markdown):
    lines = [["host", "on", "KiB", "figure", "side", "GB/s", "kvfolio over it"]]
    for row in rows:
        if row["figure"] == "failed":
            lines.append([row["host"], row["medium"], str(row["record_kib"]), "failed", row["peer"], row["why"], ""])
        else:
            lines.append([row["host"], row["medium"], str(row["record_kib"]), row["figure"], row["peer"],
                          disk.cell(row), disk.ratio_cell(row)])
    peers.print_table(lines, markdown)


def explanation(rows, options, about):
    yield (f"{about['model']}, {about['cpus']} cpus, load {about['load']} before, {options.folder}; median of "
           f"{options.rounds} alternating rounds (min .. max)" + (": FEW objects, no figure counts" if options.quick else ""))
    yield "kvfolio over it: how many times as fast kvfolio is, median (min .. max) of the rounds' ratios"
    for figure, says in disk.FIGURES.items():
        yield f"{figure}: {says}"
    if not can_drop(options.folder):
        yield f"load cold: the page cache of {options.folder} cannot be dropped, so it is as load"
    said = {}
    for row in rows:
        if "note" in row:
            said.setdefault((row["host"], row["medium"], row["peer"]), row["note"])
    for (host, medium, name), note in said.items():
        yield f"a store of {name} ({host}, {medium}) that has returned: {note}"


def main(arguments=None):
    options = parse(arguments)
    logging.disable(logging.WARNING)
    about = peers.machine()
    if options.json:
        print(json.dumps({"machine": about, "page_cache_dropped": can_drop(options.folder)}), flush=True)
    rows = measure_all(options)
    if not options.json:
        print_table(rows, options.markdown)
        print()
        for line in explanation(rows, options, about):
            print(f"- {line}" if options.markdown else line)
    bad = [row for row in rows if row["peer"] == "kvfolio" and (row["figure"] == "failed" or row.get("wrong"))]
    for row in bad:
        print(f"adapters bench: kvfolio below {row['host']}, {row['record_kib']} KiB: "
              f"{row.get('why') or str(row['wrong']) + ' objects came back wrong'}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
