# SPDX-License-Identifier: Apache-2.0
"""What the layers of one cache share: rows, length, and the forward that is under way.

Transformers calls each layer for everything: update, crop, reorder_cache, ... The first layer that
brings a call does it for all of them, the others are checked against it. An update opens a round (see
_round.py), which the last layer's update completes; a round that never gets there is rolled back, so
that the cache stands where it stood before that forward.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Sequence

import numpy as np
import torch

from ..errors import FailedPrecondition
from ._attention import Place
from ._calls import LayerCalls
from ._checks import check_feed, check_text
from ._ids import SeenIds
from ._layers import LayerKind
from ._pool import Leavings, Pool
from ._prompt import Namespace, Prompt
from ._round import GroupRound, Round, spans_of
from ._rows import Row, Rows
from ._witness import Feed, Owner


class Core:
    def __init__(self, pool: Pool, kinds: list[LayerKind | None], namespace: Namespace, paged: bool,
                 owner: Owner | None):
        self.pool = pool
        self.kinds = kinds
        self.namespace = namespace
        self.paged = paged
        #: What may run with it; None: it was made with a bare configuration.
        self.owner = owner
        self.rows = Rows(pool)
        self.length = 0  # dense: as the model counts, pads included
        self.prompt: Prompt | None = None
        self.prompt_rows: list[int] = []
        self.seen = SeenIds()
        self.round: Round | None = None
        self.closed = False
        self._last: Round | None = None
        self._feed: Feed | None = None
        self._fed_ids: torch.Tensor | None = None
        #: Why publish() must refuse: a forward whose keys belong to no plain prompt.
        self._unpublishable: str | None = None
        self._storing = [index for index, kind in enumerate(kinds) if kind is not None]
        self._calls = LayerCalls(self._storing)

    # ---- prompts ----

    def offer(self, ids: torch.Tensor, pads: Sequence[int], look_up: bool) -> None:
        """Opens a row for each prompt; all of them stand at the shortest hit then, or at nothing."""
        tokens = [ids[row, pad:].numpy().astype(np.int32) for row, pad in enumerate(pads)]
        hits = []
        with self.pool.locked():
            try:
                for prompt, pad in zip(tokens, pads):
                    sequence, cached = self._open(prompt, look_up)
                    self.rows.items.append(Row(sequence, pad))
                    hits.append(pad + cached)
                hit = min(hits)
                if hit <= min(pads, default=0):
                    hit = 0  # pads alone are nothing found
                hit = self._stand_at(hit, hits)
            except Exception:
                self.rows.close()
                raise
        self.prompt = Prompt(ids, hit)
        self.prompt_rows = list(range(len(tokens)))
        self.length = hit
        self.seen.append(ids[:, :hit], len(tokens), hit)

    def _stand_at(self, hit: int, hits: Sequence[int]) -> int:
        """Takes all rows back to the hit; to nothing if a window holds no more what it reads there."""
        try:
            for row, found in zip(self.rows.items, hits):
                row.num_named = row.tokens_at(hit)
                if found != hit:
                    self.pool.manager.truncate(row.sequence, row.num_named)
            return hit
        except FailedPrecondition:
            self.rows.restart()
            return 0

    def _open(self, tokens: np.ndarray, look_up: bool) -> tuple[int, int]:
        opened = self.pool.manager.open(
            tokens, root=self.namespace.root, late_names=True, look_up=look_up
        )
        return opened[0], opened[1]

    def restart(self) -> None:
        """Forgets all tokens of the rows, so that they may be computed again."""
        with self.pool.locked():
            self.rows.restart()
        self.length = 0
        self.seen.crop(0)

    def go_back(self, length: int) -> None:
        """Forgets the tokens from there on: the same ones are about to be computed again."""
        if length == 0:
            self.restart()
        else:
            self.crop(length)

    def naming(self) -> bool:
        """The next forward computes tokens of the offered prompt."""
        return self.prompt is not None and self.length < self.prompt.width

    def before_forward(self, feed: Feed) -> None:
        """The model is about to run; see _checks.py for what is refused."""
        self.check_open()
        if self.round is not None:
            self._roll_back()
        self._calls.check()
        self._feed = feed
        check_feed(self, feed)
        if not (self._unpublishable or self.naming() or self.namespace.seems_unchanged()):
            reason = self.namespace.changed()  # also if it is undone before publish()
            self._unpublishable = reason and f"to a model that had changed ({reason})"

    def before_generation(self, ids: torch.Tensor) -> None:
        """generate() begins with this text [rows, tokens]."""
        self.check_open()
        if self.round is not None:
            self._roll_back()
        check_text(self, ids)

    def leave_plain(self, reason: str) -> None:
        """The next forward's keys are not those of its tokens alone."""
        if self.naming():
            raise ValueError(f"prompt_ids were offered, but the decoder is fed {reason}")
        self._unpublishable = reason

    def rows_for(self, rows: int) -> int:
        """How many rows of a forward belong to each row of the cache."""
        have = len(self.rows)
        if have == 0:
            return 1
        if rows % have or rows < have:
            raise ValueError(f"a forward of {rows} rows on a cache of {have}")
        return rows // have

    # ---- a forward ----

    def update(self, index: int, keys: torch.Tensor, values: torch.Tensor,
               first_position: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        self.check_open()
        if self.round is None:
            self._begin(keys, first_position)
        elif index in self.round.written:
            done, of = len(self.round.written), len(self._storing)
            self._roll_back()
            raise RuntimeError(
                f"layer {index} came again after {done} of {of} layers: the last forward stopped there. "
                "It was rolled back; call the model again"
            )
        try:
            return self._write(index, keys, values)
        except Exception:
            self._roll_back()
            raise

    def _write(self, index: int, keys: torch.Tensor,
               values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        now, kind = self.round, self.kinds[index]
        assert now is not None and kind is not None
        if (keys.shape[0], keys.shape[2]) != (len(now.owner), now.count):
            raise ValueError(
                f"layer {index} has {keys.shape[0]} rows of {keys.shape[2]} tokens in a forward of "
                f"{len(now.owner)} rows of {now.count}"
            )
        self._check_attended(now)
        store = self.pool.store(index, kind, keys, values, self.paged)
        group = self.pool.group_of_layer(kind.window)
        store.write(keys, values, now.groups[group].slots)
        now.written.add(index)
        if len(now.written) == len(self._storing):
            self._finish()
        if self.paged:
            now.unattended = index if now.watched else None
            place = Place(now, store, group, kind.window, keys.dtype)
            tagged = keys.view_as(keys)
            tagged._kvfolio = place  # type: ignore[attr-defined]
            return tagged, values
        if now.start == 0 and store.shape.dtype == keys.dtype:
            return keys, values  # all that there is
        return store.gather(now.spans(group, kind.window), keys.dtype)

    def _check_attended(self, now: Round | None) -> None:
        """In paged mode a layer's update returns the new keys alone: somebody must read the others."""
        if now is not None and now.unattended is not None:
            raise RuntimeError(
                f"layer {now.unattended} was not attended to by kvfolio's attention: this model's "
                'code calls another one. Choose attn_implementation="sdpa" or "eager", which get '
                "gathered keys"
            )

    def _begin(self, keys: torch.Tensor, first_position: int | None) -> None:
        self._calls.check()
        self._check_attended(self._last)
        feed, self._feed = self._feed, None
        if self.naming():
            if self.namespace.current is not None and feed is None:
                raise RuntimeError(
                    "prompt_ids were offered for another model than the one that runs, or its decoder "
                    "was called past its hooks: the tokens cannot be compared"
                )
            self.namespace.check()
        if first_position is not None and first_position != self.length:
            raise ValueError(
                f"the library feeds positions from {first_position} on to a cache of {self.length} "
                "tokens: make the cache without prompt_ids for this way of generating"
            )
        if self.prompt is not None and feed is None and self.prompt.unused and self.prompt.hit:
            if keys.shape[2] > self.prompt.width - self.prompt.hit:
                raise ValueError(
                    f"{keys.shape[2]} tokens are fed behind the {self.prompt.hit} of {self.prompt.width} "
                    "prompt tokens that were found: the library feeds the whole prompt here. Make the "
                    "cache without prompt_ids"
                )
        ids = None if feed is None else feed.ids
        with self.pool.locked():
            self.round = self._open_round(keys.shape[0], keys.shape[2], ids)
        self.round.watched = feed is not None
        if self.prompt is not None:
            self.prompt.unused = False
        self._fed_ids = ids

    def _open_round(self, fed: int, count: int, ids: torch.Tensor | None) -> Round:
        before = list(self.rows.items)
        prompt_rows = self.prompt_rows
        if not before:
            for _ in range(fed):
                self.rows.items.append(Row(self._open(np.empty(0, np.int32), True)[0]))
        factor = self.rows_for(fed)
        shared = factor > 1 and ids is not None and _repeats(ids, factor)
        try:
            if factor > 1 and not shared:
                self._derive([row for row in range(len(self.rows)) for _ in range(factor)])
            owner = np.arange(fed) // (factor if shared else 1)
            return self._take_step(owner, count)
        except Exception:
            for row in self.rows.items:
                if all(row is not old for old in before):
                    self.pool.manager.close(row.sequence)
            self.rows.items, self.prompt_rows = before, prompt_rows
            raise

    def _take_step(self, owner: np.ndarray, count: int) -> Round:
        self.rows.settle()
        pads = self.rows.pads
        now = Round(0, self.length, count, pads, np.arange(len(pads)), [])
        num_new = now.num_new
        drafts = any(kind is not None and kind.window for kind in self.kinds)
        step = self.pool.manager.step()
        now.ticket = step.ticket
        try:
            if not drafts and count == 1 and (num_new == 1).all():
                step.append_unnamed_each([row.sequence for row in self.rows.items])
            else:
                for row, new in zip(self.rows.items, num_new.tolist()):
                    if new:
                        step.append_unnamed(row.sequence, new, draft=new if drafts else 0)
            plan = step.plan()
            for group, part in enumerate(plan.groups):
                now.groups.append(_arrays(part, plan.query_start, num_new, count))
                if len(part.copy_src):
                    for store in self.pool.stores_of(group):
                        store.copy_blocks(part.copy_src, part.copy_dst)
            step.commit()
        except Exception:
            step.drop()
            raise
        if drafts:
            for row, new in zip(self.rows.items, num_new.tolist()):
                row.num_drafts = new
        if len(owner) != len(pads):  # equal rows: one of them writes for all
            now = dataclasses.replace(now, owner=owner, pads=pads[owner])
            for mine in now.groups:
                first = np.concatenate(([True], owner[1:] != owner[:-1]))
                mine.slots = np.where(first[:, None], mine.slots[owner], np.int32(-1))
                mine.table = mine.table[owner]
        else:
            now.owner = owner
        return now

    def _finish(self) -> None:
        now, self.round = self.round, None
        assert now is not None
        self._last = now
        with self.pool.locked():
            self.pool.manager.complete(now.ticket)
            self._name_prompt(now.end)
            self.length = now.end
            ids = self._fed_ids
            factor = len(now.owner) // len(self.rows)
            own = ids if ids is None else ids[::factor]
            self.seen.append(own, len(self.rows), now.count)
            if factor > 1:
                self._derive(now.owner.tolist())

    def _name_prompt(self, end: int) -> None:
        if self.prompt is None:
            return
        for row, source in zip(self.rows.items, self.prompt_rows):
            stop = min(end, self.prompt.width)
            self._name(row, self.prompt.ids[source, row.pads : stop])

    def _name(self, row: Row, ids: torch.Tensor) -> None:
        """Gives a row's leading tokens these ids, where they have none."""
        if len(ids) > row.num_named:
            tokens = ids[row.num_named :].numpy().astype(np.int32)
            self.pool.manager.set_tokens(row.sequence, tokens)
            row.num_named = len(ids)

    def _roll_back(self) -> None:
        """Undoes a forward that did not reach its last layer. Its tokens have no names, so nothing of
        it was findable."""
        now, self.round = self.round, None
        assert now is not None
        with self.pool.locked():
            self.rows.crop(now.start, now.end)
            self.pool.manager.complete(now.ticket)

    # ---- between forwards ----

    def call(self, index: int, name: str, argument: Any, act: Callable[[], None]) -> None:
        """A call that a layer brings; acts when it is the first one to bring it."""
        self.check_open()
        if self._calls.is_new(index, name, argument):
            if self.round is not None:
                self._calls.forget()
                self._roll_back()
                raise RuntimeError(
                    f"{name} after a forward that stopped midway; the forward was rolled back"
                )
            try:
                act()
            except Exception:
                self._calls.forget()
                raise
        self._calls.done(index)

    def crop(self, keep: int) -> None:
        if keep >= self.length:
            return
        with self.pool.locked():
            self.rows.crop(max(0, keep), self.length)
        self.length = max(0, keep)
        self.seen.crop(self.length)

    def derive(self, sources: Sequence[int]) -> None:
        if len(self.rows) == 0:
            return
        with self.pool.locked():
            self._derive(sources)

    def _derive(self, sources: Sequence[int]) -> None:
        self.rows.derive(sources)
        self.seen.select(sources)
        self.prompt_rows = [self.prompt_rows[row] for row in sources] if self.prompt_rows else []

    def drop_unused_hit(self) -> None:
        if self.prompt is not None and self.prompt.unused and self.length:
            self.restart()

    def reset(self) -> None:
        with self.pool.locked():
            self.rows.close()
        self.length, self.prompt, self.prompt_rows, self.seen = 0, None, [], SeenIds()
        self._unpublishable = None

    # ---- whole caches ----

    def fork(self) -> Core:
        """A cache of its own with the same tokens; no key is copied."""
        self.check_open()
        if self.round is not None:
            self._roll_back()
        twin = Core(self.pool, self.kinds, self.namespace, self.paged, self.owner)
        with self.pool.locked():
            self.rows.settle()
            try:
                for row in self.rows.items:
                    twin.rows.items.append(self.rows.fork(row))
            except Exception:
                twin.rows.close()
                raise
        twin.length, twin.seen = self.length, self.seen.copy()
        twin.prompt = dataclasses.replace(self.prompt) if self.prompt else None
        twin.prompt_rows, twin._unpublishable = list(self.prompt_rows), self._unpublishable
        return twin

    def publish(self, ids: torch.Tensor) -> list[int]:
        """See PagedCache.publish()."""
        self.check_open()
        if self.round is not None:
            self._roll_back()
        if self._unpublishable:
            raise RuntimeError(f"cannot publish: a forward was fed {self._unpublishable}")
        self._check_attended(self._last)
        self.namespace.check()
        matches = [self._match(row, ids[row]) for row in range(len(ids))]
        with self.pool.locked():
            for row, (own, length) in enumerate(matches):
                self._name(self.rows.items[own], ids[row, self.rows.items[own].pads : length])
            self.rows.settle()
        return [length for _, length in matches]

    def _match(self, number: int, ids: torch.Tensor) -> tuple[int, int]:
        """The row that was fed these tokens, and how many of them."""
        length = min(len(ids), self.length)
        if self.namespace.current is None:
            if number >= len(self.rows):
                raise ValueError(f"row {number} of ids, and the cache has {len(self.rows)} rows")
            return number, length
        pads = torch.from_numpy(self.rows.pads)[:, None]
        equal = (self.seen.ids[:, :length] == ids[:length]) | (torch.arange(length)[None] < pads)
        common = equal.long().cumprod(dim=1).sum(dim=1)
        own = int(common.argmax()) if len(common) else 0
        if len(common) == 0 or int(common[own]) <= self.rows.items[own].pads:
            raise ValueError(f"row {number} of ids begins like no row of this cache")
        return own, int(common[own])

    def dense(self, index: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The keys and values of a layer as the stock cache holds them; pads are zeros."""
        self.check_open()
        kind = self.kinds[index]
        store = self.pool.store_of(index)
        if kind is None or store is None or self.length == 0:
            return None
        group = self.pool.group_of_layer(kind.window)
        first = max(0, self.length - kind.window + 1) if kind.window else 0
        with self.pool.locked():
            tables = [self.pool.manager.block_table(row.sequence, group) for row in self.rows.items]
        width = max(len(table) for table in tables)
        table = np.full((len(tables), width), -1, np.int32)
        for row, blocks in enumerate(tables):
            table[row, : len(blocks)] = blocks
        dtype = store.shape.dtype if store.shape.dtype != torch.int8 else torch.float32
        return store.gather(spans_of(table, self.rows.pads, first, self.length), dtype)

    def close(self) -> None:
        if self.closed:
            return
        if self.round is not None:
            self._roll_back()
        with self.pool.locked():
            self.rows.settle()
            self.rows.close()
        self.closed = True

    def leavings(self) -> Leavings:
        """What a cache that is dropped leaves to its pool."""
        ticket = None if self.round is None else self.round.ticket
        return Leavings(ticket, [row.sequence for row in self.rows.items])

    def check_open(self) -> None:
        if self.closed:
            raise RuntimeError(
                "this cache is closed: make a new PagedCache, which finds what this one published"
            )


def _arrays(part: Any, query_start: np.ndarray, num_new: np.ndarray, count: int) -> GroupRound:
    """A group's plan with a row for every row of the cache, also for those that are all pads yet."""
    rows = len(num_new)
    table = np.full((rows, max(1, part.block_table.shape[1])), -1, np.int32)
    slots = np.full((rows, count), -1, np.int32)
    appended = np.flatnonzero(num_new)
    table[appended, : part.block_table.shape[1]] = part.block_table
    for place, row in enumerate(appended.tolist()):
        new = part.slot_mapping[query_start[place] : query_start[place + 1]]
        slots[row, count - len(new) :] = new
    return GroupRound(table, slots)


def _repeats(ids: torch.Tensor, factor: int) -> bool:
    groups = ids.view(-1, factor, ids.shape[1])
    return bool((groups == groups[:, :1]).all())
