# SPDX-License-Identifier: Apache-2.0
"""The tokens that a cache has seen, row by row; -1 where it could not see one."""

from __future__ import annotations

from typing import Sequence

import torch


class SeenIds:
    def __init__(self) -> None:
        self._ids = torch.empty(0, 0, dtype=torch.long)
        self._length = 0

    @property
    def ids(self) -> torch.Tensor:
        """[rows, length]"""
        return self._ids[:, : self._length]

    def append(self, ids: torch.Tensor | None, rows: int, count: int) -> None:
        """`ids` [rows, count], or None for tokens that were not seen."""
        end = self._length + count
        if self._length == 0 or self._ids.shape[0] != rows or self._ids.shape[1] < end:
            grown = torch.full((rows, max(64, 2 * end)), -1, dtype=torch.long)
            if self._length:
                grown[:, : self._length] = self.ids
            self._ids = grown
        self._ids[:, self._length : end] = -1 if ids is None else ids.detach().to("cpu")
        self._length = end

    def select(self, rows: Sequence[int]) -> None:
        self._ids = self._ids[list(rows)] if self._length else self._ids

    def crop(self, length: int) -> None:
        self._length = min(self._length, length)

    def copy(self) -> SeenIds:
        twin = SeenIds()
        twin._ids, twin._length = self._ids.clone(), self._length
        return twin
