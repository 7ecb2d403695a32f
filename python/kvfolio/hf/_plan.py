# SPDX-License-Identifier: Apache-2.0
"""The groups of a pool for a model: layers with one window form a group.

kvfolio.plan() counts what a sequence of the expected length needs, so it gives a window few blocks.
Here every group gets room for equally many tokens: generate() computes a prompt in one step, which
then needs blocks for all of it in every group, and what a window has passed stays for later hits.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import kvfolio
from kvfolio._capacity import parse_bytes
from kvfolio._types import DType

from ._layers import SINCE_5, layer_kinds


def groups_for(config: Any, memory: int | str | None, blocks: int | None, block_size: int,
               dtype: str | None) -> list[kvfolio.GroupSpec]:
    """`blocks` of each group, or as many as fit `memory`; dtype None: the configuration's."""
    if (memory is None) == (blocks is None):
        raise ValueError('a pool needs memory="2GiB" or blocks=512')
    shapes: dict[int, list[tuple[int, int, int]]] = {}  # of the layers of each window
    decoder = config.get_text_config(decoder=True)
    for index, kind in enumerate(layer_kinds(config)):
        if kind is not None:
            shapes.setdefault(kind.window, []).append(_shape(_config_of_layer(decoder, index)))
    groups = []
    for window, found in shapes.items():
        # Where layers of one window differ, the largest is counted for all of them.
        heads, dim_k, dim_v = max(found, key=lambda shape: shape[0] * (shape[1] + shape[2]))
        groups.append(
            kvfolio.GroupSpec(
                num_layers=len(found),
                num_kv_heads=heads,
                head_dim=dim_k,
                head_dim_v=dim_v,
                block_size=block_size,
                dtype=cast(DType, dtype or _dtype(config)),
                window=window,
                num_blocks=blocks or 0,
            )
        )
    if memory is not None:
        groups = list(kvfolio.fit(groups, parse_bytes(memory)))
    kvfolio.validate(groups)
    return groups


def check_equal_layers(config: Any) -> None:
    """Refuses layers of one window that differ: a file and a tier have one layout for each group."""
    decoder = config.get_text_config(decoder=True)
    seen: dict[int, tuple[int, tuple[int, int, int]]] = {}
    for index, kind in enumerate(layer_kinds(config)):
        if kind is not None:
            shape = _shape(_config_of_layer(decoder, index))
            first, expected = seen.setdefault(kind.window, (index, shape))
            if shape != expected:
                raise ValueError(
                    f"layer {index} has {shape[0]} heads of {shape[1]} elements and layer {first} {expected[0]} of "
                    f"{expected[1]}, with one window: such prompts cannot be kept, so no durable pool can be made")


def layer_bytes(group: kvfolio.GroupSpec) -> int:
    """Bytes that a block takes in one layer of the group."""
    one = dataclasses.replace(group, num_layers=1, num_blocks=1)
    return int(kvfolio.bytes_per_block([one])[0])


def _config_of_layer(decoder: Any, index: int) -> Any:
    """Since 5.x layers may have values of their own: Gemma 4 has two sizes of heads."""
    layers = getattr(decoder, "per_layer_config", None)
    return decoder if layers is None else layers[index]


def _shape(decoder: Any) -> tuple[int, int, int]:
    """What a layer hands to its cache: heads, elements of a key, elements of a value."""
    heads = decoder.num_attention_heads
    rank = getattr(decoder, "kv_lora_rank", None)
    if rank:
        if SINCE_5:  # the latent, and the part that turns
            return 1, rank, decoder.qk_rope_head_dim
        return heads, decoder.qk_nope_head_dim + decoder.qk_rope_head_dim, decoder.v_head_dim
    dim = getattr(decoder, "head_dim", None) or decoder.hidden_size // heads
    return getattr(decoder, "num_key_value_heads", None) or heads, dim, dim


def _dtype(config: Any) -> str:
    names = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    given = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    return names.get(str(given).removeprefix("torch."), "f32")
