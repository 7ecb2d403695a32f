# SPDX-License-Identifier: Apache-2.0
"""What the layers of one cache share: rows, and the forward that is under way.

Transformers calls each layer for everything: update, crop, reorder_cache, ... The first layer that
brings a call does it for all of them, the others are checked against it. An update opens a round (see
_round.py), which the last layer's update completes; a round that never gets there is rolled back, so
that the cache stands where it stood before that forward. What changes the manager goes through
Pool.change(), which an interrupt may end anywhere.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, Callable, Sequence

import numpy as np
import torch

from ..errors import FailedPrecondition
from ._attention import Place
from ._calls import LayerCalls
from ._checks import check_feed, check_text, fed_behind_hit
from ._hooks import code_of, has_hooks, observe
from ._ids import SeenIds
from ._layers import LayerKind
from ._namespace import Known
from ._pool import Pool
from ._prompt import Namespace, Prompt, describe, replaced
from ._round import GroupRound, Round, spans_of
from ._rows import Row, Rows
from ._store import Handed, KernelStore, Span, Store
from ._witness import Feed, Owner

_NO_TOKENS = np.empty(0, np.int32)


class Core:
    def __init__(self, pool: Pool, kinds: list[LayerKind | None], namespace: Namespace, paged: bool,
                 owner: Owner | None):
        self.pool = pool
        self.kinds = kinds
        self.namespace = namespace
        self.paged = paged
        #: What may run with it; None: it was made with a bare configuration.
        self.owner = owner
        self.rows = Rows()
        self.prompt: Prompt | None = None
        self.round: Round | None = None
        #: Hooks of the forward that runs are watched, until its last layer has its keys.
        self.watching = False
        #: Why nothing of this cache is findable: the model computes other keys than its namespace says.
        self.unshared: str | None = None
        self.closed: str | None = None  # why
        self._acted: str | None = None
        #: The model as it was when this forward began, if hooks may change it until it ends.
        self._begun: Known | None = None
        self._last: Round | None = None
        self._feed: Feed | None = None
        self._fed_by = 0  # the thread
        #: Why publish() must refuse: a forward whose keys belong to no plain prompt.
        self.unpublishable: str | None = None
        self._storing = [index for index, kind in enumerate(kinds) if kind is not None]
        self._drafts = any(kind is not None and kind.window for kind in kinds)
        self._calls = LayerCalls(self._storing)
        self._places: dict[int, tuple[Store, int, int]] = {}
        #: By layer. One cache of a pool has this, the one that ran last.
        self._handed: dict[int, Handed] = {}
        self._number = pool.add(self)

    @property
    def length(self) -> int:
        """Dense: as the model counts, pads included."""
        return self.rows.length

    @property
    def seen(self) -> SeenIds:
        return self.rows.seen

    @property
    def prompt_rows(self) -> list[int]:
        return list(self.rows.prompt_rows)

    # ---- prompts ----

    def offer(self, ids: torch.Tensor, pads: Sequence[int], look_up: bool) -> None:
        """Opens a row for each prompt; all of them stand at the shortest hit then, or at nothing."""
        look_up = look_up and self.unshared is None
        tokens = [row[pad:] for row, pad in zip(ids.numpy().astype(np.int32), pads)]

        def act() -> int:
            opened = [self._open(prompt, look_up) for prompt in tokens]
            items = tuple(Row(sequence, pad) for (sequence, _), pad in zip(opened, pads))
            hits = [pad + cached for (_, cached), pad in zip(opened, pads)]
            hit = min(hits)
            # Pads alone are nothing found.
            hit = self._stand_at(items, hit if hit > min(pads, default=0) else 0, hits)
            seen = SeenIds().appended(ids[:, :hit], len(items), hit)
            self.rows = Rows(items, hit, seen, tuple(range(len(items))))
            return hit

        self.prompt = Prompt(ids, self.pool.change(self, act))

    def _stand_at(self, items: Sequence[Row], hit: int, hits: Sequence[int]) -> int:
        """Takes all rows back to the hit; to nothing if a window holds no more what it reads there."""
        manager = self.pool.manager
        try:
            for row, found in zip(items, hits):
                row.num_named = row.tokens_at(hit)
                if found != hit:
                    manager.truncate(row.sequence, row.num_named)
            return hit
        except FailedPrecondition:
            for row in items:
                manager.truncate(row.sequence, 0)
                row.num_named = 0
            return 0

    def _open(self, tokens: np.ndarray, look_up: bool) -> tuple[int, int]:
        return self.pool.open(tokens, self.namespace.root, look_up)

    def restart(self) -> None:
        """Forgets all tokens of the rows, so that they may be computed again."""
        self.go_back(0)

    def go_back(self, length: int) -> None:
        """Forgets the tokens from there on: the same ones are about to be computed again."""
        if self.prompt is not None:
            self.prompt.hit = min(self.prompt.hit, length)
        self._shorten(length)

    def naming(self) -> bool:
        """The next forward computes tokens of the offered prompt."""
        return self.prompt is not None and self.length < self.prompt.width

    def before_forward(self, feed: Feed) -> None:
        """The model is about to run; see _checks.py for what is refused."""
        self.check_open()
        if self.round is not None:
            self._roll_back()
        self._calls.check()
        self._feed, self._fed_by = feed, threading.get_ident()
        check_feed(self, feed)
        self._check_model()

    def _check_model(self) -> None:
        self._acted, self._begun, self.watching = None, None, False
        space = self.namespace
        if space.model is None:
            return
        known = space.known()
        if self.naming():
            space.check(known)
        elif not self.unpublishable and not space.seems_unchanged(known):
            reason = space.changed(known)  # also if it is undone before publish()
            self.unpublishable = reason and f"to a model that had changed ({reason})"
        if space.named:
            return
        late = observe(known)
        if late is not None:
            raise RuntimeError(
                f"the hook {late} was registered on the decoder behind kvfolio's own, and this forward has "
                "begun: call the model again"
            )
        self.watching = True
        self._begun = known if has_hooks(known) else None
        self._acted = replaced(known)

    def hook_acted(self, hook: Any, module: torch.nn.Module) -> None:
        """In the forward that runs; see _hooks.py."""
        self.pool.acting.add(code_of(hook))
        self._acted = describe(self.namespace.known(), hook, module)

    def _settle_acts(self) -> None:
        """Keys that the model's own code would not have made never become findable, and do not stand
        behind keys that were found."""
        reason, self._acted = self._acted, None
        if reason is None:
            return
        self.unshared = reason
        if self.prompt is not None and self.prompt.hit:
            raise RuntimeError(
                f"{reason}, and {self.prompt.hit} tokens of the prompt were found, whose keys were "
                "computed without that: make the cache again, which finds nothing then, or say by namespace= "
                "in what such prompts are found"
            )

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
        self.unpublishable = reason

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
        now = self.round
        if now is None or self.closed or now.thread != threading.get_ident() or index in now.written:
            now = self._round_for(index, keys, first_position)
        try:
            return self._write(now, index, keys, values)
        except BaseException:
            self._roll_back()
            raise

    def _round_for(self, index: int, keys: torch.Tensor, first_position: int | None) -> Round:
        """The one that the first layer opens."""
        self.check_open()
        now = self.round
        if now is None:
            return self._begin(keys, first_position)
        if now.thread != threading.get_ident():
            raise RuntimeError(_TWO_THREADS)
        done, of = len(now.written), len(self._storing)
        self._roll_back()
        raise RuntimeError(
            f"layer {index} came again after {done} of {of} layers: the last forward stopped there. "
            "It was rolled back; call the model again"
        )

    def _write(self, now: Round, index: int, keys: torch.Tensor,
               values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._acted is not None:
            self._settle_acts()
        rows, heads, count, dim = keys.shape
        if rows != len(now.owner) or count != now.count:
            raise ValueError(
                f"layer {index} has {rows} rows of {count} tokens in a forward of "
                f"{len(now.owner)} rows of {now.count}"
            )
        if now.unattended is not None:
            self._check_attended(now)
        store, group, window = self._places.get(index) or self._place(index, keys, values)
        if (heads, dim, values.shape[3]) != store.sizes or keys.device != store.device:
            self._place(index, keys, values)  # which raises
        slots, dtype = now.groups[group].flat_slots, keys.dtype
        if self.paged or (now.start == 0 and store.shape.dtype == dtype):
            self._handed.pop(index, None)
            store.write(keys, values, slots)
            read = keys, values  # all that there is, unless attention reads blocks
        else:
            read = self._exchange(index, store, now.spans(group, window), keys, values, slots)
        now.written.add(index)
        if len(now.written) == len(self._storing):
            self._finish(now)
        if not self.paged:
            return read
        now.unattended = index if now.watched else None
        place = Place(now, store, group, window, dtype)
        tagged = keys.view_as(keys), values.view_as(values)
        for part in tagged:
            part._kvfolio = place  # type: ignore[attr-defined]
        return tagged

    def _place(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[Store, int, int]:
        """Where a layer lies, its group and its window."""
        kind = self.kinds[index]
        assert kind is not None
        store = self.pool.store(index, kind, keys, values, self.paged)
        place = self._places[index] = store, self.pool.group_of_layer(kind.window), kind.window
        return place

    def _exchange(self, index: int, store: Store, spans: list[Span], keys: torch.Tensor, values: torch.Tensor,
                  slots: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes them, and returns what attention reads."""
        span, dtype = spans[0], keys.dtype
        if len(spans) != 1 or span.pads or span.first or not isinstance(store, KernelStore):
            self._handed.pop(index, None)  # it would lack these
            return store.exchange(keys, values, slots, spans, dtype)
        sequence, held = self.rows.items[0].sequence, span.end - keys.shape[2]
        handed = self._handed.get(index)
        if handed is None or not handed.fits(sequence, held, span.end, dtype):
            handed = self._handed[index] = Handed(store, sequence, span.end, dtype)
        return handed.extend(keys, values, slots, span)

    def forget_handed(self) -> None:
        self._handed = {}

    def _check_attended(self, now: Round | None) -> None:
        """In paged mode a layer's update returns the new keys alone: somebody must read the others."""
        if now is not None and now.unattended is not None:
            raise RuntimeError(
                f"layer {now.unattended} was not attended to by kvfolio's attention: this model's "
                'code calls another one. Choose attn_implementation="sdpa" or "eager", which get '
                "gathered keys"
            )

    def _begin(self, keys: torch.Tensor, first_position: int | None) -> Round:
        self._calls.check()
        self._check_attended(self._last)
        feed, self._feed = self._feed, None
        if feed is not None and self._fed_by != threading.get_ident():
            raise RuntimeError(_TWO_THREADS)
        if feed is None and self._last is not None and self._last.thread != threading.get_ident():
            if self._last.watched:
                raise RuntimeError(_TWO_THREADS)
        if feed is None and self.naming() and self.namespace.model is not None:
            raise RuntimeError(
                "prompt_ids were offered for another model than the one that runs, or its decoder "
                "was called past its hooks: the tokens cannot be compared"
            )
        if first_position is not None and first_position != self.length:
            raise ValueError(
                f"the library feeds positions from {first_position} on to a cache of {self.length} "
                "tokens: make the cache without prompt_ids for this way of generating"
            )
        if self.prompt is not None and feed is None and self.prompt.unused and self.prompt.hit:
            if keys.shape[2] > self.prompt.width - self.prompt.hit:
                raise ValueError(fed_behind_hit(self, keys.shape[2]))
        ids = None if feed is None else feed.ids
        rows, count, watched = keys.shape[0], keys.shape[2], feed is not None
        now = self.pool.change(self, lambda: self._open_round(rows, count, ids, watched))
        if not self.paged:
            self.pool.ran_last(self)
        if self.prompt is not None:
            self.prompt.unused = False
        return now

    def _open_round(self, fed: int, count: int, ids: torch.Tensor | None, watched: bool) -> Round:
        manager = self.pool.manager
        rows, factor = self.rows, self.rows_for(fed)
        if not rows.items:
            rows = Rows(tuple(Row(self._open(_NO_TOKENS, True)[0]) for _ in range(fed)))
        shared = factor > 1 and ids is not None and _repeats(ids, factor)
        if factor > 1 and not shared:
            rows = rows.derived(manager, [row for row in range(len(rows)) for _ in range(factor)])
        rows.settle(manager)
        owner = np.arange(fed) // (factor if shared else 1)
        now = Round(0, rows.length, count, rows.pads, owner, [], ids, threading.get_ident(), watched)
        self._take_step(rows, now)
        if len(owner) != len(rows):  # equal rows: one of them writes for all
            first = np.concatenate(([True], owner[1:] != owner[:-1]))
            for mine in now.groups:
                mine.slots = np.where(first[:, None], mine.slots[owner], np.int32(-1))
                mine.table = mine.table[owner]
            now = dataclasses.replace(now, pads=now.pads[owner])
        self.rows = rows
        self.round = now
        return now

    def _take_step(self, rows: Rows, now: Round) -> None:
        pool = self.pool
        step = pool.step = pool.manager.step()
        now.ticket = step.ticket
        if not self._drafts and now.count == 1 and not now.uneven:
            step.append_unnamed_each(rows.sequences)
        else:
            for row, new in zip(rows.items, now.num_new.tolist()):
                if new:
                    step.append_unnamed(row.sequence, new, draft=new if self._drafts else 0)
        plan = step.plan()
        for group, part in enumerate(plan.groups):
            now.groups.append(_arrays(part, plan.query_start, now))
            if len(part.copy_src):
                pool.copy_blocks(group, part.copy_src, part.copy_dst)
        pool.tickets.add(now.ticket)
        step.commit()
        pool.step = None
        if self._drafts:
            for row, new in zip(rows.items, now.num_new.tolist()):
                row.num_drafts = new

    def _check_hooks(self) -> None:
        """A hook may have changed the model since the forward began; it may take that back later."""
        begun, self._begun = self._begun, None
        if begun is None or begun.holds_within():
            return
        reason = self.namespace.changed(self.namespace.known())
        self.unshared = f"the model changed while it ran ({reason or 'a hook did it'})"
        if self.prompt is not None and self.prompt.hit:
            raise RuntimeError(
                f"{self.unshared}, and {self.prompt.hit} tokens of the prompt were found, whose keys were computed "
                "without that: take the hook away that changes it, or say by namespace= in what such prompts are found"
            )

    def _finish(self, now: Round) -> None:
        self._check_hooks()
        self._last = now
        self.watching = False

        def act() -> None:
            self.pool.complete(now.ticket)
            factor = len(now.owner) // len(self.rows)
            rows = self.rows.grown(now.ids if now.ids is None else now.ids[::factor], now.count)
            if self.unshared is None:
                self._name_prompt(rows)
            if factor > 1:
                rows = rows.derived(self.pool.manager, now.owner.tolist())
            self.rows = rows
            self.round = None

        self.pool.change(self, act)

    def _name_prompt(self, rows: Rows) -> None:
        if self.prompt is None or self.rows.length >= self.prompt.width:
            return
        for row, source in zip(rows.items, rows.prompt_rows):
            stop = min(rows.length, self.prompt.width)
            self._name(row, self.prompt.ids[source, row.pads : stop])

    def _name(self, row: Row, ids: torch.Tensor) -> None:
        """Gives a row's leading tokens these ids, where they have none."""
        if len(ids) > row.num_named:
            tokens = ids[row.num_named :].numpy().astype(np.int32)
            self.pool.note(self.namespace)
            self.pool.manager.set_tokens(row.sequence, tokens)
            row.num_named = len(ids)

    def _roll_back(self) -> None:
        """Undoes a forward that did not reach its last layer. Its tokens have no names, so nothing of
        it was findable."""
        now = self.round
        self.watching = False
        if now is None:
            return

        def act() -> None:
            self.rows = rows = self.rows.cropped(now.start)
            self.round = None
            rows.cut(self.pool.manager)
            self.pool.complete(now.ticket)

        self.pool.change(self, act)

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
            except BaseException:
                self._calls.forget()
                raise
        self._calls.done(index)

    def crop(self, keep: int) -> None:
        if keep < self.length:
            self._shorten(max(0, keep))

    def _shorten(self, length: int) -> None:
        self.forget_handed()

        def act() -> None:
            before = self.rows
            self.rows = before.cropped(length)
            try:
                self.rows.cut(self.pool.manager)
            except FailedPrecondition:  # a window; the first row says so before any is cut
                self.rows = before
                raise

        self.pool.change(self, act)

    def derive(self, sources: Sequence[int]) -> None:
        if len(self.rows) == 0:
            return

        def act() -> None:
            before = self.rows
            self.rows = before.derived(self.pool.manager, sources)
            before.close(self.pool.manager, but=self.rows)

        self.pool.change(self, act)

    def drop_unused_hit(self) -> None:
        if self.prompt is not None and self.prompt.unused and self.length:
            self.restart()

    def reset(self) -> None:
        self.pool.change(self, self._close_rows)
        self.prompt = self.unpublishable = None

    # ---- whole caches ----

    def twin(self) -> Core:
        """A cache of its own, which is empty until fork_into()."""
        self.check_open()
        return Core(self.pool, self.kinds, self.namespace, self.paged, self.owner)

    def fork_into(self, twin: Core) -> None:
        """Gives it the same tokens; no key is copied."""
        if self.round is not None:
            self._roll_back()

        def act() -> None:
            twin.rows = self.rows.forked(self.pool.manager)

        self.pool.change(self, act)
        twin.prompt = dataclasses.replace(self.prompt) if self.prompt else None
        twin.unshared, twin.unpublishable = self.unshared, self.unpublishable

    def publish(self, ids: torch.Tensor) -> list[int]:
        """See PagedCache.publish()."""
        self.check_open()
        if self.round is not None:
            self._roll_back()
        if self.unshared is None:
            if self.unpublishable:
                raise RuntimeError(f"cannot publish: a forward was fed {self.unpublishable}")
            self._check_attended(self._last)
            if self.namespace.model is not None:
                self.namespace.check(self.namespace.known())
        matches = [self._match(row, ids[row]) for row in range(len(ids))]

        def act() -> list[int]:
            for row, (own, length) in enumerate(matches):
                if self.unshared is None:
                    item = self.rows.items[own]
                    self._name(item, ids[row, item.pads : length])
            self.rows.settle(self.pool.manager)
            return [min(length, row.pads + row.num_named) if row.num_named else 0
                    for row, length in ((self.rows.items[own], length) for own, length in matches)]

        return self.pool.change(self, act)

    def _match(self, number: int, ids: torch.Tensor) -> tuple[int, int]:
        """The row that was fed these tokens, and how many of them."""
        length = min(len(ids), self.length)
        if self.namespace.model is None:
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

        def act() -> None:
            self.closed = "closed"
            self._close_rows()

        self.pool.change(self, act)
        self.pool.remove(self._number)

    def _close_rows(self) -> None:
        before = self.rows
        before.settle(self.pool.manager)
        self.rows = Rows()
        self.forget_handed()
        before.close(self.pool.manager)

    def abandon(self, reason: str = "gone") -> None:
        """The pool takes the rows, see Pool.tidy."""
        self.closed = self.closed or reason
        self.round, self.rows, self.watching = None, Rows(), False
        self.forget_handed()

    def mend(self, known: set[int]) -> bool:
        """Agrees with the manager again after a change that did not end; False if that cannot be."""
        if self.closed:  # close() itself was interrupted
            return False
        end = self.length if self.round is None else self.round.end
        return self.rows.mend(self.pool.manager, end, known.__contains__)

    def check_open(self) -> None:
        if self.closed == "closed":
            raise RuntimeError(
                "this cache is closed: make a new PagedCache, which finds what this one published"
            )
        if self.closed:
            raise RuntimeError(f"this cache is closed, since {self.closed}: make a new PagedCache")


_TWO_THREADS = (
    "another thread used this cache while its model ran: each thread needs a cache of its own. Caches of one "
    "pool share what they find, and copy.deepcopy() forks one"
)


def _arrays(part: Any, query_start: np.ndarray, now: Round) -> GroupRound:
    """A group's plan with a row for every row of the cache, also for those that are all pads yet."""
    rows, count = len(now.pads), now.count
    if count and not now.uneven:
        return GroupRound(part.block_table, part.slot_mapping.reshape(rows, count))
    table = np.full((rows, max(1, part.block_table.shape[1])), -1, np.int32)
    slots = np.full((rows, count), -1, np.int32)
    appended = np.flatnonzero(now.num_new)
    table[appended, : part.block_table.shape[1]] = part.block_table
    for place, row in enumerate(appended.tolist()):
        new = part.slot_mapping[query_start[place] : query_start[place + 1]]
        slots[row, count - len(new) :] = new
    return GroupRound(table, slots)


def _repeats(ids: torch.Tensor, factor: int) -> bool:
    groups = ids.view(-1, factor, ids.shape[1])
    return bool((groups == groups[:, :1]).all())
