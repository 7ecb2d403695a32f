# SPDX-License-Identifier: Apache-2.0
"""The tokens that a cache has seen, row by row; -1 where it could not see one."""

from __future__ import annotations

from typing import Sequence

import torch


class SeenIds:
    """A value: what changes it returns another one. Two of them may share their memory, since each
    reads no further than its own length."""

    def __init__(self, memory: torch.Tensor | None = None, length: int = 0) -> None:
        self._memory = torch.empty(0, 0, dtype=torch.long) if memory is None else memory
        self._length = length

    @property
    def ids(self) -> torch.Tensor:
        """[rows, length]"""
        return self._memory[:, : self._length]

    def appended(self, ids: torch.Tensor | None, rows: int, count: int) -> SeenIds:
        """`ids` [rows, count], or None for tokens that were not seen."""
        end, memory = self._length + count, self._memory
        if self._length == 0 or memory.shape[0] != rows or memory.shape[1] < end:
            memory = torch.full((rows, max(64, 2 * end)), -1, dtype=torch.long)
            if self._length:
                memory[:, : self._length] = self.ids
        memory[:, self._length : end] = -1 if ids is None else ids.detach()
        return SeenIds(memory, end)

    def selected(self, rows: Sequence[int]) -> SeenIds:
        return SeenIds(self._memory[list(rows)] if self._length else None, self._length)

    def cropped(self, length: int) -> SeenIds:
        return SeenIds(self._memory, min(self._length, length))

    def copy(self) -> SeenIds:
        return SeenIds(self._memory.clone(), self._length)
