# SPDX-License-Identifier: Apache-2.0
"""What a model is really fed.

A cache sees keys and values, never tokens. Its caller may offer the wrong prompt, and the library
itself feeds a whole prompt onto a filled cache in some of its loops (prompt lookup and assistants in
5.x, chunked prefill in 4.57). So a cache that knows its model watches it, at two places:

- a hook in front of the decoder's forward shows the tokens, positions and mask that are about to be
  computed, and every other argument, whether by name or by place;
- generate() hands its whole text to ``prepare_inputs_for_generation`` and feeds only what the cache lacks:
  there the text is seen that is taken for computed.

What does not fit the cache is refused before anything is written, and only tokens that were really fed
become findable. A cache is passed as ``past_key_values`` until transformers 5.23 and as ``cache`` since
5.24, so it is known by its type.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import weakref
from typing import Any, Callable, Mapping, NamedTuple

import torch
from transformers import cache_utils

from ._hooks import enter, leave
from ._keywords import changing
from ._layers import SINCE_5


@dataclasses.dataclass(frozen=True)
class Feed:
    """The arguments of one forward, as far as they concern a cache."""

    ids: torch.Tensor | None  # [rows, tokens]; None if the model is fed embeddings
    positions: torch.Tensor | None  # [rows or 1, tokens]
    cache_position: torch.Tensor | None  # of 4.57: [tokens]
    mask: Any
    #: An argument that may make other keys than those of the tokens, as "name=value".
    changing: str | None
    #: The forward gives keys and values of its layers to its caller.
    hands_out_keys: bool


class Owner:
    """The decoder that a cache was made for: keys of one model are no keys of another."""

    def __init__(self, decoder: torch.nn.Module) -> None:
        self._decoder = weakref.ref(decoder)
        self._name = type(decoder).__name__

    def watches(self, module: torch.nn.Module) -> bool:
        """The module is the decoder. False if one of the two lies in the other: then the decoder's own
        forward is seen, too. Raises for any other module."""
        decoder = self._decoder()
        if module is decoder:
            return True
        if decoder is not None and (_holds(module, decoder) or _holds(decoder, module)):
            return False
        raise ValueError(
            f"this cache was made for another model than the {type(module).__name__} that runs: its "
            f"{self._name} is {'gone' if decoder is None else 'another object'}, and keys of one model are wrong "
            "in another. Make a PagedCache with the model that runs"
        )


class Parts(NamedTuple):
    decoder: weakref.ref[torch.nn.Module]
    kinds: tuple[type, ...]  # whose generate() may get a cache


def parts_of(model: Any) -> Parts:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return Parts(weakref.ref(_decoder_of(base)), (type(model), type(base)))


def watch(parts: Parts) -> Owner:
    """Sees to it that forwards of the model's decoder, and generate(), show themselves to the caches that
    they get."""
    decoder = parts.decoder()
    assert decoder is not None
    if _before_forward not in decoder._forward_pre_hooks.values():
        decoder.register_forward_pre_hook(_before_forward, with_kwargs=True)
    if _after_forward not in decoder._forward_hooks.values():
        decoder.register_forward_hook(_after_forward, always_call=True)
    for kind in parts.kinds:
        _watch_generation(kind)
    return Owner(decoder)


def _decoder_of(base: Any) -> torch.nn.Module:
    decoder = base.get_decoder() if hasattr(base, "get_decoder") else None
    if decoder is None or decoder is base:
        decoder = getattr(base, base.base_model_prefix, base)
    assert isinstance(decoder, torch.nn.Module)
    return decoder


def _before_forward(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    core = _core_in(args, kwargs)
    enter(module, core)
    if core is None or (core.owner is not None and not core.owner.watches(module)):
        return
    names, defaults = _parameters_of(module)
    given = _given(names, args, kwargs)
    core.before_forward(
        Feed(
            ids=given.get("input_ids") if given.get("inputs_embeds") is None else None,
            positions=given.get("position_ids"),
            cache_position=given.get("cache_position"),
            mask=given.get("attention_mask"),
            changing=changing(given, defaults, getattr(module, "config", None)),
            hands_out_keys=bool(given.get("return_shared_kv_states")),
        )
    )


def _after_forward(module: torch.nn.Module, *_: Any) -> None:
    """Also behind a forward that died: the next one in this thread is another."""
    leave(module)


def _watch_generation(kind: type) -> None:
    """In the class, since an entry of a model that refers to the model would keep it alive."""
    inner = getattr(kind, "prepare_inputs_for_generation", None)
    if inner is None or getattr(inner, "_kvfolio", False):
        return

    @functools.wraps(inner)
    def prepare_inputs_for_generation(self: Any, *args: Any, **kwargs: Any) -> Any:
        core = _core_in(args, kwargs)
        if core is not None:
            given = _given(_parameters(inner).names, args, kwargs)
            if _is_whole_text(given):
                core.before_generation(given["input_ids"])
        return inner(self, *args, **kwargs)

    prepare_inputs_for_generation._kvfolio = True  # type: ignore[attr-defined]
    kind.prepare_inputs_for_generation = prepare_inputs_for_generation  # type: ignore[attr-defined]


def _is_whole_text(given: Mapping[str, Any]) -> bool:
    """The text that generate() begins with; no chunk of it, and not what was generated behind embeddings."""
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    if not isinstance(ids, torch.Tensor) or given.get("inputs_embeds") is not None:
        return False
    if SINCE_5:  # a chunk comes without next_sequence_length
        return bool(given.get("is_first_iteration")) and "next_sequence_length" in given
    return isinstance(mask, torch.Tensor) and mask.shape == ids.shape


def _core_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The core of the PagedCache among these arguments, or None."""
    for value in itertools.chain(kwargs.values(), args):
        if isinstance(value, cache_utils.Cache):
            return getattr(value, "_core", None)
    return None


def _given(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names, without its cache. What has no name goes by its place."""
    by_place = {names[place] if place < len(names) else f"argument {place + 1}": value
                for place, value in enumerate(args)}
    return {name: value for name, value in (by_place | dict(kwargs)).items()
            if not isinstance(value, cache_utils.Cache)}


class _Parameters(NamedTuple):
    names: tuple[str, ...]  # by place, without self
    defaults: dict[str, Any]


def _parameters_of(module: torch.nn.Module) -> _Parameters:
    own = vars(module).get("forward")  # of an instance: accelerate's
    if own is None:
        return _parameters(type(module).forward)
    return _read_parameters(own, skip=0)


@functools.lru_cache(maxsize=1024)
def _parameters(method: Callable[..., Any]) -> _Parameters:
    return _read_parameters(method, skip=1)


def _read_parameters(function: Callable[..., Any], skip: int) -> _Parameters:
    """Through decorators, as far as they say what they wrap."""
    known = list(inspect.signature(function).parameters.values())[skip:]
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(one.name for one in known if one.kind in by_place)
    return _Parameters(names, {one.name: one.default for one in known if one.default is not one.empty})


def _holds(module: torch.nn.Module, part: torch.nn.Module) -> bool:
    return any(one is part for one in module.modules())
