# SPDX-License-Identifier: Apache-2.0
"""What is computed: cases, the numbers of their tokens, and the right results in float64."""

import argparse
import ctypes
import dataclasses
import functools
import mmap
import pathlib
import subprocess

import numpy as np

HEAD_DIM = 128
DTYPES = ("f32", "f16", "bf16", "int8")
# Largest error of an output row, relative to its length, by the type of the cache.
TOLERANCE = {"f32": 2e-6, "f16": 1e-3, "bf16": 5e-3, "int8": 1.5e-2}
# The peers' f32 sums over tokens of either sign, one after the other, are off by 3.3e-6 over 16384
# and by 5.8e-6 over 65536. That is no fault; a token that is missed is off by 1e-3 and more.
PEER_TOLERANCE = TOLERANCE | {"f32": 2e-5}
# Bytes of an element of the cache; scales are not counted.
ELEMENT = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}
CHUNK = 2048  # tokens that are handed over at a time
CHECKED_ROWS = 24  # of a prefill


class Missing(Exception):
    """A peer that is not installed, or a library that is not built."""


def load_library(path, script):
    path = pathlib.Path(path).resolve()
    if not path.is_file():
        raise Missing(f"{path} is missing; {script} builds it, or name another one with --library")
    return ctypes.CDLL(str(path))


def peer_names(known):
    """The type of --peers: of all that are compared, those beside kvfolio."""
    known = [name for name in known if name != "kvfolio"]

    def names(text):
        some = [] if text == "none" else text.split(",")
        if set(some) - set(known):
            raise argparse.ArgumentTypeError(f"{text}; allowed: none, or some of {','.join(known)}")
        return some
    return names


class Impossible(Exception):
    """A case that a peer cannot do, and why."""


def commit():
    """Of the tree that this file lies in: kvfolio's version."""
    folder = pathlib.Path(__file__).parent
    done = subprocess.run(["git", "-C", str(folder), "describe", "--always", "--dirty"],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip() or "of no known commit"


@dataclasses.dataclass(frozen=True)
class Case:
    family: str  # decode or prefill
    dtype: str  # of the cache: one of DTYPES
    kv_heads: int
    q_per_kv: int  # query heads for each KV head
    sequences: int
    kv_len: int  # tokens of each sequence, those of the step included
    queries: int  # of each sequence: a step appends its last so many tokens and attends them

    @property
    def name(self):
        return f"{self.family}.{self.sequences}x{self.kv_len}.g{self.q_per_kv}.{self.dtype}"

    @property
    def q_heads(self):
        return self.kv_heads * self.q_per_kv

    @property
    def rows(self):
        return self.sequences * self.queries

    @property
    def past(self):
        return self.kv_len - self.queries

    @property
    def token_heads(self):
        return self.sequences * self.kv_len * self.kv_heads

    @property
    def cache_bytes(self):
        return self.token_heads * 2 * HEAD_DIM * ELEMENT[self.dtype]

    @property
    def operations(self):
        """Multiplications and additions of a step, only what the mask lets through."""
        scores = self.queries * self.kv_len - self.queries * (self.queries - 1) // 2
        return scores * self.sequences * self.q_heads * HEAD_DIM * 4

    def tokens(self, sequence):
        """K and V of a sequence, each [kv_len, kv_heads, HEAD_DIM] of f32. What the type of the
        queries cannot hold is rounded before anybody sees it, so that all compute the same."""
        random = np.random.Generator(np.random.Philox(key=[sequence, self.q_per_kv]))
        shape = (2, self.kv_len, self.kv_heads, HEAD_DIM)
        k, v = random.random(shape, dtype=np.float32) * np.float32(2) - np.float32(1)
        return rounded(k, self.dtype), rounded(v, self.dtype)

    @functools.lru_cache(maxsize=1)
    def new_tokens(self):
        """K and V of the step, each [rows, kv_heads, HEAD_DIM] of f32."""
        last = [[x[self.past:] for x in self.tokens(s)] for s in range(self.sequences)]
        return [np.concatenate([pair[i] for pair in last]) for i in (0, 1)]

    def query_rows(self):
        """[rows, q_heads, HEAD_DIM] of f32; scores have a deviation near 1."""
        random = np.random.Generator(np.random.Philox(key=[1 << 40, self.q_per_kv]))
        q = random.random((self.rows, self.q_heads, HEAD_DIM), dtype=np.float32)
        return rounded(q * np.float32(4) - np.float32(2), self.dtype)


def bf16_bits(values):
    """f32 -> the bits of bf16, to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def f32_of_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values, dtype):
    """To what queries over such a cache are made of: bf16 where the cache is int8."""
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float32)
    if dtype in ("bf16", "int8"):
        return f32_of_bf16(bf16_bits(values))
    return values


def huge_array(shape, dtype):
    """Zeros on huge pages where the machine has them, every page touched: kvfolio's memory is such,
    and the peers' is to be no worse."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    page = 2 << 20
    # Private: shared memory, which mmap gives otherwise, has huge pages on few machines.
    memory = mmap.mmap(-1, count * dtype.itemsize + page,
                       flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    offset = -whole.ctypes.data % page
    array = whole[offset:offset + count * dtype.itemsize].view(dtype).reshape(shape)
    array.fill(0)
    return array


def prefer_huge_pages(address, size):
    """Of private memory that was touched already, as far as the kernel can (Linux 6.1)."""
    page = 2 << 20
    first = -(-address // page) * page
    libc = ctypes.CDLL(None)
    for advice in (mmap.MADV_HUGEPAGE, 25):  # MADV_COLLAPSE
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t((address + size) // page * page - first),
                     advice)


class Reference:
    """The right results in float64, of what the caller was given: unquantized where a cache
    quantizes. Of a prefill some rows, of a decode all; all heads."""

    def __init__(self, case):
        self.case = case
        count = case.rows if case.family == "decode" else min(case.rows, CHECKED_ROWS)
        self.rows = np.unique(np.linspace(0, case.rows - 1, count).astype(int))
        self.expected = np.empty((len(self.rows), case.q_heads, HEAD_DIM))
        q = case.query_rows().astype(np.float64)
        for sequence in range(case.sequences):
            mine = np.flatnonzero(self.rows // case.queries == sequence)
            if not mine.size:
                continue
            k, v = case.tokens(sequence)
            last = case.past + self.rows[mine] % case.queries  # positions of the queries
            hidden = np.arange(case.kv_len)[None, :] > last[:, None]
            for head in range(case.kv_heads):
                heads = slice(head * case.q_per_kv, (head + 1) * case.q_per_kv)
                scores = q[self.rows[mine], heads] @ k[:, head].astype(np.float64).T
                scores *= HEAD_DIM**-0.5
                scores[np.broadcast_to(hidden[:, None, :], scores.shape)] = -np.inf
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                weights /= weights.sum(-1, keepdims=True)
                self.expected[mine, heads] = weights @ v[:, head].astype(np.float64)

    def error(self, out):
        """The largest relative L2 error of a row of one query head; inf where it is no number."""
        got = np.asarray(out, np.float64).reshape(self.case.rows, self.case.q_heads, HEAD_DIM)
        off = np.linalg.norm(got[self.rows] - self.expected, axis=-1)
        errors = off / np.linalg.norm(self.expected, axis=-1)
        return float(errors.max()) if np.isfinite(errors).all() else float("inf")


@functools.cache
def l3_bytes():
    """Of this core; 32 MiB where the kernel does not say, 512 MiB at most."""
    try:
        path = pathlib.Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
        return min(int(path.read_text().rstrip("K\n")), 512 << 10) << 10
    except (OSError, ValueError):
        return 32 << 20


def grown(case, step):
    """At least four times as large as the third-level cache."""
    while case.cache_bytes < 4 * l3_bytes():
        case = dataclasses.replace(case, kv_len=case.kv_len + step)
    return case


def all_cases(quick):
    for dtype in DTYPES:
        if quick:
            yield Case("decode", dtype, kv_heads=2, q_per_kv=8, sequences=2, kv_len=1000, queries=1)
            yield Case("decode", dtype, kv_heads=8, q_per_kv=1, sequences=2, kv_len=333, queries=1)
            yield Case("prefill", dtype, kv_heads=2, q_per_kv=8, sequences=1, kv_len=500, queries=40)
            continue
        # 32 query heads.
        yield grown(Case("decode", dtype, 4, 8, sequences=8, kv_len=16384, queries=1), 4096)
        yield grown(Case("decode", dtype, 32, 1, sequences=8, kv_len=4096, queries=1), 4096)
        yield grown(Case("decode", dtype, 4, 8, sequences=1, kv_len=65536, queries=1), 16384)
        yield Case("prefill", dtype, 4, 8, sequences=1, kv_len=4096 + 512, queries=512)
