# SPDX-License-Identifier: Apache-2.0
"""A decode step of the control plane through Python beside the same in C++, alternating.

One step: append_each for all sequences, plan with the changed table entries, finish; the arrays of
the plan are read as NumPy arrays. Processor time of each process, a round of each in turn; the C++
side is the row step.decode of `kvfolio bench core`, run as a process for each round.

    PYTHONPATH=build/release/python build/venv/bin/python bench/python/step.py \
        --kvfolio build/release/bin/kvfolio
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np

import kvfolio as kv

BLOCK = 16


class Decoding:
    """Sequences of one length, but that a sixteenth of them fills a block in each step."""

    def __init__(self, count: int, length: int, spare: int) -> None:
        blocks = count * ((length + spare) // BLOCK + 2)
        self.manager = kv.Manager([kv.GroupSpec(head_dim=1, head_dim_v=0, num_blocks=blocks)],
                                  max_sequences=count, max_pins=0,
                                  max_sequence_tokens=blocks * BLOCK)
        self.sequences = np.zeros(count, np.uint64)
        self.tokens = np.full(count, 7, np.int32)
        self.shuffle_free_blocks(blocks)
        for i in range(count):
            self.sequences[i] = self.manager.open([])[0]
            prompt = np.arange(length - i % BLOCK, dtype=np.int32) * 31 + i * 65537
            prompt &= 0x3fffffff
            with self.manager.step() as step:
                step.append(int(self.sequences[i]), prompt)

    def shuffle_free_blocks(self, blocks: int) -> None:
        at_once = min(len(self.sequences), 1024)
        opened = [self.manager.open([], prefix_cache=False)[0] for _ in range(at_once)]
        for _ in range(blocks // at_once):
            with self.manager.step() as step:
                for sequence in opened:
                    step.append_unnamed(sequence, BLOCK)
        for i in np.random.default_rng(11).permutation(at_once):
            self.manager.close(opened[i])

    def step(self) -> int:
        step = self.manager.step()
        step.append_each(self.sequences, self.tokens)
        group = step.plan(block_tables=False, changed_entries=True).groups[0]
        slots = group.slot_mapping
        changed = group.changed_rows, group.changed_columns, group.changed_blocks
        step.finish()
        return int(slots[0]) + len(changed[0])


def python_round(decoding: Decoding, steps: int) -> float:
    begin = time.process_time_ns()
    for _ in range(steps):
        decoding.step()
    return (time.process_time_ns() - begin) / (steps * len(decoding.sequences))


def cpp_round(command: str, short: bool) -> float:
    arguments = [command, "bench", "core", "--filter", "step.decode", "--json", "--rounds", "1"]
    ran = subprocess.run(arguments + (["--quick"] if short else []), capture_output=True,
                         text=True, check=True)
    for line in ran.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            if row.get("name") == "step.decode":
                return float(row["value"])
    raise SystemExit(f"no row step.decode in: {ran.stdout}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvfolio", required=True)
    parser.add_argument("--sequences", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one small round, for the tests")
    options = parser.parse_args()
    if options.quick:
        options.sequences, options.tokens, options.steps, options.rounds = 32, 64, 2, 1
    decoding = Decoding(options.sequences, options.tokens,
                        options.steps * (options.rounds + 1) + 18)
    python_round(decoding, options.steps)
    python, cpp = [], []
    for _ in range(options.rounds):
        python.append(python_round(decoding, options.steps))
        cpp.append(cpp_round(options.kvfolio, options.quick))
    ratio = statistics.median(python) / statistics.median(cpp)
    print(f"step.decode.python: {statistics.median(python):.1f} ns per sequence "
          f"({min(python):.1f} to {max(python):.1f}), C++ {statistics.median(cpp):.1f} "
          f"({min(cpp):.1f} to {max(cpp):.1f}), ratio {ratio:.2f}, promised: at most 1.5")
    decoding.manager.check_invariants()


if __name__ == "__main__":
    sys.exit(main())
