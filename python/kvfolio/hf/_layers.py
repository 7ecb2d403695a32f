# SPDX-License-Identifier: Apache-2.0
"""What each layer of a model keeps in a cache, and which models are refused.

The configuration decides, read as the library's own DynamicCache reads it. A layer is named in the
refusal, since a model that mixes kinds fails by its rarest layer.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers import cache_utils

#: transformers 5 asks layers by query length and crops by what to drop; 4.57 by positions and by
#: what to keep.
SINCE_5 = hasattr(cache_utils.CacheLayerMixin, "is_croppable")

_FULL = ("full_attention",)
_WINDOW = ("sliding_attention",)
_EMPTY = ("dummy", "moe", "mlp")


class UnsupportedModel(ValueError):
    """The model keeps something else than keys and values of tokens, or not for all of them."""


@dataclasses.dataclass(frozen=True)
class LayerKind:
    """``window`` is the number of tokens that a query reads, itself included; 0: all of them."""

    window: int = 0


def layer_kinds(config: Any) -> list[LayerKind | None]:
    """The kind of each entry of a cache's ``layers``; None for a layer that keeps nothing.

    Raises UnsupportedModel, which names the layer and its type.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(
            f"{config.model_type} has an encoder: its cross-attention is no prefix of tokens"
        )
    decoder = config.get_text_config(decoder=True)
    _check_causal(decoder)
    kinds: list[LayerKind | None] = []
    for index, (name, window) in enumerate(_layer_types(decoder)):
        if name in _EMPTY:
            kinds.append(None)
        elif name in _FULL:
            kinds.append(LayerKind())
        elif name in _WINDOW:
            if not isinstance(window, int) or window < 1:
                raise UnsupportedModel(f"layer {index} is {name} with a window of {window!r}")
            kinds.append(LayerKind(window))
        else:
            raise UnsupportedModel(
                f"layer {index} of {decoder.model_type} is {name!r}: only full_attention and "
                "sliding_attention can be cached by blocks. A hit on the other layers alone would "
                "give wrong tokens"
            )
    if not any(kinds):
        raise UnsupportedModel(f"{decoder.model_type} has no layer that keeps keys and values")
    return kinds


def _check_causal(decoder: Any) -> None:
    """A key of a token that reads later ones is another with each text behind it."""
    both_ways = getattr(decoder, "use_bidirectional_attention", None)
    if both_ways is True or both_ways == "all":
        raise UnsupportedModel(
            f"use_bidirectional_attention is {both_ways!r} in {decoder.model_type}: its tokens read later ones, "
            "so no prefix has keys of its own"
        )
    if getattr(decoder, "is_causal", True) is False:
        raise UnsupportedModel(f"is_causal is False in {decoder.model_type}: its tokens read later ones, so no "
                               "prefix has keys of its own")


def check_model(model: Any) -> None:
    """Refuses what the configuration does not tell."""
    for part in model.modules():
        if getattr(part, "_is_stateful", False):
            raise UnsupportedModel(
                f"{type(part).__name__} keeps a recurrent state, which no prefix of blocks holds"
            )


def reads_ahead(model: Any) -> str | None:
    """Why a key depends on later tokens, or None. The attention modules say it."""
    for name, part in model.named_modules():
        if vars(part).get("is_causal") is False:
            return f"{name} is not causal: its tokens read later ones, so no prompt can be shared"
    return None


def dropout_at_work(model: Any) -> str | None:
    """Why the model never computes the same keys twice, or None."""
    for name, part in model.named_modules():
        if not part.training:
            continue
        is_dropout = isinstance(part, torch.nn.modules.dropout._DropoutNd)
        for attribute, value in vars(part).items():
            if (attribute == "p" and is_dropout) or "dropout" in attribute:
                if isinstance(value, (int, float)) and value > 0:
                    return (
                        f"{name or 'the model'} is in training mode with {attribute} = {value}, so its keys "
                        "are others each time and no prompt can be shared: call model.eval()"
                    )
    return None


def _layer_types(decoder: Any) -> list[tuple[str, Any]]:
    if hasattr(cache_utils, "get_layer_types_and_kwargs"):
        names, arguments = cache_utils.get_layer_types_and_kwargs(decoder)
        found = [(name, given.get("sliding_window")) for name, given in zip(names, arguments)]
    else:
        window = getattr(decoder, "sliding_window", None)
        chunk = getattr(decoder, "attention_chunk_size", None)
        names = getattr(decoder, "layer_types", None)
        if names is None:
            kind = "sliding_attention" if window else "chunked_attention" if chunk else "full_attention"
            names = [kind] * decoder.num_hidden_layers
        shared = getattr(decoder, "num_kv_shared_layers", 0) or 0
        found = [(name, window) for name in (names[:-shared] if shared else names)]
    # Jamba, Zamba, Bamba: the recurrent layers stand in a list of another name.
    blocks = getattr(decoder, "layers_block_type", None)
    if blocks is not None:
        for index, name in enumerate(blocks):
            if "attention" not in name and name not in _EMPTY:
                raise UnsupportedModel(f"layer {index} of {decoder.model_type} is {name!r}")
    return found


def rope_depends_on_length(config: Any) -> str | None:
    """The type of a rotary embedding that turns a key by the length of its prompt, or None.

    Keys of such a model are right only beside prompts of the same length.
    """
    decoder = config.get_text_config(decoder=True)
    given = getattr(decoder, "rope_parameters", None) or getattr(decoder, "rope_scaling", None) or {}
    nested = [part for part in given.values() if isinstance(part, dict)]
    for part in [given, *nested]:
        name = part.get("rope_type", part.get("type"))
        if name in ("dynamic", "longrope", "su", "yarn_dynamic"):
            return str(name)
    return None
