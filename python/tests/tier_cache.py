# SPDX-License-Identifier: Apache-2.0
"""What the tests of tiers share: a small cache whose rows are a function of their prompt, and servers."""

import os
import pathlib
import shutil
import socket
import subprocess
import time
import weakref

import numpy as np

import kvfolio as kv
from kvfolio import tiers

MODEL = tiers.ModelIdentity(model="toy", weights="sha256:1", tokenizer="bytes", model_dtype="f32",
                            positions="none", engine="tests 1")
LAYERS, HEADS, DIM, BLOCK = 2, 2, 64, 4


def groups(num_blocks=32, dtype="f32"):
    return [kv.GroupSpec(num_layers=LAYERS, num_kv_heads=HEADS, head_dim=DIM, num_blocks=num_blocks,
                         block_size=BLOCK, dtype=dtype)]


def new_cache(num_blocks=32, **options):
    """A manager for an Offload, whose memory has other bytes than any prompt."""
    manager = kv.Manager(kv.Storage(groups(num_blocks)), list_findable=True, **options)
    manager.storage.fill(255)
    return manager


def prompt(seed, length=22):
    return np.random.default_rng(seed).integers(0, 1000, length, np.int32)


def rows(tokens, layer):
    """Keys and values of a prompt; those of a position depend on all tokens up to it."""
    path = np.cumsum(np.asarray(tokens, np.int64) * (layer + 3) + 1) % 65521
    k = path[:, None, None] + np.arange(HEADS * DIM).reshape(1, HEADS, DIM) / 1024
    return k.astype(np.float32), (-k).astype(np.float32)


def compute(manager, sequence, tokens, cached):
    """One step with what lies behind `cached`."""
    with manager.step() as step:
        step.append(sequence, tokens[cached:])
        slots = step.plan().groups[0].slot_mapping
        step.run_copies()
        for layer in range(LAYERS):
            k, v = rows(tokens, layer)
            kv.append(manager.storage.view(), np.ascontiguousarray(k[cached:]),
                      np.ascontiguousarray(v[cached:]), slots, layer=layer)


def check_rows(manager, sequence, tokens, length):
    """The cache has exactly the bytes of the first `length` tokens."""
    table = manager.block_table(sequence)
    for layer in range(LAYERS):
        k, v = (np.zeros((length, HEADS, DIM), np.float32) for _ in range(2))
        kv.gather(manager.storage.view(), table, length, k=k, v=v, layer=layer)
        wanted_k, wanted_v = rows(tokens[:length], layer)
        assert k.tobytes() == wanted_k.tobytes() and v.tobytes() == wanted_v.tobytes()


def serve(cache, manager, tokens, timeout=5.0, **options):
    """A prompt through an Offload from its opening to its end; how many tokens came, and why no more."""
    opened = cache.open(tokens, **options)
    found, why = opened.cached_tokens, None
    if opened.pending:
        (ready,) = cache.wait(timeout)
        assert ready.sequence == opened.sequence
        found, why = ready.cached_tokens, ready.why
    check_rows(manager, opened.sequence, tokens, found)
    compute(manager, opened.sequence, tokens, found)
    check_rows(manager, opened.sequence, tokens, len(tokens))
    manager.close(opened.sequence)
    return found, why


def redis_program():
    """redis-server of the system or of scripts/redis-here, or None."""
    here = pathlib.Path(__file__).parents[2] / "build/redis/bin/redis-server"
    return shutil.which("redis-server") or (str(here) if here.exists() else None)


class Server:
    """A redis-server without a disk on a port of its own."""

    def __init__(self, folder):
        self._process = None
        for _ in range(400):
            if self._process is None or self._process.poll() is not None:  # the port was taken meanwhile
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", 0))
                    self.port = probe.getsockname()[1]
                self._process = subprocess.Popen(
                    [redis_program(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly",
                     "no", "--dir", str(folder)], stdout=subprocess.DEVNULL)
                weakref.finalize(self, self._process.kill)
            try:
                assert self.ask("CONFIG", "GET", "dir", lines=5)[-1] == os.path.realpath(folder)  # it is ours
                self.address = f"127.0.0.1:{self.port}"
                return
            except (OSError, AssertionError):
                time.sleep(0.05)
        raise AssertionError("redis-server does not answer")

    def ask(self, *words, lines=None):
        """One command; its answer, if that is a line, or so many of its lines."""
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        text = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
        with socket.create_connection(("127.0.0.1", self.port), 2) as connection:
            connection.sendall(text)
            with connection.makefile("rb") as answer:
                said = [answer.readline().strip().lstrip(b"+:").decode(errors="replace") for _ in range(lines or 1)]
                return said[0] if lines is None else said

    def stop(self):
        self._process.kill()
        self._process.wait()
