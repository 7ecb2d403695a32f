# SPDX-License-Identifier: Apache-2.0
"""The rows of a cache: one sequence of the pool for each.

Rows are equally long as the model sees them; a row that is padded on the left holds fewer tokens.
Positions of a row are *dense*, pads included; those of its sequence are not. All calls expect the
pool's lock to be held.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Sequence

import numpy as np

if TYPE_CHECKING:
    from ._pool import Pool


@dataclasses.dataclass
class Row:
    sequence: int
    pads: int = 0
    num_named: int = 0  # leading tokens of the sequence that have their ids
    num_drafts: int = 0  # tokens of the last forward that a crop may still take back

    def tokens_at(self, dense: int) -> int:
        """Tokens of the sequence in front of a dense position."""
        return max(0, dense - self.pads)


class Rows:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.items: list[Row] = []

    def __len__(self) -> int:
        return len(self.items)

    @property
    def pads(self) -> np.ndarray:
        return np.array([row.pads for row in self.items], dtype=np.int64)

    def fork(self, row: Row) -> Row:
        child = self._pool.manager.fork(row.sequence)
        return dataclasses.replace(row, sequence=child)

    def settle(self) -> None:
        """Keeps all drafts: windows move, and the sequences may be appended to and forked."""
        for row in self.items:
            if row.num_drafts:
                self._pool.manager.accept(row.sequence, row.num_drafts)
                row.num_drafts = 0

    def derive(self, sources: Sequence[int]) -> None:
        """Row i becomes a continuation of row sources[i]. A row that is used once moves; a row that
        is used more often is forked; the others are closed. All or nothing."""
        self.settle()
        manager = self._pool.manager
        moved: set[int] = set()
        made: list[Row] = []
        result: list[Row] = []
        try:
            for source in sources:
                if source in moved:
                    made.append(self.fork(self.items[source]))
                    result.append(made[-1])
                else:
                    moved.add(source)
                    result.append(self.items[source])
        except Exception:
            for row in made:
                manager.close(row.sequence)
            raise
        for index, row in enumerate(self.items):
            if index not in moved:
                manager.close(row.sequence)
        self.items = result

    def crop(self, dense: int, length: int) -> None:
        """Forgets what lies from a dense position on; `length` is the dense length until now."""
        for row in self.items:
            keep, have = row.tokens_at(dense), row.tokens_at(length)
            if keep == have:
                continue
            drafts = row.num_drafts
            accepted = have - drafts
            if drafts and keep >= accepted:
                self._pool.manager.accept(row.sequence, keep - accepted)
            else:
                # A window may have moved past what the position reads; then this raises.
                self._pool.manager.truncate(row.sequence, keep)
            row.num_drafts = 0
            row.num_named = min(row.num_named, keep)

    def restart(self) -> None:
        """Empties every row; the sequences stay."""
        for row in self.items:
            self._pool.manager.truncate(row.sequence, 0)
            row.num_named = row.num_drafts = 0

    def close(self) -> None:
        items, self.items = self.items, []
        for row in items:
            self._pool.manager.close(row.sequence)
