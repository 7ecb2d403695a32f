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

from ._layers import LayerKind
from ._plan import groups_for, layer_bytes
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

    ``model``: the model or its configuration, for which ``memory`` ("2GiB", of all layers) or
    ``blocks`` (of each group of layers with one window) says how much; or what ``kvfolio.plan()``
    returned.

    ``dtype`` is the type of the cache: "f32", "bf16", "f16", "int8", or None for the model's own.
    ``data_plane``: "auto" takes the library's kernels on a CPU and PyTorch's indexing elsewhere;
    "torch" takes the latter everywhere.
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
        max_sequences: int = 1024,
    ) -> None:
        if data_plane not in ("auto", "torch"):
            raise ValueError(f'data_plane is {data_plane!r}; "auto" and "torch" are known')
        if dtype is not None and dtype not in DTYPES.values():
            raise ValueError(f"dtype is {dtype!r}; one of {', '.join(DTYPES.values())} is allowed")
        planned = hasattr(model, "groups")
        if planned and (memory is not None or blocks is not None):
            raise ValueError("memory= and blocks= are those of the plan")
        if planned:
            self.groups = list(model.groups)
        else:
            config = getattr(model, "config", model)
            own = None if config is model else DTYPES.get(model.dtype)
            self.groups = groups_for(config, memory, blocks, block_size, dtype or own)
        #: With a budget of bytes a layer may not take more than was counted.
        self._counted = planned or memory is not None
        self.lock = threading.RLock()
        self._dtype = dtype
        self._force_torch = data_plane == "torch"
        self._stores: dict[int, tuple[int, Store]] = {}  # by layer: its group, and where it lies
        self._left: collections.deque[Leavings] = collections.deque()
        self._group_of = {group.window: index for index, group in enumerate(self.groups)}
        if len(self._group_of) < len(self.groups):
            raise ValueError(
                "two groups of the plan have one window and other heads, and a pool keeps layers of one window "
                "together: pass the model, with memory= or blocks="
            )
        self.manager = kvfolio.Manager(
            self.groups,
            order="unordered",
            max_steps_in_flight=_STEPS_IN_FLIGHT,
            max_sequences=max_sequences,
        )

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
        with self.locked():
            return sum(self.manager.usage(g).held for g in range(len(self.groups)))

    @property
    def bytes_held(self) -> int:
        """Bytes of keys and values in blocks that caches hold."""
        with self.locked():
            held = [self.manager.usage(g).held for g in range(len(self.groups))]
            return sum(held[group] * store.shape.bytes_per_block for group, store in self._grouped())

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
        with self.locked():
            if layer not in self._stores:
                made = self._make_store(kind, keys, values, paged)
                self._stores[layer] = (self.group_of_layer(kind.window), made)
            store = self._stores[layer][1]
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
        if keys.device.type != "cpu" or self._force_torch:
            return TorchStore(shape, keys.device)
        return KernelStore(shape, granule=paged and _fits_granule(shape))


def _torch_dtype(name: str) -> torch.dtype:
    return next(dtype for dtype, known in DTYPES.items() if known == name)


def _fits_granule(shape: Shape) -> bool:
    dims_fit = shape.dim_k % 8 == 0 and shape.dim_v % 8 == 0 and shape.dim_v > 0
    return dims_fit and shape.block_size % 16 == 0 and shape.dtype != torch.float64
