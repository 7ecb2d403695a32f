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

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, TypeVar

import torch

import kvfolio

from . import _cuda
from ._layers import LayerKind
from ._plan import bytes_of, groups_for, layer_bytes
from ._store import DTYPES, KernelStore, Shape, Store, TorchStore

if TYPE_CHECKING:
    from ._core import Core

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
    ) -> None:
        if data_plane not in ("auto", "torch"):
            raise ValueError(f'data_plane is {data_plane!r}; "auto" and "torch" are known')
        if dtype is not None and dtype not in DTYPES.values():
            raise ValueError(f"dtype is {dtype!r}; one of {', '.join(DTYPES.values())} is allowed")
        planned = hasattr(model, "groups")
        if planned and (memory is not None or blocks is not None):
            raise ValueError("memory= and blocks= are those of the plan")

        def sequences(groups: list[kvfolio.GroupSpec]) -> int:
            most = max(group.num_blocks for group in groups)
            return min(1024, most) if max_sequences is None else max_sequences

        def managed(groups: list[kvfolio.GroupSpec]) -> kvfolio.Manager:
            return kvfolio.Manager(
                groups, order="unordered", max_steps_in_flight=max_forwards, max_sequences=sequences(groups)
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
                budget = bytes_of(memory)

                def with_share(share: int) -> tuple[list[kvfolio.GroupSpec], int]:
                    groups = groups_for(config, share, None, block_size, dtype or own)
                    manager = managed(groups)
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
        self._group_of = {group.window: index for index, group in enumerate(self.groups)}
        if len(self._group_of) < len(self.groups):
            raise ValueError(
                "two groups of the plan have one window and other heads, and a pool keeps layers of one window "
                "together: pass the model, with memory= or blocks="
            )
        self.manager = managed(self.groups)
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
        """What moves the rows of its layers, of those that ran: "cpu" and "cuda-sm90-r1" (architecture and revision)
        are the library's kernels, "torch" is PyTorch's indexing."""
        return sorted({store.engine for _, store in self._grouped()})

    def clear_prefixes(self) -> None:
        """Makes every prompt unfindable; caches that are open go on."""
        with self.locked():
            self.manager.reset()

    reset = clear_prefixes

    def block_map(self, group: int = 0) -> str:
        """The blocks of a group of layers as text, see kvfolio.block_map()."""
        with self.locked():
            return kvfolio.block_map(self.manager, group)

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
                    made = self._make_store(kind, keys, values, paged)
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

    # ---- inside ----

    def _grouped(self) -> list[tuple[int, Store]]:
        return list(self._stores.values())

    def _make_store(self, kind: LayerKind, keys: torch.Tensor, values: torch.Tensor,
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
        if self._force_torch:
            return TorchStore(shape, keys.device)
        store = _cuda.cuda_store(shape, keys.device, keys.dtype)
        if store is not None or keys.device.type != "cpu":
            return store or TorchStore(shape, keys.device)
        return KernelStore(shape, granule=paged and _fits_granule(shape))


def _torch_dtype(name: str) -> torch.dtype:
    return next(dtype for dtype, known in DTYPES.items() if known == name)


def _fits_granule(shape: Shape) -> bool:
    dims_fit = shape.dim_k % 8 == 0 and shape.dim_v % 8 == 0 and shape.dim_v > 0
    return dims_fit and shape.block_size % 16 == 0 and shape.dtype != torch.float64
