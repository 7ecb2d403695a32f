# SPDX-License-Identifier: Apache-2.0
"""kvfolio: attention over blocks of 16 tokens in random order, in format granule."""

import ctypes
import functools
import itertools

import numpy as np

import cases

NAME = "kvfolio"
NOTE = ("blocks of 16 tokens in random order, format granule; int8 has a scale for each token and "
        "head")


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32)
                for name in ("num_kv_heads", "q_per_kv", "head_dim", "num_sequences", "kv_len",
                             "queries")]


def _declare(library):
    i32, i64, pointer, text = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
            ("error", text, []),
            ("create", i64, [ctypes.POINTER(Shape), text]),
            ("destroy", i32, [i64]),
            ("fill", i32, [i64, i32, i32, i32, pointer, pointer, i64]),
            ("step", i32, [i64, i32, pointer, i64, pointer, pointer, i64, pointer, i64]),
            ("read", i32, [i64, i32, i32, i32, i32]),
            ("bytes", i64, [i64]),
            ("query_dtype", text, [i64]),
            ("target", text, [i64])):
        function = getattr(library, "kvfolio_peer_" + name)
        function.restype, function.argtypes = result, arguments
    return library


class Peer:
    def __init__(self, library):
        self.library = _declare(cases.load_library(library, "scripts/peers"))

    def version(self):
        return cases.commit()

    def open(self, case):
        return Cache(self.library, case)


class Cache:
    """A cache full of a case's tokens. The numbers of the threads come with each call."""

    def __init__(self, library, case):
        self.library = library
        self.case = case
        shape = Shape(case.kv_heads, case.q_per_kv, cases.HEAD_DIM, case.sequences, case.kv_len,
                      case.queries)
        self.number = library.kvfolio_peer_create(ctypes.byref(shape), case.dtype.encode())
        if self.number == 0:
            raise RuntimeError(f"kvfolio: {self.error()}")
        self.bytes = library.kvfolio_peer_bytes(self.number)
        for sequence in range(case.sequences):
            self.fill(sequence, *case.tokens(sequence))
        # The step appends the last tokens; what fill() wrote there is no number until then.
        nothing = np.full((case.queries, case.kv_heads, cases.HEAD_DIM), np.nan, np.float32)
        for sequence in range(case.sequences):
            self.fill(sequence, nothing, nothing, case.past)
        self.q = self.of_query_type(case.query_rows())
        self.k, self.v = (self.of_query_type(x) for x in case.new_tokens())
        self.output = np.empty((case.rows, case.q_heads, cases.HEAD_DIM), np.float32)

    def error(self):
        return self.library.kvfolio_peer_error().decode()

    def check(self, done):
        if done < 0:
            raise RuntimeError(f"kvfolio, {self.case.name}: {self.error()}")

    def of_query_type(self, values):
        name = self.library.kvfolio_peer_query_dtype(self.number)
        if name == b"bf16":
            return cases.bf16_bits(values)
        return np.ascontiguousarray(values, {b"f32": np.float32, b"f16": np.float16}[name])

    def fill(self, sequence, k, v, first=0):
        k, v = (np.ascontiguousarray(x, np.float32) for x in (k, v))
        self.check(self.library.kvfolio_peer_fill(self.number, sequence, first, k.shape[0],
                                                  k.ctypes.data, v.ctypes.data, k.nbytes))

    def note(self):
        return f"{self.library.kvfolio_peer_target(self.number).decode()} kernels"

    def prepare(self, threads):
        """Answers a step: append and attend, once."""
        arguments = (self.number, threads, self.q.ctypes.data, self.q.nbytes, self.k.ctypes.data,
                     self.v.ctypes.data, self.k.nbytes, self.output.ctypes.data,
                     self.output.nbytes)
        function = self.library.kvfolio_peer_step

        def step():
            self.check(function(*arguments))

        return step

    def reads(self, threads):
        """Ways to read all of it: the fastest is the ceiling of a decode."""
        def read(by_head, ahead, level):
            self.check(self.library.kvfolio_peer_read(self.number, threads, by_head, ahead,
                                                      level))

        distances = [(0, 2), *itertools.product((1, 2, 4, 8), (1, 2))]
        return [functools.partial(read, by_head, *distance)
                for by_head in (0, 1) for distance in distances]

    def out(self):
        return self.output

    def poison(self):
        self.output.fill(np.nan)

    def close(self):
        self.library.kvfolio_peer_destroy(self.number)
