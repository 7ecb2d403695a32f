# SPDX-License-Identifier: Apache-2.0
"""Pool: blocks that many caches share.

The pool has a manager without storage, which decides who holds which block, and a store for each
layer, made when a model first hands over that layer's keys and values: only then are their shapes,
their type and their device known. One pool serves one model at a time of each shape; namespaces keep
the prompts of different models apart.

Thread safety: caches of one pool may be used by different threads, each cache by one at a time. A
lock is held for calls to the manager, not for a forward.

Interrupts: an exception of a signal handler may come between any two calls. A change of a cache that did
not end is tidied up before the next call of the pool: a step that is open is dropped, what no cache holds is
given back, and the cache is made to agree with itself (see _rows.py).
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Callable, Literal, TypeVar

import numpy as np
import torch

import kvfolio
from kvfolio._capacity import parse_bytes

from . import _cuda
from ._durable import Names, Unchecked, tiers_module
from ._layers import LayerKind, layer_kinds
from ._namespace import Fingerprint, fingerprint, known_of
from ._plan import check_equal_layers, groups_for, layer_bytes
from ._store import DTYPES, KernelStore, Shape, Store, TorchStore

if TYPE_CHECKING:
    import os

    from kvfolio.tiers import (
        ModelIdentity,
        NameEpochs,
        Offload,
        OffloadLeft,
        OffloadTier,
        RestoreStats,
        SaveStats,
        Tier,
    )

    from ._core import Core
    from ._prompt import Namespace

T = TypeVar("T")


class Pool:
    """Blocks for the caches of a model.

    ``model``: the model or its configuration, for which ``memory`` ("2GiB": of all layers, and of the
    bookkeeping beside them) or ``blocks`` (of each group of layers with one window) says how much; or
    what ``kvfolio.plan()`` returned, to which the bookkeeping is added.

    ``dtype`` is the type of the cache: "f32", "bf16", "f16", "int8", or None for the model's own.
    ``data_plane``: "auto" takes the library's kernels on a CPU, and on CUDA devices where kvfolio-cuda is
    installed, PyTorch's indexing elsewhere; "torch" takes the latter everywhere. ``max_sequences`` rows and ``max_forwards`` forwards may be under
    way at once, of all caches together; as many sequences as there are blocks, 1,024 at most, unless said.

    ``durable=True``: prompts have names that another process understands, so save() writes them to a file, and
    Pool.restore() brings them back; ``tiers`` (a ``kvfolio.tiers.DiskTier``, say) are asked for what the
    pool does not have, for ``tier_timeout`` seconds beside the time that bytes take, and get what it computes, through
    ``arena`` bytes of memory; ``epochs`` is what ``pool.offload.epochs()`` said last, where prompts were cleared. It
    needs the package kvfolio-tiers, the model itself, and a CPU. ``weights``: the revision of the model's weights as they are
    now; None: a digest of all of them, which is computed.

    Raises UnsupportedModel, which names the layer that no block can hold; ValueError for a word or a number that
    does not fit, TypeError for ``memory`` that is no int and no text.
    """

    def __init__(
        self,
        model: Any,
        *,
        memory: int | str | None = None,
        blocks: int | None = None,
        block_size: int = 16,
        dtype: str | None = None,
        data_plane: str = "auto",
        max_sequences: int | None = None,
        max_forwards: int = 16,
        durable: bool = False,
        weights: str | None = None,
        tiers: Sequence[Tier | OffloadTier] = (),
        arena: int | str = "64MiB",
        tier_timeout: float = 2.0,
        epochs: NameEpochs | None = None,
    ) -> None:
        if data_plane not in ("auto", "torch"):
            raise ValueError(f'data_plane is {data_plane!r}; "auto" and "torch" are known')
        if dtype is not None and dtype not in DTYPES.values():
            raise ValueError(f"dtype is {dtype!r}; one of {', '.join(DTYPES.values())} is allowed")
        if not 0 <= tier_timeout < 1e6:
            raise ValueError(f"tier_timeout is {tier_timeout}; seconds are meant, from 0 to a million")
        durable = durable or bool(tiers)
        if durable:
            _check_durable(model, data_plane)
        elif weights is not None:
            raise ValueError("weights= is for a pool whose prompts are kept: say durable=True, or tiers=")
        planned = hasattr(model, "groups")
        if planned and (memory is not None or blocks is not None):
            raise ValueError("memory= and blocks= are those of the plan")

        def sequences(groups: list[kvfolio.GroupSpec]) -> int:
            most = max(group.num_blocks for group in groups)
            return min(1024, most) if max_sequences is None else max_sequences

        def managed(of: list[kvfolio.GroupSpec] | kvfolio.Storage, groups: list[kvfolio.GroupSpec]) -> kvfolio.Manager:
            return kvfolio.Manager(
                of, order="unordered", max_steps_in_flight=max_forwards, max_sequences=sequences(groups),
                copies_by_host=True, list_findable=durable,
            )

        if planned:
            self.groups = list(model.groups)
        else:
            config = getattr(model, "config", model)
            own = None if config is model else DTYPES.get(model.dtype)
            self.groups = groups_for(config, memory, blocks, block_size, dtype or own)
            if memory is not None:
                # More blocks need more bookkeeping, which is in the budget, too: the largest share of it for blocks
                # lies between one block of each group and all, and is looked for to a hundredth. Another hundredth
                # stays, since the bookkeeping counts what is in use, and grows a little.
                budget = parse_bytes(memory)

                def with_share(share: int) -> tuple[list[kvfolio.GroupSpec], int]:
                    groups = groups_for(config, share, None, block_size, dtype or own)
                    manager = managed(groups, groups)
                    return groups, manager.bytes_total + manager.metadata_bytes

                fits, above = sum(kvfolio.bytes_per_block(self.groups)), budget
                self.groups, total = with_share(fits)
                if total > budget:
                    raise ValueError(
                        f"memory is {budget} bytes, of which the bookkeeping of {max_forwards} forwards "
                        f"(max_forwards=) of up to {sequences(self.groups)} rows (max_sequences=) takes {total - fits}, "
                        f"and one block of each group {fits}"
                    )
                while above - fits > budget // 100:
                    middle = (fits + above) // 2
                    groups, total = with_share(middle)
                    if total > budget - budget // 100:
                        above = middle
                    else:
                        fits, self.groups = middle, groups
        #: With a budget of bytes a layer may not take more than was counted.
        self._counted = planned or memory is not None
        self.lock = threading.RLock()
        self._dtype = dtype
        self._force_torch = data_plane == "torch"
        self._stores: dict[int, tuple[int, Store]] = {}  # by layer: its group, and where it lies
        self._uploads: dict[torch.device, _cuda.Uploads] = {}
        self._group_of = {group.window: index for index, group in enumerate(self.groups)}
        if len(self._group_of) < len(self.groups):
            raise ValueError(
                "two groups of the plan have one window and other heads, and a pool keeps layers of one window "
                "together: pass the model, with memory= or blocks="
            )
        #: Those that last, of a pool whose prompts are kept.
        self.names: Names | None = None
        #: What restore() did.
        self.restored: RestoreStats | None = None
        self._offload: Offload | None = None
        #: What was computed since the weights were looked at last: it waits for the next look. With tiers only.
        self._unchecked: Unchecked | None = None
        self._checked_blocks = 0  # that were published by then
        self._layer_in_group: dict[int, int] = {}
        if durable:
            self._lay_out(model, weights)
        of = kvfolio.Storage(self.groups) if durable else self.groups
        self.manager = managed(of, self.groups)
        #: Of the caches that are not closed. One that is gone is seen here, too: an interrupt that comes inside
        #: of a finalizer is swallowed by Python, and the finalizer with it.
        self._cores: dict[int, weakref.ref[Core]] = {}
        self._numbers = itertools.count()
        self._untidy = False  # a cache is gone
        #: The cache inside of a change, also if that did not end.
        self._inside: Core | None = None
        self._last_ran: weakref.ref[Core] | None = None
        self.step: kvfolio.Step | None = None
        self.tickets: set[int] = set()  # of forwards that are not complete
        #: The code of hooks that were seen acting; see _hooks.py.
        self.acting: set[Any] = set()
        if tiers:
            assert self.names is not None
            self._unchecked = Unchecked(self.names)
            self._offload = tiers_module().Offload(
                self.manager, self._identity(), arena_bytes=parse_bytes(arena, "arena"), tiers=list(tiers),
                timeout=tier_timeout, epochs=epochs, hold_stores=True)

    def _lay_out(self, model: torch.nn.Module, weights: str | None) -> None:
        """All layers at once, as a file and a tier need it."""
        tiers_module()  # says what to install
        config: Any = model.config
        kinds = layer_kinds(config)
        check_equal_layers(config)
        for group in self.groups:
            indices = [index for index, kind in enumerate(kinds) if kind is not None and kind.window == group.window]
            self._layer_in_group.update({layer: place for place, layer in enumerate(indices)})
        latents = getattr(config.get_text_config(decoder=True), "kv_lora_rank", None)
        paged = config._attn_implementation == "kvfolio" and not latents
        self.groups = [
            dataclasses.replace(group, format="granule" if paged and _fits_granule(_shape_of(group)) else "hnd")
            for group in self.groups
        ]
        self._model = weakref.ref(model)
        self.names = Names(weights, kinds, self.groups)
        self._identity()  # refuses what has no name, before the memory is taken

    # ---- what users ask ----

    @property
    def num_blocks(self) -> int:
        """Of all groups of layers together."""
        return sum(group.num_blocks for group in self.groups)

    @property
    def num_free(self) -> int:
        """Blocks that nothing holds: free ones, and cached prompts that may be evicted."""
        return self.num_blocks - self.num_held

    @property
    def num_held(self) -> int:
        """Blocks that open caches hold."""
        self._look_for_gone()
        with self.locked():
            return sum(self.manager.usage(g).held for g in range(len(self.groups)))

    @property
    def bytes_total(self) -> int:
        """Bytes of all blocks, and of the bookkeeping beside them."""
        return self.manager.bytes_total + self.manager.metadata_bytes

    @property
    def bytes_held(self) -> int:
        """Bytes of keys and values in blocks that caches hold."""
        self._look_for_gone()
        with self.locked():
            held = [self.manager.usage(g).held for g in range(len(self.groups))]
            return sum(held[group] * store.shape.bytes_per_block for group, store in self._grouped())

    @property
    def engines(self) -> list[str]:
        """What moves the rows of its layers, of those that ran: "cpu" and "cuda-sm90-r2" (architecture and revision)
        are the library's kernels, "torch" is PyTorch's indexing."""
        return sorted({store.engine for _, store in self._grouped()})

    def clear_prefixes(self) -> None:
        """Makes every prompt unfindable, in this process also what tiers have; caches that are open go on."""
        with self.locked():
            if self._offload is None or self._offload.closed:
                self.manager.reset()
            else:
                self._offload.reset()

    reset = clear_prefixes

    def block_map(self, group: int = 0) -> str:
        """The blocks of a group of layers as text, see kvfolio.block_map()."""
        with self.locked():
            return kvfolio.block_map(self.manager, group)

    # ---- prompts that outlive the process ----

    def save(self, path: str | bytes | os.PathLike[str], *, key: bytes | None = None) -> SaveStats:
        """Writes every prompt that can be found to a file of mode 0600, which appears whole or not at all, with the
        names of the model as it is now. No forward is under way. ``key``: 32 secret bytes that seal the keys and
        values. The file has the text of all prompts, and the names of tenants: keep it as you keep them.

        Raises FailedPrecondition for a pool that is not durable, or while a forward is under way; RuntimeError for
        weights that were written to unseen.
        """
        names, model, made_of = self._named_model()
        names.check_weights(model, made_of)
        with self.locked():
            stats: SaveStats = tiers_module().save(self.manager, path, names.identity(model, made_of), key=key)
        return stats

    @classmethod
    def restore(
        cls,
        path: str | bytes | os.PathLike[str],
        model: torch.nn.Module,
        *,
        key: bytes | None = None,
        accepted_key: bytes | None = None,
        damaged: Literal["refuse", "skip"] = "refuse",
        **options: Any,
    ) -> Pool:
        """A durable pool for this model, of these ``options``, that finds what a file of save() has, as far as its
        blocks go; ``restored`` says how much that was.

        Raises InvalidArgument with the first field of the model, its engine or its layout that is not the file's, and
        Corrupt for a file that is no snapshot or is damaged, with where. With damaged="skip" prompts are found up to
        the damage.
        """
        if damaged not in ("refuse", "skip"):
            raise ValueError(f'damaged is {damaged!r}; "refuse" and "skip" are known')
        pool = cls(model, **(options | {"durable": True}))
        try:
            stats: RestoreStats = tiers_module().restore(pool.manager, path, pool._identity(), key=key,
                                                         accepted_key=accepted_key, damaged=damaged)
        except BaseException:  # the tiers are the caller's, for another pool
            if pool._offload is not None:
                pool._offload.close(0.0)
            raise
        pool.restored = stats
        return pool

    def poll(self) -> None:
        """Gives tiers what was computed, once the weights are known to be those of before: their digest is computed again
        if something is new. For a program that waits.

        Raises RuntimeError, as close() does, for weights that were written to unseen.
        """
        if self._offload is not None and not self._offload.closed:
            with self.locked():
                if self._num_unchecked() > 0:
                    self._check_weights(self._offload)
                self._offload.poll()

    def close(self, timeout: float = 5.0) -> OffloadLeft | None:
        """Gives tiers what they do not have yet, for at most ``timeout`` seconds, and says what is left. The pool
        goes on without them. Nothing without tiers.

        The digest of the weights is computed again for that, of each model that computed something new. Raises
        RuntimeError, as save() does, for weights that were written to unseen: then tiers get nothing more, and this
        pool finds nothing of before.
        """
        if self._offload is None:
            return None
        assert self._unchecked is not None
        with self.locked():
            try:
                if self._offload.closed:
                    return None
                self._check_weights(self._offload)
                left: OffloadLeft = self._offload.close(timeout)
                return left
            finally:
                if self._offload.closed:
                    self._unchecked.clear()  # nothing waits for a look any more: the models may go

    def _num_unchecked(self) -> int:
        """Blocks that wait for a look at the weights, and those that were evicted before it came."""
        return int(self.manager.counters.blocks_published) - self._checked_blocks

    def _check_weights(self, offload: Offload) -> None:
        """Lets go what was computed with the weights that the names say. Under the lock."""
        assert self._unchecked is not None
        try:
            for root in self._unchecked.check():
                offload.forget(root=root)
        except Exception:
            offload.reset()
            offload.close(0.0)
            self._unchecked.clear()
            raise
        # An interrupt that comes before this line finds all as it was; behind it, what is held was looked at.
        self._unchecked.clear()
        offload.release_stores()
        self._checked_blocks = int(self.manager.counters.blocks_published)

    def _look_at_weights(self, offload: Offload) -> None:
        """Before what waits is a quarter of the blocks, some of which may be evicted then."""
        assert self._unchecked is not None
        new = self._num_unchecked()
        if new > 0 and (4 * new >= self.num_blocks or self._unchecked.costs_nothing()):
            self._check_weights(offload)

    @property
    def offload(self) -> Offload | None:
        """What stands over the tiers, for its counters; None without tiers."""
        return self._offload

    def _identity(self) -> ModelIdentity:
        names, model, made_of = self._named_model()
        return names.identity(model, made_of)

    def _named_model(self) -> tuple[Names, torch.nn.Module, Fingerprint]:
        """The model that the pool was made for, as it is now."""
        if self.names is None:
            raise kvfolio.FailedPrecondition(
                "the prompts of this pool have names of this process alone: make it with durable=True")
        model = self._model()
        if model is None:
            raise RuntimeError("the model of this pool is gone")
        return self.names, model, fingerprint(known_of(model, lasting=True))

    def __repr__(self) -> str:
        with self.locked():
            cached = sum(self.manager.usage(group).cached for group in range(len(self.groups)))
            held, blocks = self.num_held, self.num_blocks
        return f"Pool({held} of {blocks} blocks held, {cached} cached, {blocks - held - cached} free)"

    # ---- what caches ask ----

    def engines_for(self, devices: Iterable[torch.device]) -> list[str]:
        """The kernels that layers there are to get, by name, but for a CPU's. They are a part of what prompts are
        found under."""
        if self._force_torch:
            return []
        return sorted({engine for device in devices if (engine := _cuda.engine_of(device)) is not None})

    def open(self, tokens: np.ndarray, root: kvfolio.RootKey, look_up: bool) -> tuple[int, int]:
        """A sequence, and how many of its tokens were found: by tiers, too, which are waited for."""
        if self._offload is None or self._offload.closed:
            opened = self.manager.open(tokens, root=root, late_names=True, look_up=look_up)
            return opened[0], opened[1]
        before = int(self.manager.counters.blocks_published)
        try:
            sequence, found, pending = self._offload.open(tokens, root=root, late_names=True, look_up=look_up)
            while pending:
                for ready in self._offload.wait():
                    if ready.sequence == sequence:
                        found, pending = ready.cached_tokens, False
        finally:
            # Tiers have these, so no look at the weights is needed for them.
            self._checked_blocks += int(self.manager.counters.blocks_published) - before
        return sequence, found

    def note(self, namespace: Namespace) -> None:
        """A cache of this namespace is about to name what it computed. Under the lock, so that no look at the weights
        is under way: it would take this for seen."""
        if self._offload is None or self._offload.closed:
            return
        model = None if namespace.model is None else namespace.model()
        if self._unchecked is not None and model is not None and namespace.made_of is not None:
            self._unchecked.add(model, namespace.made_of, namespace.root)

    def locked(self) -> threading.RLock:
        """The lock, for ``with``. What was left behind is tidied up first."""
        if (self._untidy or self._inside is not None) and not self.lock._is_owned():  # type: ignore[attr-defined]
            with self.lock:
                if self._untidy or self._inside is not None:
                    self._tidy()
        return self.lock

    def change(self, core: Core, act: Callable[[], T]) -> T:
        """Runs a change of a cache under the lock."""
        with self.locked():
            if self._inside is None and self._offload is not None and not self._offload.closed:
                # In front: what it raises finds nothing done, and its caller told.
                self._look_at_weights(self._offload)
                self._offload.poll()
            before, self._inside = self._inside, core
            try:
                result = act()
            except Exception:
                if before is None:
                    self._tidy()
                raise
            self._inside = before
            return result

    def add(self, core: Core) -> int:
        """Returns a number for remove()."""
        number = next(self._numbers)
        self._look_for_gone()
        with self.lock:
            self._cores[number] = weakref.ref(core)
        return number

    def remove(self, number: int) -> None:
        self._cores.pop(number, None)

    def _look_for_gone(self) -> None:
        if not all([core() is not None for core in list(self._cores.values())]):
            self._untidy = True

    def leave(self, core: Core) -> None:
        """For finalizers, which may run in the middle of any call: the blocks come back at the next."""
        core.abandon()
        self._untidy = True

    def _tidy(self) -> None:
        """May be interrupted itself; then the next one sees the same, but for what it did."""
        self._untidy = False
        try:
            self._give_back()
        except BaseException:
            self._untidy = True
            raise

    def _give_back(self) -> None:
        step = self.step
        if step is not None and step.is_open:
            step.drop()
        for number, reference in list(self._cores.items()):
            if reference() is None:
                del self._cores[number]
        cores = [core for reference in self._cores.values() if (core := reference()) is not None]
        for ticket in self.tickets - {core.round.ticket for core in cores if core.round is not None}:
            self.complete(ticket)
        torn = self._inside
        if torn is not None and not torn.mend({int(sequence) for sequence in self.manager.sequences()}):
            torn.abandon("a call of it was interrupted")
        held = {row.sequence for core in cores for row in core.rows.items}
        for sequence in self.manager.sequences():
            if int(sequence) not in held:
                self.manager.close(int(sequence))
        self._inside = None

    def complete(self, ticket: int) -> None:
        """Ends a forward; nothing if it was ended, or never committed."""
        if ticket in self.tickets:
            try:
                self.manager.complete(ticket)
            except kvfolio.FailedPrecondition:  # an interrupt came in between
                pass
            self.tickets.discard(ticket)

    def ran_last(self, core: Core) -> None:
        """What layers handed over is kept for this cache alone, so that it takes no room for the others."""
        last = None if self._last_ran is None else self._last_ran()
        if last is not core:
            if last is not None:
                last.forget_handed()
            self._last_ran = weakref.ref(core)

    def group_of_layer(self, window: int) -> int:
        return self._group_of[window]

    def check_kinds(self, kinds: list[LayerKind | None]) -> None:
        for index, kind in enumerate(kinds):
            if kind is not None and kind.window not in self._group_of:
                have = ", ".join(str(window) for window in self._group_of)
                raise ValueError(
                    f"layer {index} has a window of {kind.window} (0: none), and the pool was planned "
                    f"for {have}: plan a pool for this model"
                )

    def store(self, layer: int, kind: LayerKind, keys: torch.Tensor, values: torch.Tensor,
              paged: bool) -> Store:
        """The store of a layer, made at its first use."""
        found = self._stores.get(layer)
        if found is None:
            with self.locked():
                if layer not in self._stores:
                    made = self._make_store(layer, kind, keys, values, paged)
                    self._stores[layer] = (self.group_of_layer(kind.window), made)
                found = self._stores[layer]
        store = found[1]
        shape = store.shape
        if (keys.shape[1], keys.shape[3], values.shape[3]) != (shape.num_heads, shape.dim_k, shape.dim_v):
            raise ValueError(
                f"layer {layer} hands over {keys.shape[1]} heads of {keys.shape[3]} and "
                f"{values.shape[3]} elements; the pool has {shape.num_heads} heads of {shape.dim_k} "
                f"and {shape.dim_v}: use a pool for each model shape"
            )
        if keys.device != store.device:
            raise ValueError(f"layer {layer} is on {keys.device}, its blocks are on {store.device}")
        return store

    def store_of(self, layer: int) -> Store | None:
        found = self._stores.get(layer)
        return None if found is None else found[1]

    def stores_of(self, group: int) -> list[Store]:
        return [store for own, store in self._grouped() if own == group]

    def copy_blocks(self, group: int, src: np.ndarray, dst: np.ndarray) -> None:
        """In all layers of the group."""
        storage = self.manager.storage
        if storage is not None:  # what a file brought back is there before a layer has a store
            storage.copy_blocks(group, src, dst)
            return
        for store in self.stores_of(group):
            store.copy_blocks(src, dst)

    # ---- inside ----

    def _grouped(self) -> list[tuple[int, Store]]:
        return list(self._stores.values())

    def _make_store(self, layer: int, kind: LayerKind, keys: torch.Tensor, values: torch.Tensor,
                    paged: bool) -> Store:
        if keys.shape[1] != values.shape[1]:
            raise ValueError(f"{keys.shape[1]} heads of keys and {values.shape[1]} of values")
        group = self.groups[self.group_of_layer(kind.window)]
        dtype = keys.dtype if self._dtype is None else _torch_dtype(self._dtype)
        if dtype not in DTYPES:
            raise ValueError(f"keys of {dtype}; a cache is one of {', '.join(DTYPES.values())}")
        shape = Shape(group.num_blocks, group.block_size, keys.shape[1], keys.shape[3],
                      values.shape[3], dtype)
        if self._counted and shape.bytes_per_block > layer_bytes(group):
            raise ValueError(
                f"a layer hands over {shape.num_heads} heads of {shape.dim_k} and {shape.dim_v} elements "
                f"of {dtype}, {shape.bytes_per_block} bytes a block, where {layer_bytes(group)} were "
                "counted: say dtype= as the model's, or blocks= instead of memory="
            )
        if self.names is not None:
            return self._kept_store(layer, self.group_of_layer(kind.window), shape, keys.device)
        if self._force_torch:
            return TorchStore(shape, keys.device)
        uploads = self._uploads.setdefault(keys.device, _cuda.Uploads(keys.device))
        store = _cuda.cuda_store(shape, keys.device, keys.dtype, uploads)
        if store is not None or keys.device.type != "cpu":
            return store or TorchStore(shape, keys.device)
        return KernelStore.of_its_own(shape, granule=paged and _fits_granule(shape))

    def _kept_store(self, layer: int, index: int, shape: Shape, device: torch.device) -> Store:
        planned = _shape_of(self.groups[index])
        if shape != planned or device.type != "cpu":
            raise ValueError(
                f"layer {layer} hands over {shape.num_heads} heads of {shape.dim_k} and {shape.dim_v} elements of "
                f"{shape.dtype} on {device}; a durable pool was laid out for {planned.num_heads} of {planned.dim_k} "
                f"and {planned.dim_v} of {planned.dtype} on a CPU")
        storage = self.manager.storage
        assert storage is not None
        return KernelStore(shape, storage.view(index, self._layer_in_group[layer]))


def _torch_dtype(name: str) -> torch.dtype:
    return next(dtype for dtype, known in DTYPES.items() if known == name)


def _shape_of(group: kvfolio.GroupSpec) -> Shape:
    """Of one of its layers."""
    return Shape(group.num_blocks, group.block_size, group.num_kv_heads, group.head_dim, group.head_dim_v or 0,
                 _torch_dtype(group.dtype))


def _check_durable(model: Any, data_plane: str) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ValueError("a durable pool names the weights, so it needs the model, not its configuration or a plan")
    device: Any = model.device
    if data_plane != "auto" or device.type != "cpu":
        raise ValueError(
            f"a durable pool has its blocks on a CPU, in the library's layout; data_plane is {data_plane!r}, and the "
            f"model is on {device}")


def _fits_granule(shape: Shape) -> bool:
    dims_fit = shape.dim_k % 8 == 0 and shape.dim_v % 8 == 0 and shape.dim_v > 0
    return dims_fit and shape.block_size % 16 == 0 and shape.dtype != torch.float64
