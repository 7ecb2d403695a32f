# SPDX-License-Identifier: Apache-2.0
"""Random operations of a manager with an Offload over a disk: what Python was told is what C++ answered, by the
operation log; the calls made again in C++ alone are answered alike; and every row is its tokens'.

KVFOLIO_OPS: operations (default 6,000; scripts/nightly runs 100,000); KVFOLIO_SEED: the first seed, which a failure
names.
"""

import os
import pathlib
import random
import re
import subprocess

import numpy as np
import pytest

import kvfolio as kv
from kvfolio import tiers
from tier_cache import BLOCK, DIM, HEADS, LAYERS, MODEL, new_cache, rows

OPS_PER_RUN = 1000
ROOTS = [kv.RootKey(), kv.RootKey(tenant_salt=b"a"), kv.RootKey(adapter="a"),
         kv.RootKey(adapter="a", adapter_version="2")]
# What an Offload asks of a manager by itself.
OF_OFFLOAD = {"take_findable", "begin_load", "finish_load", "hold_blocks", "release_hold"}


def program():
    """The command of this build, or None."""
    path = os.environ.get("KVFOLIO") or str(pathlib.Path(__file__).parents[2] / "build/release/bin/kvfolio")
    return path if pathlib.Path(path).exists() else None


def words_of(error):
    """An error as the log has it: NotFound is 'not found'."""
    if isinstance(error, kv.OutOfBlocks):
        return f"no blocks, needs {error.needed}"
    return re.sub(r"(?<=.)([A-Z])", r" \1", type(error).__name__).lower()


def id_of(kind, number):
    """An id as the log has it."""
    text = f"{kind} {number & 0xffffff}.{number >> 24 & 0xffffff}"
    return text + (f" (tag {number >> 48})" if number >> 48 else "")


class Sequence:
    def __init__(self, number, root, version, tokens, there, pending):
        self.id, self.root, self.version, self.tokens = number, root, version, list(tokens)
        self.there, self.pending, self.ahead = there, pending, 0


class Engine:
    """One manager, and one Offload after the other over it. Rows of a sequence are a function of its tenant, of how
    often that was forgotten before the sequence was opened, and of all tokens up to each."""

    def __init__(self, seed, folder, epochs, versions):
        self.rng = random.Random(seed)
        self.folder, self.epochs, self.versions = folder, epochs, versions
        self.manager = new_cache(num_blocks=28, max_sequences=12)
        self.said = []  # (name, answer) of each call, as the log has them
        self.sequences, self.pins, self.flying = [], [], []
        self.loaded = self.ready = self.errors = 0
        self.offload = None
        self.manager.record(folder / "log")
        self.reopen()

    # ---- calls, and what they answered ----

    def call(self, name, function, *args, number=lambda result: "", **options):
        """The result, or None if the call was refused."""
        try:
            result = function(*args, **options)
        except kv.Error as error:
            self.errors += 1
            self.said.append((name, words_of(error)))
            return None
        text = number(result)
        self.said.append((name, "ok, " + text if text else "ok"))
        return result if result is not None else True

    def bytes_of(self, sequence):
        """The tokens that stand for its bytes."""
        mark = 7919 * (ROOTS.index(sequence.root) + 1) + 104729 * sequence.version
        return np.array(sequence.tokens, np.int64) + mark

    def check(self, sequence):
        """The cache has the bytes of what is there."""
        length = sequence.there
        assert self.manager.info(sequence.id).length == length
        for layer in range(LAYERS):
            k, v = (np.zeros((length, HEADS, DIM), np.float32) for _ in range(2))
            self.manager.gather(sequence.id, k=k, v=v, layer=layer)
            wanted_k, wanted_v = rows(self.bytes_of(sequence)[:length], layer)
            assert k.tobytes() == wanted_k.tobytes() and v.tobytes() == wanted_v.tobytes(), sequence.id

    def any(self, *, idle=True):
        """A sequence that is not pending, if there is one."""
        some = [each for each in self.sequences if not (idle and each.pending)]
        return self.rng.choice(some) if some else None

    # ---- operations ----

    def run(self, count):
        some = [self.open] * 5 + [self.step] * 6 + [self.poll] * 4 + [self.complete] * 3 + [self.close] * 3 + [
            self.fork, self.truncate, self.cancel, self.evict, self.pin, self.unpin, self.mistake, self.reserve,
            self.trivial]
        for _ in range(count):
            chance = self.rng.randrange(1500)
            if chance == 0:
                self.reopen()
            elif chance < 3:
                self.forget()
            elif chance < 20:
                self.manager.check_invariants()
                self.offload.check_invariants()
                for each in self.sequences:
                    if not each.pending:
                        self.check(each)
            else:
                self.rng.choice(some)()

    def reopen(self):
        """As the next process would, but that the manager stays."""
        if self.offload is not None:
            self.drain()
            self.epochs = self.offload.epochs()
            self.offload.close(5)
        disk = tiers.DiskTier(self.folder / "disk", bytes=4 << 20, segment_bytes=1 << 20)
        self.offload = tiers.Offload(self.manager, MODEL, arena_bytes=1 << 17, tiers=[disk], timeout=2.0,
                                     epochs=self.epochs)

    def drain(self):
        self.complete_all()
        for _ in range(100):
            if not any(each.pending for each in self.sequences):
                break
            self.poll(wait=1.0)
        assert not any(each.pending for each in self.sequences), "never ready"
        assert not self.offload.drain(5).loads

    def open(self):
        root = self.rng.choice(ROOTS[:1] * 3 + ROOTS)
        base = np.random.default_rng(self.rng.randrange(8)).integers(0, 1000, 40, np.int32)
        tokens = base[:self.rng.randrange(1, 40)]
        if self.rng.random() < 0.2:  # a path of its own
            tokens = tokens.copy()
            tokens[len(tokens) // 2:] = self.rng.randrange(1000)
        version = self.versions[ROOTS.index(root)]
        by = self.offload if self.rng.random() < 0.8 else self.manager
        opened = self.call("open", by.open, tokens, root=root, priority=self.rng.randrange(3),
                           number=lambda o: id_of("sequence", o.sequence))
        if opened is None:
            return
        pending = by is self.offload and opened.pending
        one = Sequence(opened.sequence, root, version, tokens, opened.cached_tokens, pending)
        self.sequences.append(one)
        if not pending:
            self.check(one)

    def poll(self, wait=None):
        if wait is None and self.rng.random() < 0.4:
            wait = 0.02
        for ready in self.offload.poll() if wait is None else self.offload.wait(wait):
            (one,) = (each for each in self.sequences if each.id == ready.sequence)
            assert one.pending
            one.pending = False
            self.ready += 1
            self.loaded += ready.cached_tokens - one.there
            one.there = ready.cached_tokens
            self.check(one)

    def step(self):
        if not self.sequences:
            return
        step = self.call("begin_step", self.manager.step, number=lambda s: f"ticket {s.ticket}")
        if step is None:
            return self.complete()
        appended = []
        for one in self.rng.sample(self.sequences, min(len(self.sequences), self.rng.randrange(1, 4))):
            if one.pending:
                continue
            while len(one.tokens) < one.there + 1:
                one.tokens.append(self.rng.randrange(1000))
            more = one.tokens[one.there:one.there + self.rng.randrange(1, 12)]
            if len(one.tokens) < 56 and self.call("append", step.append, one.id, np.array(more, np.int32)):
                appended.append((one, len(more)))
        plan = self.call("plan", step.plan, number=lambda p: str(sum(count for _, count in appended)))
        if self.rng.random() < 0.06:
            return self.call("drop", step.drop)
        if self.call("run_copies", step.run_copies) is None:  # from what the last step writes
            self.complete_all()
            assert self.call("run_copies", step.run_copies)
        slots, begin = plan.groups[0].slot_mapping, 0
        for number in plan.sequences:
            ((one, count),) = [each for each in appended if each[0].id == number]
            for layer in range(LAYERS):
                end = one.there + count
                k, v = rows(self.bytes_of(one)[:end], layer)
                kv.append(self.manager.storage.view(), np.ascontiguousarray(k[one.there:]),
                          np.ascontiguousarray(v[one.there:]), slots[begin:begin + count], layer=layer)
            begin += count
            one.there += count
        if self.rng.random() < 0.5:
            return self.call("finish", step.finish)
        self.call("commit", step.commit)
        self.flying.append(step.ticket)

    def complete(self):
        if self.flying:
            self.call("complete", self.manager.complete, self.flying.pop(0))

    def complete_all(self):
        while self.flying:
            self.complete()

    def close(self):
        one = self.any(idle=False)
        if one is None:
            return
        name = self.rng.choice(["close", "close", "preempt"])
        if self.call(name, getattr(self.manager, name), one.id):
            self.sequences.remove(one)

    def fork(self):
        one = self.any()
        if one is None:
            return
        child = self.call("fork", self.manager.fork, one.id, number=lambda c: id_of("sequence", c))
        if child is not None:
            tokens = one.tokens[:one.there] + [self.rng.randrange(1000) for _ in range(self.rng.randrange(9))]
            self.sequences.append(Sequence(child, one.root, one.version, tokens, one.there, False))

    def truncate(self):
        one = self.any()
        if one is None or not one.there:
            return
        length = self.rng.randrange(1, one.there + 1)
        if self.call("truncate", self.manager.truncate, one.id, length):
            one.there = length
            if self.rng.random() < 0.5:
                del one.tokens[length:]

    def cancel(self):
        waiting = [each for each in self.sequences if each.pending]
        if not waiting:
            return
        one = self.rng.choice(waiting)
        one.there, one.pending = self.offload.cancel(one.id), False
        self.check(one)

    def evict(self):
        self.call("evict", self.manager.evict, 0, self.rng.randrange(1, 20), number=lambda blocks: str(len(blocks)))

    def pin(self):
        root = self.rng.choice(ROOTS)
        tokens = np.random.default_rng(self.rng.randrange(8)).integers(0, 1000, 40, np.int32)[:8]
        if len(self.pins) < 3:
            pinned = self.call("pin", self.manager.pin, tokens, root=root, number=lambda p: id_of("pin", p.pin))
            if pinned is not None:
                self.pins.append(pinned.pin)

    def unpin(self):
        if self.pins:
            self.call("unpin", self.manager.unpin, self.pins.pop(0))

    def reserve(self):
        one = self.any()
        if one is not None:
            self.call("reserve", self.manager.reserve, one.id, one.there + self.rng.randrange(12))

    def trivial(self):
        self.call("select_victim", self.manager.select_victim,
                  number=lambda s: "no sequence" if s is None else id_of("sequence", s))

    def mistake(self):
        """Each is refused and changes nothing."""
        gone = 1 << 20
        name, function, *args = self.rng.choice([
            ("close", self.manager.close, gone), ("fork", self.manager.fork, gone),
            ("truncate", self.manager.truncate, gone, 3), ("unpin", self.manager.unpin, gone),
            ("complete", self.manager.complete, 1 << 40), ("reserve", self.manager.reserve, gone, 4),
            ("evict", self.manager.evict, 5, 1), ("preempt", self.manager.preempt, gone)])
        before = self.manager.describe()
        assert self.call(name, function, *args) is None, name
        assert self.manager.describe() == before, name

    def forget(self):
        root = self.rng.choice(ROOTS)
        if self.rng.random() < 0.2:
            self.call("reset", self.offload.reset, number=lambda f: str(f.blocks))
            self.versions[:] = [version + 1 for version in self.versions]
        else:
            self.call("forget", self.offload.forget, root=root, number=lambda f: str(f.blocks))
            self.versions[ROOTS.index(root)] += 1
        for one in self.sequences:  # what they wait for is not findable any more
            if one.pending:
                one.there, one.pending = self.offload.cancel(one.id), False
                self.check(one)

    def end(self):
        self.drain()
        while self.sequences:
            self.close()
        self.manager.check_invariants()
        self.epochs = self.offload.epochs()
        self.offload.close(5)
        assert self.offload.closed
        self.manager.record(None)


def dumped(log):
    """(name, answer) of each call of a log that Python made, itself or by an Offload."""
    ran = subprocess.run([program(), "inspect", log, "--dump"], capture_output=True, text=True, timeout=120, check=True)
    calls = re.findall(r"^\d+ (\w+)\(.*\) = (.*)$", ran.stdout, re.MULTILINE)
    return [call for call in calls if call[0] not in OF_OFFLOAD]


@pytest.mark.skipif(program() is None, reason="needs the command kvfolio of this build")
def test_python_is_told_what_cpp_answers_and_gets_the_bytes_that_it_stored(tmp_path):
    count = int(os.environ.get("KVFOLIO_OPS", "6000"))
    first = seed = int(os.environ.get("KVFOLIO_SEED", "1"))
    epochs, versions = None, [0] * len(ROOTS)
    calls = loaded = ready = errors = 0
    for done in range(0, count, OPS_PER_RUN):
        now = min(OPS_PER_RUN, count - done)
        again = f"KVFOLIO_SEED={first} KVFOLIO_OPS={count}: in the run of seed {seed}"
        try:
            engine = Engine(seed, tmp_path, epochs, versions)
            engine.run(now)
            engine.end()
        except BaseException as error:
            raise AssertionError(again) from error
        epochs = engine.epochs
        told, answered = engine.said, dumped(tmp_path / "log")
        for at, (mine, logged) in enumerate(zip(told, answered)):
            assert mine == logged, f"{again}, call {at}: {told[at - 3:at]}"
        assert len(told) == len(answered), again
        ran = subprocess.run([program(), "inspect", tmp_path / "log", "--replay"], capture_output=True, text=True,
                             timeout=120)
        assert ran.returncode == 0 and ran.stdout.startswith("replayed: all answers alike, "), again + ran.stdout
        assert "state hash" in ran.stdout, ran.stdout
        calls, loaded = calls + len(told), loaded + engine.loaded
        ready, errors = ready + engine.ready, errors + engine.errors
        seed += 1
    print(f"[random] seeds {first} to {seed - 1}: {count} operations, {calls} calls of which {errors} were refused, "
          f"{ready} prompts ready, {loaded} tokens loaded")
    if count >= 6000:
        assert loaded > count / 60 and errors > count / 100 and ready > count / 100
