# SPDX-License-Identifier: Apache-2.0
"""The rows of a cache: one sequence of the pool for each.

Rows are equally long as the model sees them; a row that is padded on the left holds fewer tokens.
Positions of a row are *dense*, pads included; those of its sequence are not.

``Rows`` is a value that the cache replaces at once, since an interrupt (Ctrl-C) may come between any two
calls: what grows changes the manager first and then the value, what shrinks changes the value first. So the
manager never has less than the value says, and what it has beyond it is taken back (Pool.tidy). All calls
that take a manager expect the pool's lock to be held.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable, Sequence

import numpy as np
import torch

import kvfolio

from ._ids import SeenIds


@dataclasses.dataclass
class Row:
    """The numbers say what the manager knows; reread() asks it again."""

    sequence: int
    pads: int = 0
    num_named: int = 0  # leading tokens of the sequence that have their ids
    num_drafts: int = 0  # tokens of the last forward that a crop may still take back

    def tokens_at(self, dense: int) -> int:
        """Tokens of the sequence in front of a dense position."""
        return max(0, dense - self.pads)

    def cut(self, manager: kvfolio.Manager, keep: int) -> None:
        """Forgets all but `keep` tokens. A window may have moved past what the position reads; then this
        raises."""
        info = manager.info(self.sequence)
        if info.length > keep:
            if keep >= info.accepted_length:
                manager.accept(self.sequence, keep - info.accepted_length)
            else:
                manager.truncate(self.sequence, keep)
            self.num_drafts = 0
        self.num_named = min(self.num_named, keep)

    def reread(self, manager: kvfolio.Manager) -> int:
        """Returns its length."""
        info = manager.info(self.sequence)
        self.num_drafts = info.length - info.accepted_length
        self.num_named = info.length - info.num_unnamed
        return info.length


@dataclasses.dataclass(frozen=True)
class Rows:
    items: tuple[Row, ...] = ()
    length: int = 0  # dense: as the model counts, pads included
    seen: SeenIds = dataclasses.field(default_factory=SeenIds)
    prompt_rows: tuple[int, ...] = ()  # of the offered prompts, if there are any

    def __len__(self) -> int:
        return len(self.items)

    @functools.cached_property
    def pads(self) -> np.ndarray:
        return np.array([row.pads for row in self.items], dtype=np.int64)

    @functools.cached_property
    def padded(self) -> bool:
        return any(row.pads for row in self.items)

    @functools.cached_property
    def sequences(self) -> np.ndarray:
        return np.array([row.sequence for row in self.items], dtype=np.uint64)

    # ---- other values ----

    def cropped(self, length: int) -> Rows:
        length = min(length, self.length)
        return dataclasses.replace(self, length=length, seen=self.seen.cropped(length))

    def grown(self, ids: torch.Tensor | None, count: int) -> Rows:
        seen = self.seen.appended(ids, len(self.items), count)
        return self._like(Rows(self.items, self.length + count, seen, self.prompt_rows))

    def _like(self, other: Rows) -> Rows:
        """With what was worked out of these items already."""
        for name in ("pads", "padded", "sequences"):
            if name in vars(self):
                vars(other)[name] = vars(self)[name]
        return other

    def derived(self, manager: kvfolio.Manager, sources: Sequence[int]) -> Rows:
        """Row i continues row sources[i]: a row that is used once moves, one that is used more often is
        forked. Rows that are not used stay open; see without()."""
        self.settle(manager)
        moved: set[int] = set()
        items = []
        for source in sources:
            row = self.items[source]
            items.append(row if source not in moved else self._fork(manager, row))
            moved.add(source)
        prompt_rows = tuple(self.prompt_rows[source] for source in sources) if self.prompt_rows else ()
        return Rows(tuple(items), self.length, self.seen.selected(sources), prompt_rows)

    def forked(self, manager: kvfolio.Manager) -> Rows:
        self.settle(manager)
        items = tuple(self._fork(manager, row) for row in self.items)
        return Rows(items, self.length, self.seen.copy(), self.prompt_rows)

    def _fork(self, manager: kvfolio.Manager, row: Row) -> Row:
        return dataclasses.replace(row, sequence=manager.fork(row.sequence))

    # ---- what the manager has ----

    def settle(self, manager: kvfolio.Manager) -> None:
        """Keeps all drafts: windows move, and the sequences may be appended to and forked."""
        for row in self.items:
            if row.num_drafts:
                manager.accept(row.sequence, row.num_drafts)
                row.num_drafts = 0

    def cut(self, manager: kvfolio.Manager) -> None:
        """The manager forgets what lies behind the length."""
        for row in self.items:
            row.cut(manager, row.tokens_at(self.length))

    def close(self, manager: kvfolio.Manager, but: Rows | None = None) -> None:
        """Gives the sequences back, except those that are in `but`, too."""
        kept = {row.sequence for row in but.items} if but is not None else ()
        for row in self.items:
            if row.sequence not in kept:
                manager.close(row.sequence)

    def mend(self, manager: kvfolio.Manager, end: int, known: Callable[[int], bool]) -> bool:
        """After an interrupt: takes back what the manager has beyond the dense position `end`, and
        rereads the numbers. False if something is missing."""
        for row in self.items:
            if not known(row.sequence):
                return False
            try:
                row.cut(manager, row.tokens_at(end))
            except kvfolio.FailedPrecondition:  # a window has moved on
                return False
            if row.reread(manager) != row.tokens_at(end):
                return False
        return True
