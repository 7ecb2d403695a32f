# SPDX-License-Identifier: Apache-2.0
"""OpenVINO's PagedAttention operation on the CPU: blocks of 32 tokens, in random order as ours."""

import numpy as np

import cases

try:
    import openvino
    from openvino import opset13
    from openvino.op import Parameter, Result, _PagedAttentionExtension
except ImportError as error:
    raise cases.Missing(f"OpenVINO: {error}; scripts/peers installs it") from error

NAME = "openvino"
NOTE = ("PagedAttention, blocks of 32 tokens in random order; u8 has K by channel over 32 tokens, "
        "V by token")
BLOCK = 32
# Arithmetic (and queries), cache. On a CPU without bf16 there is no bf16, and int8 is in f32.
HAS = {"f32": ("f32", "f32"), "f16": ("f32", "f16"), "bf16": ("bf16", "bf16"),
       "int8": ("bf16", "u8")}
if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
    HAS["int8"] = ("f32", "u8")
TYPES = {"f32": openvino.Type.f32, "f16": openvino.Type.f16, "bf16": openvino.Type.bf16,
         "u8": openvino.Type.u8}
STORED = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "u8": np.uint8}


class Peer:
    def version(self):
        return openvino.__version__

    def open(self, case):
        return Cache(case)


def tensor_of(array, kind=None):
    """Shares the memory of the array, which must live on. numpy knows no bf16."""
    if kind == "bf16":
        return openvino.Tensor(array, list(array.shape), openvino.Type.bf16)
    return openvino.Tensor(array, shared_memory=True)


def model_of(case):
    """A model of one node. What is not used is empty or 0."""
    parameters = []

    def parameter(name, kind, *shape):
        made = Parameter(kind, openvino.PartialShape(list(shape)))
        made.set_friendly_name(name)
        made.output(0).set_names({name})
        parameters.append(made)
        return made.output(0)

    def nothing(dtype=np.int32):
        return opset13.constant(np.zeros(0, dtype)).output(0)

    def number(value, dtype=np.int32):
        return opset13.constant(np.array(value, dtype)).output(0)

    rows = TYPES[HAS[case.dtype][0]]
    dynamic, i32 = openvino.Type.dynamic, openvino.Type.i32
    width, kv_width = case.q_heads * cases.HEAD_DIM, case.kv_heads * cases.HEAD_DIM
    node = _PagedAttentionExtension([
        parameter("query", rows, -1, width),
        parameter("key", rows, -1, kv_width),
        parameter("value", rows, -1, kv_width),
        parameter("key_cache.0", dynamic, -1, -1, -1, -1),
        parameter("value_cache.0", dynamic, -1, -1, -1, -1),
        parameter("past_lens", i32, -1),
        parameter("subsequence_begins", i32, -1),
        parameter("block_indices", i32, -1),
        parameter("block_indices_begins", i32, -1),
        number(cases.HEAD_DIM**-0.5, np.float32),  # scale
        number(0),  # sliding window
        nothing(np.float32),  # ALiBi
        parameter("max_context_len", i32),
        nothing(),  # window of the score output
        nothing(), nothing(), nothing(np.float32),  # rotation of the cache
        nothing(np.float32), number(0), number(0),  # XAttention
        nothing(np.float32),  # sinks
        number(0), nothing(), nothing(), nothing(),  # eviction
        nothing(),  # kinds of tokens
        nothing(np.uint8), nothing(),  # a mask between queries
    ])
    for name, value in (("num_k_heads", case.kv_heads), ("k_head_size", cases.HEAD_DIM),
                        ("num_v_heads", case.kv_heads), ("v_head_size", cases.HEAD_DIM)):
        node.get_rt_info()[name] = value
    return openvino.Model([Result(node.output(0))], parameters, "attention")


class Request:
    """The compiled model for a number of threads, over a cache that all of them share."""

    def __init__(self, case, threads):
        self.kind, stored = HAS[case.dtype]
        wanted = {"INFERENCE_PRECISION_HINT": self.kind, "KV_CACHE_PRECISION": stored,
                  "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
        compiled = openvino.Core().compile_model(model_of(case), "CPU", wanted)
        used = compiled.get_property("INFERENCE_PRECISION_HINT")
        if used != TYPES[self.kind]:
            raise cases.Impossible(f"arithmetic in {self.kind} was asked for, "
                                   f"{used.get_type_name()} would be used")
        self.inputs = {x.any_name: x for x in compiled.inputs}
        for name in ("key_cache.0", "value_cache.0"):
            if self.inputs[name].element_type != TYPES[stored]:
                raise cases.Impossible(f"a cache of {stored} was asked for, {name} is "
                                       f"{self.inputs[name].element_type.get_type_name()}")
            if name == "key_cache.0" and stored != "u8" and self.cache_shape(name)[1] != BLOCK:
                raise cases.Impossible(f"blocks of {self.cache_shape(name)[1]} tokens")
        self.request = compiled.create_infer_request()
        self.kept = {}  # memory of the tensors

    def cache_shape(self, name):
        """All but the number of blocks."""
        shape = self.inputs[name].partial_shape
        return [shape[i].get_length() for i in (1, 2, 3)]

    def set_cache(self, name, array):
        self.kept[name] = array
        kind = "bf16" if array.dtype == np.uint16 else None
        self.request.set_tensor(name, tensor_of(array, kind))

    def set_rows(self, **rows):
        """f32 arrays, [tokens, ...]."""
        for name, values in rows.items():
            values = values.reshape(values.shape[0], -1)
            values = cases.bf16_bits(values) if self.kind == "bf16" else \
                np.ascontiguousarray(values, np.float32)
            self.kept[name] = values
            self.request.set_tensor(name, tensor_of(values, self.kind))

    def set_numbers(self, **numbers):
        for name, values in numbers.items():
            self.kept[name] = np.array(values, np.int32)
            self.request.set_tensor(name, tensor_of(self.kept[name]))


class Cache:
    def __init__(self, case):
        self.case = case
        self.blocks = -(-case.kv_len // BLOCK)  # of each sequence
        count = case.sequences * self.blocks
        order = np.random.Generator(np.random.Philox(77)).permutation(count)
        self.table = order.astype(np.int32).reshape(case.sequences, self.blocks)
        self.last = Request(case, 1)  # whose output out() is
        stored = STORED[HAS[case.dtype][1]]
        self.arrays = {name: cases.huge_array([count, *self.last.cache_shape(name)], stored)
                       for name in ("key_cache.0", "value_cache.0")}
        self.fill()

    def connect(self, request):
        for name, array in self.arrays.items():
            request.set_cache(name, array)

    def fill(self):
        """By the operation itself, which knows how it quantizes: every block is a sequence of its
        own for once, so that a fill costs no attention over all that came before."""
        case, request = self.case, self.last
        self.connect(request)
        for sequence in range(case.sequences):
            k, v = case.tokens(sequence)
            for first in range(0, case.past, cases.CHUNK):
                end = min(first + cases.CHUNK, case.past)
                begins = [*range(0, end - first, BLOCK), end - first]
                blocks = self.table[sequence, first // BLOCK:-(-end // BLOCK)]
                q = np.zeros((end - first, case.q_heads * cases.HEAD_DIM), np.float32)
                request.set_rows(query=q, key=k[first:end], value=v[first:end])
                request.set_numbers(past_lens=[0] * len(blocks), subsequence_begins=begins,
                                    block_indices=blocks,
                                    block_indices_begins=range(len(blocks) + 1),
                                    max_context_len=BLOCK)
                request.request.infer(share_outputs=True)

    def note(self):
        kind, stored = HAS[self.case.dtype]
        return f"{kind} arithmetic over {stored}"

    def prepare(self, threads):
        case, request = self.case, Request(self.case, threads)
        self.connect(request)
        k, v = case.new_tokens()
        request.set_rows(query=case.query_rows(), key=k, value=v)
        request.set_numbers(
            past_lens=[case.past] * case.sequences,
            subsequence_begins=range(0, case.rows + 1, case.queries),
            block_indices=self.table.ravel(),
            block_indices_begins=range(0, self.table.size + 1, self.blocks),
            max_context_len=case.kv_len)
        infer = request.request.infer

        def step():
            infer(share_outputs=True)  # else it copies what it computed
            self.last = request

        return step

    def out(self):
        out = self.last.request.get_output_tensor(0)
        if self.last.kind == "bf16":
            return cases.f32_of_bf16(out.data.view(np.uint16))
        return out.data

    def poison(self):
        """Its output is its own, and new in every step."""

    def close(self):
        self.last = None
