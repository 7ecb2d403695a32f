#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seed inputs of fuzz_safetensors, fuzz_config and fuzz_index into corpus/ beside this file.

Run by hand after a change; the inputs are kept, so that g++ builds replay them. Inputs that a fuzzer
found are kept there too, under other names.
"""

import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import make_checkpoints  # noqa: E402


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def safetensors_seeds():
    eight = bytes(8)
    good = safetensors({"a": tensor()}, eight)
    yield "good", good
    yield "matrix", safetensors({"__metadata__": {"format": "pt"}, "b": tensor("F16", (2, 2)),
                                 "a": tensor("BF16", (4,), (8, 16))}, bytes(16))
    yield "padded", safetensors(json.dumps({"a": tensor()}).encode() + b"   ", eight)
    yield "nan", safetensors({"a": tensor()}, b"\xff" * 8)
    yield "empty-tensor", safetensors({"a": tensor("I64", (0, 3), (0, 0))})
    yield "scalar", safetensors({"a": tensor("F64", (), (0, 8))}, eight)
    yield "nothing", b""
    yield "length-only", safetensors({}, b"", 0)
    yield "length-2-63", safetensors({}, b"", 2**63)
    yield "length-max", safetensors({}, b"", 2**64 - 1)
    yield "length-cut", good[:7]
    yield "header-cut", good[:20]
    yield "data-cut", good[:-1]
    yield "data-more", good + b"x"
    yield "reversed", safetensors({"a": tensor(offsets=(8, 0))}, eight)
    yield "overlap", safetensors({"a": tensor(), "b": tensor(offsets=(4, 12))}, bytes(12))
    yield "gap", safetensors({"a": tensor(offsets=(4, 12))}, bytes(12))
    yield "overflow", safetensors({"a": tensor(shape=(2**32, 2**32))}, eight)
    yield "overflow-wraps", safetensors({"a": tensor("U8", (2**61,), (0, 0))})
    yield "offset-2-63", safetensors({"a": tensor(offsets=(0, 2**63))}, eight)
    yield "negative", safetensors({"a": tensor(shape=(-1,))}, eight)
    yield "fraction", safetensors({"a": tensor(shape=(1.5,))}, eight)
    yield "type", safetensors({"a": tensor("F4", (3,), (0, 2))}, b"12")
    yield "kinds", safetensors({"a": [1, None, True, "x", {}]})
    yield "duplicate", safetensors(b'{"a":{},"a":{}}')
    yield "metadata", safetensors({"__metadata__": {"a": 1}})
    yield "deep", safetensors(b"[" * 100 + b"]" * 100)
    yield "escapes", safetensors(rb'{"\ud83d\ude00\u0000\"":1}')


def config_seeds():
    for name, variant in make_checkpoints.VARIANTS.items():
        yield name, make_checkpoints.config_of(variant)
    llama = make_checkpoints.config_of(make_checkpoints.VARIANTS["tied-f32"])
    mistral = make_checkpoints.config_of(make_checkpoints.VARIANTS["mistral-window-v5"])
    yield "huge", llama | {"vocab_size": 2**63, "hidden_size": 2**31, "num_hidden_layers": -1}
    yield "kinds", llama | {"hidden_size": "64", "eos_token_id": [1, None], "mlp_bias": 0}
    yield "old-rope", llama | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    yield "tiny-rope", llama | {"rope_theta": 1e-300, "max_position_embeddings": 2**30}
    yield "both-ropes", mistral | {"rope_scaling": {"type": "linear", "factor": 2.0}}
    yield "layer-types", mistral | {"layer_types": ["sliding_attention"] * 3}
    yield "unsupported", llama | {"quantization_config": {}, "hidden_act": "gelu", "num_experts": 8}
    yield "defaults", {key: llama[key] for key in (
        "architectures", "hidden_size", "intermediate_size", "num_attention_heads",
        "num_hidden_layers", "vocab_size")}


def index_seeds():
    for name, weight_map in (
        ("good", {"a": "s1", "b": "s2"}), ("one", {"a": "s1"}), ("none", {}), ("swapped", {"a": "s2"}),
        ("missing-file", {"a": "s3"}), ("outside", {"a": "../s1"}), ("absolute", {"a": "/dev/zero"}),
        ("dots", {"a": ".."}), ("self", {"a": "."}), ("empty", {"a": ""}), ("number", {"a": 1}),
        ("array", ["s1"]), ("more", {"a": "s1", "c": "s1"}),
    ):
        yield name, {"metadata": {"total_size": 4}, "weight_map": weight_map}


def main():
    for folder, ending, seeds in (("safetensors", ".safetensors", safetensors_seeds()),
                                  ("config", ".json", config_seeds()),
                                  ("index", ".json", index_seeds())):
        to = HERE / "corpus" / folder
        to.mkdir(parents=True, exist_ok=True)
        for name, seed in seeds:
            content = seed if isinstance(seed, bytes) else json.dumps(seed).encode() + b"\n"
            (to / (name + ending)).write_bytes(content)


if __name__ == "__main__":
    main()
