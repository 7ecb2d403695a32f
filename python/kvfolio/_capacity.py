# SPDX-License-Identifier: Apache-2.0
"""plan(): how many tokens of a model fit into memory."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import _core
from ._types import DType, GroupSpec
from .errors import InvalidArgument, Unsupported

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_DTYPES: dict[str, DType] = {"float64": "f64", "float32": "f32", "float16": "f16",
                             "bfloat16": "bf16", "int8": "int8", "f64": "f64", "f32": "f32",
                             "f16": "f16", "bf16": "bf16", "e4m3": "e4m3", "float8_e4m3fn": "e4m3",
                             "opaque": "opaque"}
# Names of transformers for what a layer attends to.
_FULL = {"full_attention", "attention", "global_attention"}
_SLIDING = {"sliding_attention", "local_attention"}


def parse_bytes(memory: int | str, name: str = "memory") -> int:
    """The bytes of the argument `name`. Whatever takes bytes reads them with this, also in the extensions.

    >>> parse_bytes("2GiB"), parse_bytes("1.5 MB"), parse_bytes(4096)
    (2147483648, 1500000, 4096)
    """
    if not isinstance(memory, str):
        try:
            if not isinstance(memory, bool):
                return operator.index(memory)
        except TypeError:
            pass
        value = repr(memory) if isinstance(memory, (bool, float)) else f"of type {type(memory).__name__}"
        raise TypeError(f'{name} is {value}: an int of bytes, or words such as "2GiB", are needed')
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*", memory)
    if match is None or match.group(2).upper() not in _UNITS:
        raise InvalidArgument(f"{name} is {memory!r}, allowed: a number of bytes, or one with "
                              "KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB or TiB (of 1024) behind it")
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def _text(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.2f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} TiB"


class _Config:
    """Attributes of a config of transformers, or the entries of a dict; that of the text part."""

    def __init__(self, config: Any) -> None:
        self._config = config
        inner = self.get("text_config")
        if inner is not None:
            self._config = inner

    def get(self, *names: str, default: Any = None) -> Any:
        for name in names:
            value = (self._config.get(name) if isinstance(self._config, Mapping)
                     else getattr(self._config, name, None))
            if value is not None:
                return value
        return default

    def of_layer(self, layer: int, is_full: bool) -> _Config:
        """Layers may have values of their own: Gemma 4 has other heads where it attends to all tokens."""
        layers = self.get("per_layer_config")
        if not isinstance(self._config, Mapping):
            return self if layers is None else _Config(layers[layer])
        own = dict((layers or {}).get(str(layer), {}))
        if is_full and self.get("global_head_dim") is not None:
            own.setdefault("head_dim", self.get("global_head_dim"))
            heads = self.get("num_global_key_value_heads")
            if heads is not None and self.get("attention_k_eq_v", default=True):
                own.setdefault("num_key_value_heads", heads)
        return _Config({**self._config, **own}) if own else self

    def number(self, *names: str, default: int | None = None) -> int:
        value = self.get(*names, default=default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidArgument(f"the config's {names[0]} is {value!r}, allowed: an int from 1")
        return value


def _layer_types(config: _Config, num_layers: int) -> list[str]:
    window = config.get("sliding_window")
    types = config.get("layer_types")
    if types is None:
        # Configs of transformers before layer_types: Qwen2 turns its window off by a flag.
        sliding = window is not None and config.get("use_sliding_window", default=True)
        types = ["sliding_attention" if sliding else "full_attention"] * num_layers
    if len(types) != num_layers:
        raise InvalidArgument(f"the config has {len(types)} layer_types for {num_layers} layers")
    for layer, kind in enumerate(types):
        if kind not in _FULL | _SLIDING:
            raise Unsupported(f"layer {layer} is of type {kind!r}: it keeps no K and V for each "
                              "token, which is all that kvfolio stores")
        if kind in _SLIDING and not window:
            raise InvalidArgument(f"layer {layer} is of type {kind!r}, and the config has no "
                                  "sliding_window")
    return list(types)


def _dtype(config: _Config, dtype: str | None) -> DType:
    name = dtype if dtype is not None else config.get("dtype", "torch_dtype", default="bfloat16")
    found = _DTYPES.get(str(name).removeprefix("torch."))
    if found is None:
        raise InvalidArgument(f"dtype is {name!r}, allowed: {', '.join(sorted(_DTYPES))}")
    return found


def _groups(config: _Config, block_size: int, dtype: str | None) -> list[GroupSpec]:
    num_layers = config.number("num_hidden_layers", "n_layer", "num_layers")
    num_heads = config.number("num_attention_heads", "n_head")
    if config.get("kv_lora_rank") is not None:
        raise Unsupported("the config has kv_lora_rank: what such a model caches (latents or K and "
                          "V) depends on its code. Write the GroupSpec yourself")
    found: dict[tuple[int, int, int], int] = {}  # window, heads, head_dim: number of layers
    types = _layer_types(config, num_layers)
    # The last layers may read what others keep.
    stored = num_layers - config.get("num_kv_shared_layers", default=0)
    for layer, kind in enumerate(types[:stored]):
        own = config.of_layer(layer, kind in _FULL)
        head_dim = own.get("head_dim")
        if head_dim is None:
            head_dim = own.number("hidden_size", "n_embd") // num_heads
        alike = (0 if kind in _FULL else own.number("sliding_window"),
                 own.number("num_key_value_heads", default=num_heads), head_dim)
        found[alike] = found.get(alike, 0) + 1
    return [GroupSpec(num_layers=count, num_kv_heads=heads, head_dim=head_dim, block_size=block_size,
                      dtype=_dtype(config, dtype), window=window)
            for (window, heads, head_dim), count in sorted(found.items(), key=lambda one: one[0][0])]


@dataclass(frozen=True)
class PoolPlan:
    """What plan() found. print() shows a table; Manager(plan.groups) makes the pool."""

    groups: tuple[GroupSpec, ...]
    #: Tokens that the full groups hold at once; without one, those of a window group.
    num_tokens: int
    #: Bytes that one more token takes in all full groups, padding included.
    bytes_per_token: float
    total_bytes: int

    def __str__(self) -> str:
        rows = [("group", "layers", "attention", "heads x dim", "dtype", "blocks", "tokens",
                 "bytes")]
        block_bytes = _core.bytes_per_block(self.groups)
        for i, (group, each) in enumerate(zip(self.groups, block_bytes)):
            rows.append((str(i), str(group.num_layers),
                         f"window {group.window}" if group.window else "full",
                         f"{group.num_kv_heads} x {group.head_dim}", group.dtype,
                         f"{group.num_blocks} x {group.block_size}",
                         str(group.num_blocks * group.block_size),
                         _text(each * group.num_blocks)))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
        lines.append(f"{self.num_tokens} tokens, {_text(self.bytes_per_token)} for each, "
                     f"{_text(self.total_bytes)} in all")
        return "\n".join(lines)


def plan(config: Any, memory: int | str | None = None, *, blocks: int | None = None,
         block_size: int = 16, dtype: str | None = None, max_tokens: int = 8192) -> PoolPlan:
    """The groups of a model, with as many blocks as fit into `memory`, or with `blocks` each.

    config: a config of transformers, or a dict with its entries. dtype None: the config's, else
    bf16. max_tokens: the expected length of a sequence; layers with a window get blocks for as many
    sequences as the other layers.

    >>> print(plan({"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...             "hidden_size": 4096, "torch_dtype": "bfloat16"}, "2GiB"))
    group  layers  attention  heads x dim  dtype     blocks  tokens     bytes
        0      32       full      8 x 128   bf16  1024 x 16   16384  2.00 GiB
    16384 tokens, 128.00 KiB for each, 2.00 GiB in all
    """
    if (memory is None) == (blocks is None):
        raise InvalidArgument("plan() takes either memory or blocks")
    if max_tokens < 1:
        raise InvalidArgument(f"max_tokens is {max_tokens}, allowed: from 1")
    groups = _groups(_Config(config), block_size, dtype)
    _core.validate([replace(group, num_blocks=1) for group in groups])
    per_sequence = []
    for group in groups:
        whole = -(-max_tokens // group.block_size)
        # In a window group a step of up to 512 tokens comes on top of the window.
        windowed = (group.window - 1 + 512) // group.block_size + 2
        per_sequence.append(min(whole, windowed) if group.window else whole)
    if memory is None:
        assert blocks is not None
        groups = [replace(group, num_blocks=max(1, blocks * count // max(per_sequence)))
                  for group, count in zip(groups, per_sequence)]
        _core.validate(groups)
    else:
        weighted = [replace(group, num_blocks=count)
                    for group, count in zip(groups, per_sequence)]
        groups = _core.fit(weighted, parse_bytes(memory))
    block_bytes = _core.bytes_per_block(groups)
    full = [i for i, group in enumerate(groups) if not group.window] or list(range(len(groups)))
    return PoolPlan(
        groups=tuple(groups),
        num_tokens=min(groups[i].num_blocks * groups[i].block_size for i in full),
        bytes_per_token=sum(block_bytes[i] / groups[i].block_size for i in full),
        total_bytes=sum(each * group.num_blocks for each, group in zip(block_bytes, groups)))
