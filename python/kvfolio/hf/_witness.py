# SPDX-License-Identifier: Apache-2.0
"""What a model is really fed.

A cache sees keys and values, never tokens. Its caller may offer the wrong prompt, and the library
itself feeds a whole prompt onto a filled cache in some of its loops (prompt lookup and assistants in
5.23, chunked prefill in 4.57). So a cache that knows its model watches the decoder: a hook in front
of its forward shows the tokens, positions and mask that are about to be computed. What does not fit
the cache is refused before anything is written, and only tokens that were really fed become findable.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Feed:
    """The arguments of one forward, as far as they concern a cache."""

    ids: torch.Tensor | None  # [rows, tokens]; None if the model is fed embeddings
    positions: torch.Tensor | None  # [rows or 1, tokens]
    first_position: int | None  # of 4.57's cache_position
    mask: Any


def watch(model: Any) -> None:
    """Sees to it that forwards of the model's decoder show themselves to the caches they get."""
    decoder = _decoder_of(model)
    if _before_forward not in decoder._forward_pre_hooks.values():
        decoder.register_forward_pre_hook(_before_forward, with_kwargs=True)


def _decoder_of(model: Any) -> torch.nn.Module:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    decoder = base.get_decoder() if hasattr(base, "get_decoder") else None
    if decoder is None or decoder is base:
        decoder = getattr(base, base.base_model_prefix, base)
    assert isinstance(decoder, torch.nn.Module)
    return decoder


def _before_forward(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    core = getattr(kwargs.get("past_key_values"), "_core", None)
    if core is None:
        return
    ids = kwargs.get("input_ids", args[0] if args else None)
    cache_position = kwargs.get("cache_position")
    core.before_forward(
        Feed(
            ids=ids if kwargs.get("inputs_embeds") is None else None,
            positions=kwargs.get("position_ids"),
            first_position=None if cache_position is None else int(cache_position[0]),
            mask=kwargs.get("attention_mask"),
        )
    )
