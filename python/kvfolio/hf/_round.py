# SPDX-License-Identifier: Apache-2.0
"""One forward of a model through a cache: a step of the pool, and the arrays of its plan.

The first layer's update opens the round, the last one's completes it. In between the step is in
flight, so other caches of the pool may take steps of their own.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import torch

from ._store import Span


@dataclasses.dataclass
class GroupRound:
    """Of one group of layers; row r of the forward uses table[r] and writes to slots[r]."""

    table: np.ndarray  # int32 [rows, columns]
    slots: np.ndarray  # int32 [rows, tokens]; -1: a pad, or a row that another one writes

    @functools.cached_property
    def flat_slots(self) -> np.ndarray:
        """[rows * tokens]; asked for when `slots` is complete."""
        return self.slots.reshape(-1)


@dataclasses.dataclass
class Round:
    ticket: int
    start: int  # dense length before
    count: int  # tokens of a row, pads included
    pads: np.ndarray  # int64 [rows]
    owner: np.ndarray  # int64 [rows]: the row of the cache that each row of the forward belongs to
    groups: list[GroupRound]
    ids: torch.Tensor | None  # [rows, tokens] that it computes, if they are known
    thread: int
    #: A model's forward, and no update() by hand.
    watched: bool
    written: set[int] = dataclasses.field(default_factory=set)
    #: The layer whose new keys went to our attention and were not attended to yet.
    unattended: int | None = None
    #: By group and number of queries: what the kernels take for rows without hidden pads, made by the first
    #: layer.
    batches: dict[tuple[int, int], Any] = dataclasses.field(default_factory=dict)
    _spans: dict[int, list[Span]] = dataclasses.field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + self.count

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """int32 [rows]: tokens of each row's sequence, those of this forward included."""
        result: np.ndarray = np.maximum(self.end - self.pads, 0).astype(np.int32)
        return result

    @functools.cached_property
    def uneven(self) -> bool:
        """Some row has pads among these tokens."""
        return bool(self.pads.any() and (self.num_new != self.count).any())

    @functools.cached_property
    def num_new(self) -> np.ndarray:
        """int64 [rows]: those that this forward computes, pads apart."""
        result: np.ndarray = np.maximum(self.end - self.pads, 0) - np.maximum(self.start - self.pads, 0)
        return result

    def first_kept(self, window: int) -> int:
        """The dense position from which a layer hands keys to attention: what the first new token
        reads."""
        return max(0, self.start - window + 1) if window else 0

    def spans(self, group: int, window: int) -> list[Span]:
        """Of a group, whose layers have one window."""
        found = self._spans.get(group)
        if found is None:
            first = self.first_kept(window)
            found = self._spans[group] = spans_of(self.groups[group].table, self.pads, first, self.end)
        return found


def spans_of(table: np.ndarray, pads: np.ndarray, first: int, end: int) -> list[Span]:
    result = []
    for row, pad in enumerate(pads.tolist()):
        begin, stop = max(0, first - pad), max(0, end - pad)
        result.append(Span(table[row], begin, stop, pads=end - first - (stop - begin)))
    return result
