# SPDX-License-Identifier: Apache-2.0
"""What a cache is made with: the prompts that are offered, and the namespace in which they are found."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Callable

import torch

import kvfolio

from ._namespace import Fingerprint, config_fingerprint, fingerprint


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
    #: The model's fingerprint now, or None for a bare configuration.
    current: Callable[[], Fingerprint] | None
    made_of: Fingerprint | None

    def changed(self) -> str | None:
        """What of the model is not what it was, or None."""
        if self.current is None or self.made_of is None:
            return None
        now = self.current()
        return None if now.digest == self.made_of.digest else self.made_of.difference(now)

    def check(self) -> None:
        reason = self.changed()
        if reason is not None:
            raise RuntimeError(
                f"the model changed since this cache was made ({reason}): its prompts are other prompts "
                "now. Make a new cache"
            )

    def seems_unchanged(self) -> bool:
        """Without a look at elements of tensors: for each forward, where that would take too long."""
        return self.made_of is None or self.made_of.seems_to_hold()


def namespace_of(model: Any, is_model: bool, extra: str | bytes | None) -> Namespace:
    salt = extra.encode() if isinstance(extra, str) else extra or b""
    if not is_model:
        return Namespace(kvfolio.RootKey(model=config_fingerprint(model), tenant_salt=salt), None, None)
    reference = weakref.ref(model)

    def current() -> Fingerprint:
        alive = reference()
        if alive is None:
            raise RuntimeError("the model of this cache is gone")
        return fingerprint(alive)

    made_of = current()
    return Namespace(kvfolio.RootKey(model=made_of.digest, tenant_salt=salt), current, made_of)


def matrix(ids: Any) -> torch.Tensor:
    tensor = torch.as_tensor(ids).detach()
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise TypeError(f"ids are {tensor.dtype}; integers are needed")
    tensor = tensor.to("cpu", torch.long)
    if tensor.numel() > 0 and not 0 <= int(tensor.min()) <= int(tensor.max()) < 2**31:
        raise ValueError(f"ids lie in {int(tensor.min())} .. {int(tensor.max())}, allowed: 0 to 2147483647")
    if tensor.ndim == 1:
        tensor = tensor[None]
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise ValueError(f"ids of shape {tuple(tensor.shape)}; [rows, tokens] with tokens is needed")
    return tensor


def prompt_of(prompt_ids: Any, attention_mask: torch.Tensor | None) -> tuple[torch.Tensor, list[int]]:
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
