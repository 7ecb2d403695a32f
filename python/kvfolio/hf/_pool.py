# SPDX-License-Identifier: Apache-2.0
"""Pool: blocks that many caches share.

The pool has a manager without storage, which decides who holds which block, and a store for each
layer, made when a model first hands over that layer's keys and values: only then are their shapes,
their type and their device known. One pool serves one model at a time of each shape; namespaces keep
the prompts of different models apart.

Thread safety: caches of one pool may be used by different threads, each cache by one at a time. A
lock is held for calls to the manager, not for a forward.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any

import torch

import kvfolio

from ._layers import LayerKind, layer_kinds
from ._store import DTYPES, KernelStore, Shape, Store, TorchStore

_STEPS_IN_FLIGHT = 64  # caches that may be inside a forward at once


@dataclasses.dataclass
class Leavings:
    """Of a cache that was dropped without close(): ids only, since a pool keeps them."""

    ticket: int | None  # of a forward that stopped midway
    sequences: list[int]

    def clear(self, manager: kvfolio.Manager) -> None:
        if self.ticket is not None:
            manager.complete(self.ticket)
        for sequence in self.sequences:
            manager.close(sequence)


class Pool:
    """Blocks for the caches of a model.

    ``plan`` is what ``kvfolio.plan()`` returned, or a model or a configuration, for which
    ``memory`` ("2GiB") or ``blocks`` says how much.

    ``dtype`` is the type of the cache: "f32", "bf16", "f16", "int8", or None for the model's own.
    ``data_plane``: "auto" takes the library's kernels on a CPU and PyTorch's indexing elsewhere;
    "torch" takes the latter everywhere.
    """

    def __init__(
        self,
        plan: Any,
        *,
        memory: int | str | None = None,
        blocks: int | None = None,
        block_size: int = 16,
        dtype: str | None = None,
        data_plane: str = "auto",
        max_sequences: int = 1024,
    ) -> None:
        if data_plane not in ("auto", "torch"):
            raise ValueError(f'data_plane is {data_plane!r}; "auto" and "torch" are known')
        if dtype is not None and dtype not in DTYPES.values():
            raise ValueError(f"dtype is {dtype!r}; one of {', '.join(DTYPES.values())} is allowed")
        if not hasattr(plan, "groups"):
            plan = _plan_of(plan, memory, blocks, block_size, dtype)
        elif memory is not None or blocks is not None:
            raise ValueError("memory= and blocks= are those of the plan")
        self.plan = plan
        self.lock = threading.RLock()
        self._dtype = dtype
        self._force_torch = data_plane == "torch"
        self._stores: dict[int, Store] = {}
        self._left: collections.deque[Leavings] = collections.deque()
        self._group_of = {group.window: index for index, group in enumerate(plan.groups)}
        self.manager = kvfolio.Manager(
            list(plan.groups),
            order="unordered",
            max_steps_in_flight=_STEPS_IN_FLIGHT,
            max_sequences=max_sequences,
        )

    # ---- what users ask ----

    @property
    def num_blocks(self) -> int:
        """Of all groups of layers together."""
        return sum(group.num_blocks for group in self.plan.groups)

    @property
    def num_free(self) -> int:
        """Blocks that nothing holds: free ones, and cached prompts that may be evicted."""
        return self.num_blocks - self.num_held

    @property
    def num_held(self) -> int:
        with self.locked():
            return sum(self.manager.usage(g).held for g in range(len(self.plan.groups)))

    @property
    def bytes_held(self) -> int:
        """Bytes of keys and values in blocks that caches hold."""
        with self.locked():
            held = [self.manager.usage(g).held for g in range(len(self.plan.groups))]
            return sum(
                held[self.group_of_layer(store_window)] * store.shape.bytes_per_block
                for store_window, store in self._windowed_stores()
            )

    def clear_prefixes(self) -> None:
        """Makes every prompt unfindable; caches that are open go on."""
        with self.locked():
            self.manager.reset()

    reset = clear_prefixes

    def block_map(self, group: int = 0) -> str:
        with self.locked():
            return kvfolio.block_map(self.manager, group)

    def __repr__(self) -> str:
        return f"Pool({self.num_free} of {self.num_blocks} blocks free)"

    # ---- what caches ask ----

    def locked(self) -> threading.RLock:
        """The lock, for ``with``. What dropped caches left behind is given back first."""
        while self._left:
            leavings = self._left.popleft()
            with self.lock:
                leavings.clear(self.manager)
        return self.lock

    def leave(self, leavings: Leavings) -> None:
        """For finalizers, which may run in the middle of any call: the blocks come back at the next."""
        self._left.append(leavings)

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
        store = self._stores.get(layer)
        if store is None:
            with self.locked():
                store = self._stores.get(layer)
                if store is None:
                    store = self._make_store(kind, keys, values, paged)
                    store.window = kind.window
                    self._stores[layer] = store
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

    def stores_of(self, group: int) -> list[Store]:
        return [store for window, store in self._windowed_stores() if self._group_of[window] == group]

    # ---- inside ----

    def _windowed_stores(self) -> list[tuple[int, Store]]:
        return [(store.window, store) for store in list(self._stores.values())]

    def _make_store(self, kind: LayerKind, keys: torch.Tensor, values: torch.Tensor,
                    paged: bool) -> Store:
        if keys.shape[1] != values.shape[1]:
            raise ValueError(f"{keys.shape[1]} heads of keys and {values.shape[1]} of values")
        group = self.plan.groups[self.group_of_layer(kind.window)]
        dtype = keys.dtype if self._dtype is None else _torch_dtype(self._dtype)
        if dtype not in DTYPES:
            raise ValueError(f"keys of {dtype}; a cache is one of {', '.join(DTYPES.values())}")
        shape = Shape(group.num_blocks, group.block_size, keys.shape[1], keys.shape[3],
                      values.shape[3], dtype)
        if keys.device.type != "cpu" or self._force_torch:
            return TorchStore(shape, keys.device)
        return KernelStore(shape, granule=paged and _fits_granule(shape))


def _plan_of(model: Any, memory: int | str | None, blocks: int | None, block_size: int,
             dtype: str | None) -> Any:
    config = getattr(model, "config", model)
    layer_kinds(config)  # refuses by the layer's name
    if (memory is None) == (blocks is None):
        raise ValueError('a pool needs memory="2GiB" or blocks=512')
    if dtype is None and config is not model:
        dtype = DTYPES.get(model.dtype)
    if blocks is not None:
        return kvfolio.plan(config, blocks=blocks, block_size=block_size, dtype=dtype)
    return kvfolio.plan(config, memory=memory, block_size=block_size, dtype=dtype)


def _torch_dtype(name: str) -> torch.dtype:
    return next(dtype for dtype, known in DTYPES.items() if known == name)


def _fits_granule(shape: Shape) -> bool:
    dims_fit = shape.dim_k % 8 == 0 and shape.dim_v % 8 == 0 and shape.dim_v > 0
    return dims_fit and shape.block_size % 16 == 0 and shape.dtype != torch.float64
