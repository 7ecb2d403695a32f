#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the names that src/offload/identity_test.cc expects, from the description in identity.h alone."""

import hashlib
import struct


def field(name: str, value: int | str) -> bytes:
    framed = struct.pack("<H", len(name)) + name.encode()
    if isinstance(value, int):
        return b"i" + framed + struct.pack("<q", value)
    return b"s" + framed + struct.pack("<I", len(value)) + value.encode()


def fields(pairs: dict[str, int | str]) -> bytes:
    return b"".join(field(name, value) for name, value in pairs.items())


def sha(*pieces: bytes) -> bytes:
    return hashlib.sha256(b"".join(pieces)).digest()


MODEL = {"format_version": 1, "model": "toy", "weights": "sha256:00", "tokenizer": "bytes",
         "model_dtype": "f32", "positions": "rope 10000", "unit": 16}
LAYOUT = {"engine": "example 1", "layers": "", "group": 0, "num_groups": 1, "num_layers": 2,
          "num_kv_heads": 2, "head_dim_k": 8, "head_dim_v": 8, "v_is_prefix_of_k": 0,
          "block_size": 16, "dtype": "f32", "quantization": "none", "scales": "", "format": "hnd",
          "attention": "full", "window": 0, "num_sinks": 0, "shard": 0, "num_shards": 1,
          "pipeline_rank": 0, "num_pipeline_ranks": 1, "context_rank": 0, "num_context_ranks": 1,
          "compression": "none", "byte_order": "little"}


def root(model: bytes, salt: bytes) -> bytes:
    texts = [(b"n", b""), (b"a", b""), (b"v", b""), (b"t", salt)]
    framed = b"".join(kind + struct.pack("<I", len(text)) + text for kind, text in texts)
    return sha(b"kvfolio/root/1", model, framed, b"e", bytes(8), b"f", bytes(8))


def block(before: bytes, begin: int, tokens: list[int],
          media: list[tuple[int, int, bytes, int]]) -> bytes:
    spans = [b"m" + content + struct.pack("<IBI", end - first, attends, begin - first & 0xffffffff)
             for first, end, content, attends in media]
    return sha(b"kvfolio/block/1", before, struct.pack("<I", len(tokens)),
               struct.pack(f"<{len(tokens)}i", *tokens), struct.pack("<I", len(spans)), *spans)


def main() -> None:
    model = sha(b"kvfolio/model/1", fields(MODEL))
    layout = sha(b"kvfolio/layout/1", model, fields(LAYOUT))
    start = root(model, b"tenant")
    first = block(start, 0, list(range(16)), [])
    second = block(first, 16, [7, 8, 9], [(18, 40, bytes(range(32)), 1)])
    key = struct.pack("<HHHH", 1, 0, 0, 1) + layout[:16] + second + bytes(16)
    for name, value in (("model", model), ("layout", layout), ("root", start), ("first", first),
                        ("second", second), ("key", key)):
        print(f"{name:7} {value.hex()}")


if __name__ == "__main__":
    main()
