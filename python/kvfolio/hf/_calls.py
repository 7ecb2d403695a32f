# SPDX-License-Identifier: Apache-2.0
"""Calls that transformers makes on every layer of a cache, one layer after the other.

The layers share their rows, so the first layer that brings a call acts for all; the others must bring the
same calls in the same order.
"""

from __future__ import annotations

from typing import Any

import torch


class LayerCalls:
    def __init__(self, layers: list[int]) -> None:
        self._layers = layers
        self.forget()

    def forget(self) -> None:
        self._calls: list[tuple[str, Any]] = []
        self._done = dict.fromkeys(self._layers, 0)

    def is_new(self, layer: int, name: str, argument: Any) -> bool:
        """Notes the call if no layer brought it yet; otherwise it must be the one that another brought."""
        done = self._done[layer]
        if done == len(self._calls):
            self._calls.append((name, argument))
            return True
        known, own = self._calls[done]
        if known != name or not _same(own, argument):
            raise RuntimeError(
                f"layer {layer} is asked for {name}({argument}) where another was asked for "
                f"{known}({own}): layers of one cache change together"
            )
        return False

    def done(self, layer: int) -> None:
        self._done[layer] += 1
        if all(count == len(self._calls) for count in self._done.values()):
            self.forget()

    def check(self) -> None:
        """Raises if some layers brought a call and others did not."""
        if self._calls:
            behind = sum(count < len(self._calls) for count in self._done.values())
            raise RuntimeError(f"{self._calls[-1][0]} was called on some layers and not on {behind} others")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one is other or torch.equal(one, other)
    return bool(one == other)
