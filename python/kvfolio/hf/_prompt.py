# SPDX-License-Identifier: Apache-2.0
"""What a cache is made with: the prompts that are offered, and the namespace in which they are found."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import kvfolio

from ._durable import Names
from ._hooks import code_of, hooks_of, name_of
from ._namespace import Fingerprint, Known, config_fingerprint, fingerprint, known_of


@dataclasses.dataclass
class Prompt:
    """What was offered at creation: its tokens are compared with what the model is fed."""

    ids: torch.Tensor  # [rows, width], on the CPU
    hit: int  # dense positions that were found
    unused: bool = True

    @property
    def width(self) -> int:
        return self.ids.shape[1]


@dataclasses.dataclass(frozen=True)
class Namespace:
    root: Any  # kvfolio.RootKey
    #: The caller gave one, and so speaks for what cannot be seen.
    named: bool
    #: None for a bare configuration.
    model: weakref.ref[torch.nn.Module] | None
    made_of: Fingerprint | None

    def known(self) -> Known:
        """The model as it is now."""
        model = None if self.model is None else self.model()
        if model is None:
            raise RuntimeError("the model of this cache is gone")
        return known_of(model, self.made_of is not None and self.made_of.known.lasting)

    def changed(self, known: Known) -> str | None:
        """What of the model is not what it was, or None."""
        assert self.made_of is not None
        now = fingerprint(known)
        return None if now.digest == self.made_of.digest else self.made_of.difference(now)

    def check(self, known: Known) -> None:
        reason = self.changed(known)
        if reason is not None:
            raise RuntimeError(
                f"the model changed since this cache was made ({reason}): its prompts are other prompts "
                "now. Make a new cache"
            )

    def seems_unchanged(self, known: Known) -> bool:
        """Without a look at elements of tensors: for each forward, where that would take too long."""
        return self.made_of is not None and self.made_of.seems_to_hold(known)

    def unshared(self, known: Known, acting: set[Any]) -> str | None:
        """Why prompts of the model cannot be found in it, or None; `acting`: code of hooks."""
        if self.named:
            return None
        if acting:
            for hook, module in hooks_of(known):
                if code_of(hook) in acting:
                    return describe(known, hook, module)
        return replaced(known)


def replaced(known: Known) -> str | None:
    place = known.replaced_forward()
    return place and f"{place} was replaced, and what it computes is not known"


def describe(known: Known, hook: Any, module: torch.nn.Module | None) -> str:
    places = [name for name, part in zip(known.names, known.modules) if part() is module]
    return f"the hook {name_of(hook)} of {places[0] if places else 'all modules'} changes what the model computes"


def devices_of(model: torch.nn.Module) -> list[torch.device]:
    return list({parameter.device for parameter in model.parameters()})


def namespace_of(
    model: torch.nn.Module, known: Known, extra: str | bytes | None, engines: Sequence[str], names: Names | None
) -> Namespace:
    """engines: of devices; what one target wrote is not served on another, nor by another revision. `names`: those of
    a pool whose prompts are kept; else a namespace ends with its process."""
    made_of = fingerprint(known)
    digest = made_of.digest if names is None else names.root(model, made_of)
    named = b"".join(b" " + engine.encode() for engine in engines)
    root = kvfolio.RootKey(model=digest + named, tenant_salt=_salt(extra))
    return Namespace(root, extra is not None, weakref.ref(model), made_of)


def namespace_of_config(config: Any, extra: str | bytes) -> Namespace:
    return Namespace(kvfolio.RootKey(model=config_fingerprint(config), tenant_salt=_salt(extra)), True, None, None)


def _salt(extra: str | bytes | None) -> bytes:
    return extra.encode() if isinstance(extra, str) else extra or b""


_OF_PROMPTS = ("input_ids", "attention_mask", "token_type_ids")


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a prompt is made of, and all else that is not None."""
    prompt = {name: value for name, value in given.items() if name in _OF_PROMPTS}
    return prompt, {name: value for name, value in given.items() if name not in prompt and value is not None}


def prompts_of(prompt_ids: Any, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> tuple[Any, Any]:
    """Ids and mask, however they were named."""
    if prompt_ids is not None and input_ids is not None:
        raise ValueError("prompt_ids and input_ids are two names of one argument: give one of them")
    ids = input_ids if prompt_ids is None else prompt_ids
    if isinstance(ids, Mapping):  # of a tokenizer
        if "input_ids" not in ids:
            raise TypeError(f"the prompts are a {type(ids).__name__} with {', '.join(map(str, ids))}; "
                            "input_ids is needed")
        ids, more = split(ids)
        if more:
            raise TypeError(f"the prompts come with {', '.join(map(str, more))}, which a cache knows nothing of: "
                            f"give {', '.join(_OF_PROMPTS)} alone, and the rest to the model")
        if attention_mask is None:
            attention_mask = ids.get("attention_mask")
        if token_type_ids is None:
            token_type_ids = ids.get("token_type_ids")
        ids = ids["input_ids"]
    if token_type_ids is not None and bool(torch.as_tensor(token_type_ids).any()):
        raise ValueError("token_type_ids are not all 0: keys that depend on them belong to no plain prompt")
    return ids, attention_mask


def generated(output: Any) -> torch.Tensor:
    """The ids of what generate() returned."""
    if isinstance(output, Mapping):
        if "sequences" not in output:
            raise TypeError(f"a {type(output).__name__} without sequences: publish() takes what generate() "
                            "returned, or ids [rows, tokens]")
        output = output["sequences"]
    return matrix(output)


def matrix(ids: Any) -> torch.Tensor:
    """int64 [rows, tokens] on the CPU."""
    if isinstance(ids, (str, bytes)) or (isinstance(ids, (list, tuple)) and ids and isinstance(ids[0], str)):
        raise TypeError(f"the ids are text, {str(ids)[:40]!r}: tokens are needed, as of tokenizer(text)")
    tensor = ids if isinstance(ids, torch.Tensor) else torch.from_numpy(_array(ids))
    if tensor.ndim == 1:
        tensor = tensor[None]
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise ValueError(f"ids of shape {tuple(tensor.shape)}; [rows, tokens] with tokens is needed")
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise TypeError(f"ids are {tensor.dtype}; integers are needed")
    tensor = tensor.detach().to("cpu", torch.long)
    least, most = (int(bound) for bound in tensor.aminmax())
    if not 0 <= least <= most < 2**31:
        raise ValueError(f"ids lie in {least} .. {most}, allowed: 0 to 2147483647")
    return tensor


def _array(ids: Any) -> np.ndarray:
    """As NumPy reads it, which is many times faster than torch.as_tensor() of a list."""
    if isinstance(ids, (list, tuple)) and ids and isinstance(ids[0], torch.Tensor):
        return torch.stack(list(ids)).to("cpu").numpy()
    try:
        array = np.asarray(ids)
    except ValueError as error:  # rows of several lengths
        raise ValueError("the rows of ids have several lengths: pad them on the left, with attention_mask") from error
    if array.dtype == object:
        kinds = sorted({type(one).__name__ for one in array.flat})
        raise TypeError(f"ids are made of {', '.join(kinds)}; integers are needed")
    # torch has no larger unsigned numbers, and takes no array that is read-only or in another order.
    return array if array.dtype.kind in "bfc" else np.array(array, np.int64)


def prompt_of(prompt_ids: Any, attention_mask: Any) -> tuple[torch.Tensor, list[int]]:
    ids = matrix(prompt_ids)
    if attention_mask is None:
        return ids, [0] * len(ids)
    mask = torch.as_tensor(attention_mask).to("cpu").bool()
    if mask.ndim == 1:
        mask = mask[None]
    if mask.shape != ids.shape:
        raise ValueError(f"attention_mask of {tuple(mask.shape)} for prompt_ids of {tuple(ids.shape)}")
    pads = [int((~row).sum()) for row in mask]
    for number, (row, pad) in enumerate(zip(mask, pads)):
        if pad == len(row):
            raise ValueError(f"row {number} of attention_mask is all padding")
        if bool((~row[pad:]).any()):
            column = int((~row & (row.long().cumsum(0) > 0)).nonzero()[0])
            raise ValueError(
                f"row {number} is not padded on the left alone: attention_mask is 0 at position {column}. "
                "Take away what fills the row up behind the end of its text, and put pads in front"
            )
    return ids, pads
