#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""beside.py LIBRARY [--quick] [--seconds N]: times ours, FlashInfer's and torch's attention in turn, in one process.

LIBRARY is beside.cu with the kernels (scripts/gpu pack). Each round replays a captured graph of every side once; a
ratio is taken within a round, so all of it meets the same clocks. Before a side is timed its result is compared with
ours; one that differs by more than BOUND is not timed. torch has a copy of K and V in one piece for each sequence,
since its attention knows no blocks, and only equal lengths. Without torch the others run. After N seconds torch is
left out. Lines that begin with "J|" are results, as JSON.
"""

import argparse
import ctypes
import json
import statistics
import time

ROUNDS = 15
BOUND = 6e-3  # of bf16, as in checks.cu: two results that are each within it, and rounded to bf16


class Problem(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("k", "v", "q", "out")] + [
        ("table", ctypes.c_void_p), ("kv_lens", ctypes.POINTER(ctypes.c_int32)),
        ("query_start", ctypes.POINTER(ctypes.c_int32)), ("table_stride", ctypes.c_int64)] + [
        (name, ctypes.c_int32) for name in ("blocks", "heads", "group_size", "dim", "block_size", "nhd",
                                            "sequences", "rows")]


def load(path):
    lib = ctypes.CDLL(path)
    handle, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
            ("shapes", ctypes.c_int, [ctypes.c_int]), ("open", handle, [ctypes.c_int, ctypes.c_int]),
            ("name", None, [handle, text, ctypes.c_int]), ("kv_bytes", ctypes.c_double, [handle]),
            ("flop", ctypes.c_double, [handle]), ("launches", ctypes.c_int, [handle]),
            ("sides", ctypes.c_int, [handle]), ("side", text, [handle, ctypes.c_int]),
            ("difference", ctypes.c_double, [handle, ctypes.c_int]),
            ("time", ctypes.c_double, [handle, ctypes.c_int]), ("problems", ctypes.c_int, [handle]),
            ("problem", None, [handle, ctypes.c_int, ctypes.POINTER(Problem)]), ("close", None, [handle])):
        function = getattr(lib, "beside_" + name)
        function.restype, function.argtypes = result, arguments
    return lib


# ---- torch -----------------------------------------------------------------------------------------


class Memory:
    """Device memory of ours as an array that torch can read without a copy."""

    def __init__(self, address, shape, kind):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": tuple(shape), "typestr": kind,
                                         "version": 3}


def tensors(torch, problem):
    """q, K, V and our result, as [sequence, head, token, dim]. The result is ours to read; K and V are copies."""
    p, n = problem, problem.sequences
    length, queries = p.kv_lens[0], p.query_start[1]

    def array(address, shape, kind="<i2"):
        return torch.as_tensor(Memory(address, shape, kind), device="cuda")

    table = array(p.table, (n, p.table_stride), "<i4").long()[:, :-(-length // p.block_size)]
    heads = p.heads * p.group_size

    def cache(address):
        layout = (p.block_size, p.heads) if p.nhd else (p.heads, p.block_size)
        blocks = array(address, (p.blocks, *layout, p.dim)).view(torch.bfloat16)
        found = blocks[table]  # [n, blocks of it, ...]
        if not p.nhd:
            found = found.transpose(2, 3)
        found = found.reshape(n, -1, p.heads, p.dim)[:, :length]
        return found.transpose(1, 2).contiguous()

    def rows(address):
        return array(address, (n, queries, heads, p.dim)).view(torch.bfloat16).transpose(1, 2)

    return rows(p.q).contiguous(), cache(p.k), cache(p.v), rows(p.out)


def torch_calls(torch, problem):
    """name -> (a call, its result as [sequence, head, query, dim]), of what torch may be asked for."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right
    attention = torch.nn.functional.scaled_dot_product_attention
    q, k, v, _ = tensors(torch, problem)
    n, heads, queries, dim = q.shape
    length, group = k.shape[2], problem.group_size
    calls = {}

    def add(name, backend, function, shaped):
        def call():
            with sdpa_kernel(backend):
                return function()
        calls[name] = (call, shaped)

    def same(x):
        return x

    def unpacked(x):
        return x.reshape(n, heads, queries, dim)

    if queries == 1:
        # The query heads of a KV head as queries without a mask: the same numbers, and K and V are read once.
        packed = q.view(n, problem.heads, group, dim)
        for name, backend in (("torch flash", SDPBackend.FLASH_ATTENTION), ("torch cuDNN", SDPBackend.CUDNN_ATTENTION)):
            add(name, backend, lambda: attention(packed, k, v), unpacked)
    else:
        wide_k, wide_v = (x.repeat_interleave(group, 1) for x in (k, v))
        if queries == length:
            for name, backend in (("torch flash", SDPBackend.FLASH_ATTENTION),
                                  ("torch cuDNN", SDPBackend.CUDNN_ATTENTION)):
                add(name, backend, lambda: attention(q, wide_k, wide_v, is_causal=True), same)
        else:  # cuDNN has no such mask through torch but one that is written out
            mask = causal_lower_right(queries, length)
            add("torch flash", SDPBackend.FLASH_ATTENTION, lambda: attention(q, wide_k, wide_v, attn_mask=mask), same)
    return calls


class TorchSide:
    """A graph of one call for each problem in turn, as ours has."""

    def __init__(self, torch, name, calls, launches):
        self.torch, self.name, self.launches = torch, name, launches
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            calls[0]()
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.kept = [calls[i % len(calls)]() for i in range(launches)]
        self.before, self.after = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def time(self):
        self.before.record()
        self.graph.replay()
        self.after.record()
        self.after.synchronize()
        return self.before.elapsed_time(self.after) * 1e3 / self.launches


def torch_sides(torch, lib, handle):
    """Sides that torch has for this shape, and a text for each that it has not."""
    problems = []
    for i in range(lib.beside_problems(handle)):
        problems.append(Problem())
        lib.beside_problem(handle, i, ctypes.byref(problems[-1]))
    first = problems[0]
    lens = {first.kv_lens[i] for i in range(first.sequences)}
    if len(lens) > 1:
        return {}, {}
    sides, refused = {}, {}
    every = [torch_calls(torch, problem) for problem in problems]
    ours = tensors(torch, first)[3].float()
    for name in every[0]:
        try:
            call, shaped = every[0][name]
            difference = float((shaped(call()).float() - ours).norm() / ours.norm())
            if not difference <= BOUND:
                refused[name] = f"differs by {difference:.1e}"
                continue
            sides[name] = (TorchSide(torch, name, [calls[name][0] for calls in every], lib.beside_launches(handle)),
                           difference)
        except RuntimeError as error:
            refused[name] = str(error).splitlines()[0][:120]
    return sides, refused


# ---- rounds ----------------------------------------------------------------------------------------


def summary(times):
    """{side: us of each round}, ours and reads among them -> what is said of a shape."""
    ours = times["kvfolio"]
    row = {"us": round(statistics.median(ours), 2), "rounds": len(ours), "sides": {}}
    reads = [name for name in times if name.startswith("read")]
    if reads:
        best = min(reads, key=lambda name: statistics.median(times[name]))
        parts = sorted(x / y for x, y in zip(times[best], ours))
        row["roof_us"] = round(statistics.median(times[best]), 2)
        row["of_roof"] = [round(x, 3) for x in (statistics.median(parts), parts[0], parts[-1])]
    for name in times:
        if name == "kvfolio" or name in reads:
            continue
        parts = sorted(x / y for x, y in zip(times[name], ours))
        row["sides"][name] = {"us": round(statistics.median(times[name]), 2),
                              "over_ours": [round(x, 3) for x in (statistics.median(parts), parts[0], parts[-1])]}
    return row


def run_shape(lib, torch, quick, index):
    handle = lib.beside_open(int(quick), index)
    name = ctypes.create_string_buffer(200)
    lib.beside_name(handle, name, len(name))
    sides, differences, refused = {}, {}, {}
    for i in range(lib.beside_sides(handle)):
        side = lib.beside_side(handle, i).decode()
        difference = lib.beside_difference(handle, i)
        if not difference <= BOUND:
            refused[side] = f"differs by {difference:.1e}"
            continue
        sides[side] = lambda i=i: lib.beside_time(handle, i)
        if difference >= 0:
            differences[side] = difference
    if torch:
        of_torch, more = torch_sides(torch, lib, handle)
        refused.update(more)
        for side, (graph, difference) in of_torch.items():
            sides[side] = graph.time
            differences[side] = difference
    times = {side: [] for side in sides}
    for counted in range(-2, ROUNDS):
        for side, once in sides.items():
            us = once()
            if counted >= 0:
                times[side].append(us)
    row = {"part": "beside", "shape": name.value.decode(), **summary(times)}
    if flop := lib.beside_flop(handle):
        row["tflops"] = {side: round(flop / statistics.median(us) * 1e-6) for side, us in times.items()
                         if not side.startswith("read")}
    for side, difference in differences.items():
        row["sides"][side]["differs"] = float(f"{difference:.1e}")
    if refused:
        row["refused"] = refused
    print("J|" + json.dumps(row), flush=True)
    del sides
    if torch:
        of_torch.clear()
        torch.cuda.empty_cache()
    lib.beside_close(handle)
    return not any(text.startswith("differs") for text in refused.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    lib = load(options.library)
    try:
        import torch
        torch.cuda.init()
        print("J|" + json.dumps({"part": "beside", "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}),
              flush=True)
    except (ImportError, RuntimeError, AssertionError) as error:
        print(f"no torch: {error}", flush=True)
        torch = None
    right = True
    for index in range(lib.beside_shapes(int(options.quick))):
        if torch and time.monotonic() > until:
            print("torch is left out from here: the time is over", flush=True)
            torch = None
        right &= run_shape(lib, torch, options.quick, index)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
