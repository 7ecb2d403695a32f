# SPDX-License-Identifier: Apache-2.0
"""A HiCache storage of SGLang 0.5.23 over kvfolio's disk or Redis: what is handed back has the bytes that were stored.

README.md has the line of configuration. A page is one record, which is verified before a byte of it enters SGLang's
memory.
"""

from __future__ import annotations

import collections
import logging
import mmap
import os
import pathlib
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import sglang
from kvfolio import tiers
from kvfolio_adapters import Job, Options, Owner, check_version

check_version("sglang", "0.5.23", sglang.__version__)

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult  # noqa: E402

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo, PoolTransfer

__version__ = "0.1.0"
__all__ = ["KvfolioStorage"]

logger = logging.getLogger(__name__)

PART_BYTES = 8 << 20  # of pages that go to the tier together; a larger page goes alone
PARTS = 8  # of a batch that are with the tier at a time: as many bytes as it has of stores

_KEY = re.compile("[0-9a-f]{64}")  # a SHA-256 of all tokens up to the end of the page, and of the salt
# What a disk tier makes in its folder.
_FILES = re.compile("lock|manifest.*|segment-[0-9a-f]+.*")
# What SGLang's pool says of itself that decides the bytes of a page.
_POOL_FIELDS = ("dtype", "layout", "page_size", "layer_num", "target_layer_num", "head_num", "head_dim", "v_head_dim",
                "head_group_num", "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim", "start_layer", "end_layer",
                "storage_format_tag", "dcp_size")
# And what only some pools say: states of Mamba, whose dtype is that of conv alone, and indexers.
_STATE_FIELDS = ("temporal_dtype", "conv_dtype", "temporal_state_shape", "conv_state_shapes", "num_mamba_layers",
                 "indexer_dtype")
# Each rank has other bytes of these, also where it shares those of an MLA model's kv, and writes its own.
_OF_EACH_RANK = ("mamba",)
# Beside an MLA model SGLang has one rank write a draft for all, whatever its pool is; all ranks have the same of these.
_DRAFTS = ("draft", "draft_swa")
_OF_ALL_RANKS = ("MLATokenToKVPoolHost", "DeepSeekV4PagedHostPool")
# Of 'dynamic' itself.
_SGLANGS = ("backend_name", "module_path", "class_name", "interface_v1")


def _word(name: Any) -> str:
    """Of a PoolName, or a text."""
    return str(getattr(name, "value", name))


def _bytes_of(page: Any) -> Any:
    """The memory of a tensor, or of an array, as bytes."""
    if not isinstance(page, np.ndarray):
        import torch

        page = page.contiguous().view(torch.uint8).numpy()
    return np.ascontiguousarray(page).reshape(-1).view(np.uint8)


def _record_of(page: Any) -> Any:
    """Its bytes, or a marker for a page without any: the tiers keep no empty record."""
    data = _bytes_of(page)
    return data if data.nbytes else np.zeros(1, np.uint8)


def _typed(data: Any, like: Any) -> Any:
    """Bytes as a page like another one."""
    if isinstance(like, np.ndarray):
        return data.view(like.dtype)
    import torch

    return torch.from_numpy(data).view(like.dtype)


def _wait(end: queue.SimpleQueue[Job]) -> list[bool]:
    return [result == "ok" for result in end.get().results]


class _Pool:
    """A host pool, and the names of its pages."""

    def __init__(self, pool: Any, name: str, fields: dict[str, Any], layout: dict[str, Any]) -> None:
        self.pool = pool
        # A copy of a page, by which pages are made; a pool without such has no pages for us.
        self.like = pool.get_data_page(0, flat=True)
        self.page_bytes = _bytes_of(self.like).nbytes
        # The anchor of DeepSeek V4 (LogicalHostPool) has keys, but no bytes: a marker says that the page was stored.
        self.record_bytes = max(1, self.page_bytes)
        said = {field: getattr(pool, field, None) for field in _POOL_FIELDS}
        said |= {field: getattr(pool, field) for field in _STATE_FIELDS if hasattr(pool, field)}
        if hasattr(pool, "slot_state_buffers"):  # states beside those of Mamba; the first axis is the slot
            said["slot_states"] = [(buffer.dtype, tuple(buffer.shape[1:])) for buffer in pool.slot_state_buffers]
        said |= {"class": type(pool).__name__, "page_bytes": self.page_bytes}
        if name != "kv":
            said["pool"] = name
        self.names = tiers.ForeignIdentity(layout=Options.layout({**layout, "pool": said}), **fields)

    @property
    def page_size(self) -> int:
        return int(getattr(self.pool, "page_size", 1) or 1)

    @property
    def stride(self) -> int:
        """From page to page in staging memory, aligned so that a disk reads into them without a copy."""
        return -(-self.record_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

    def parts(self, count: int) -> list[slice]:
        """Of so many pages, which are moved together."""
        each = max(1, PART_BYTES // self.stride)
        return [slice(at, min(at + each, count)) for at in range(0, count, each)]

    def copy_page(self, place: int, into: Any) -> None:
        """In one pass, where the pool can show a page as it lies."""
        if not self.page_bytes:
            into[...] = 0
            return
        page = self.pool.get_data_page(place, flat=False)
        if isinstance(page, np.ndarray):
            into.view(page.dtype).reshape(page.shape)[...] = page
        else:
            import torch

            torch.from_numpy(into).view(page.dtype).view(page.shape).copy_(page)

    def places(self, keys: Sequence[str], host_indices: Any) -> list[int] | None:
        """Where each page begins; None if there are not as many as keys."""
        size = self.page_size
        found = 0 if host_indices is None else len(host_indices)
        if found != len(keys) * size:
            logger.error("kvfolio_sglang: %d keys have %d indices, wanted: %d", len(keys), found, len(keys) * size)
            return None
        return [int(index) for index in host_indices[::size]]


class KvfolioStorage(HiCacheStorage):
    """Called on SGLang's prefetch and backup threads, where it may wait; an answer is at most a timeout away."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        given = {name: value for name, value in (storage_config.extra_config or {}).items() if name not in _SGLANGS}
        options, config = Options("kvfolio_sglang", given), storage_config
        self._fields = {
            "engine": f"sglang {sglang.__version__}", "weights": options.required("weights"),
            "model": options.text("model") or config.model_name or options.required("model"),
            "model_dtype": options.required("model_dtype"), "hash": "sha256 of pages", "hash_seed": "none"}
        # Ranks that hold the same bytes of an MLA model read what the first of them wrote.
        self._tp_rank = config.tp_rank
        rank = None if config.is_mla_model else config.tp_rank
        self._layout = {
            "kv_dtype": options.required("kv_dtype"), "layout": options.required("layout"), "salt": options.text("salt"),
            "tp": [rank, config.tp_size], "pp": [config.pp_rank, config.pp_size],
            "cp": [config.attn_cp_rank, config.attn_cp_size], "dcp": [config.dcp_rank, config.dcp_size],
            "dp": config.dp_rank, "mla": config.is_mla_model}
        self._load_timeout = options.number("load_timeout", 5)
        self._store_timeout = options.number("store_timeout", 30)
        self._medium = options.rest()
        if config.is_mla_model and config.tp_size > 1 and "servers" not in self._medium:
            raise options.refusal("servers", "is missing: one rank of an MLA model writes for all, and a directory has "
                                  "one process")
        self._folder = f"tp{config.tp_rank}.pp{config.pp_rank}.cp{config.attn_cp_rank}.dp{config.dp_rank}"
        self._epoch = b""
        self._lock = threading.RLock()  # a signal handler may close what its thread closes or clears
        self._closed = False
        self._owner = self._open()
        self._pools: dict[str, _Pool] = {}  # by name; kv is the one of register_mem_pool_host()
        self._local = threading.local()
        logger.info("kvfolio_sglang: %s", self._owner.tier.describe())

    def _open(self) -> Owner:
        return Owner(Options("kvfolio_sglang", self._medium).tier(self._folder), "kvfolio_sglang")

    @property
    def counters(self) -> dict[str, int]:
        """How many pages ended how, by operation and result."""
        return dict(self._owner.counters)

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self.mem_pool_host = mem_pool_host
        self._add_pool("kv", mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self._check_ranks(_word(host_pool_name), host_pool)
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._add_pool(_word(host_pool_name), host_pool)

    def _check_ranks(self, name: str, pool: Any) -> None:
        """ValueError for a draft of which each rank would be handed the bytes of the first."""
        ranks = self._layout["tp"][1]
        classes = {each.__name__ for each in type(pool).__mro__}
        if name in _DRAFTS and self._layout["mla"] and ranks > 1 and not classes & set(_OF_ALL_RANKS):
            raise ValueError(
                f"kvfolio_sglang: the pool {name!r} is a {type(pool).__name__}, of which each of {ranks} tensor-parallel "
                f"ranks has other bytes, and beside an MLA model SGLang stores those of rank 0 for all: use a draft with MLA "
                f"({' or '.join(_OF_ALL_RANKS)}), --tp-size 1, no draft, or no --hicache-storage-backend")

    def _add_pool(self, name: str, pool: Any) -> None:
        layout = dict(self._layout)
        if name in _OF_EACH_RANK:
            layout["tp"] = [self._tp_rank, layout["tp"][1]]
        self._pools[name] = _Pool(pool, name, self._fields, layout)
        logger.info("kvfolio_sglang: names of the pool %s: %s", name, self._pools[name].names.fields)

    # ---- pages of the pool ----

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        results = self._run("exists", keys, None, self._load_timeout)
        return next((at for at, ok in enumerate(results) if not ok), len(keys))

    def batch_get_v1(self, keys: list[str], host_indices: Any,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        return self._get(self._pools["kv"], keys, host_indices)

    def _get(self, of: _Pool, keys: Sequence[str], host_indices: Any) -> list[bool]:
        return self._in_parts("load", of, keys, host_indices, self._load_timeout)

    def batch_set_v1(self, keys: list[str], host_indices: Any,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        return self._set(self._pools["kv"], keys, host_indices)

    def _set(self, of: _Pool, keys: Sequence[str], host_indices: Any) -> list[bool]:
        return self._in_parts("store", of, keys, host_indices, self._store_timeout)

    def _in_parts(self, op: Any, of: _Pool, keys: Sequence[str], host_indices: Any, timeout: float) -> list[bool]:
        """The tier works at some parts while the pages of another one are put together, or taken."""
        places = of.places(keys, host_indices)
        if places is None:
            return [False] * len(keys)
        until = time.monotonic() + timeout
        parts = of.parts(len(keys))
        results: list[bool] = []
        flying: collections.deque[tuple[slice, list[Any], queue.SimpleQueue[Job]]] = collections.deque()

        def end() -> None:
            part, pages, ended = flying.popleft()
            found = _wait(ended)
            if op == "load":
                for place, page, ok in zip(places[part], pages, found):
                    if ok and of.page_bytes:
                        of.pool.set_from_flat_data_page(place, _typed(page, of.like))
            results.extend(found)

        try:
            staging = self._staging(of, parts)
            for number, part in enumerate(parts):
                if len(flying) == len(staging):
                    end()
                pages = staging[number % len(staging)][:part.stop - part.start]
                if op == "store":
                    for place, page in zip(places[part], pages):
                        of.copy_page(place, page)
                left = max(0.0, until - time.monotonic())
                flying.append((part, pages, self._begin(op, keys[part], pages, left, of)))
            while flying:
                end()
        except BaseException:
            self._local.memory = None  # the tier has some of it: that stays as it is, and the next call takes other
            raise
        return results

    # ---- pages of several pools: hybrid models, drafts, indexers ----

    def batch_exists_v2(self, keys: list[str], pool_transfers: list[PoolTransfer] | None = None,
                        extra_info: HiCacheStorageExtraInfo | None = None) -> PoolTransferResult:
        """The longest prefix that all pools have as they need it, each by its policy."""
        there = self._run("exists", keys, None, self._load_timeout)
        kv_pages = next((at for at, ok in enumerate(there) if not ok), len(keys))
        hits: dict[Any, int] = {"kv": kv_pages} if kv_pages else {}
        restorable = list(range(1, kv_pages + 1))
        for transfer in pool_transfers or ():
            if not restorable:
                break
            allowed = self._restorable(transfer, keys[:kv_pages])
            if allowed:
                hits[transfer.name] = max(allowed)
            restorable = [pages for pages in restorable if pages in allowed]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def _restorable(self, transfer: PoolTransfer, keys: list[str]) -> set[int]:
        """Lengths of the prefix, in pages, for which this pool has what it needs."""
        of = self._pools.get(_word(transfer.name))
        if of is None or transfer.hit_policy not in (PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES):
            logger.error("kvfolio_sglang: the pool %s is not known here, or its policy %s is not", transfer.name,
                         transfer.hit_policy)
            return set()
        there = self._run("exists", keys, None, self._load_timeout, of)
        if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
            end = next((at for at, ok in enumerate(there) if not ok), len(keys))
            return set(range(1, end + 1))
        window = max(1, len(transfer.keys or ()))
        return {end for end in range(1, len(keys) + 1) if all(there[max(0, end - window):end])}

    def batch_get_v2(self, transfers: list[PoolTransfer],
                     extra_info: HiCacheStorageExtraInfo | None = None) -> dict[Any, list[bool]]:
        return {transfer.name: self._moved(self._get, transfer) for transfer in transfers}

    def batch_set_v2(self, transfers: list[PoolTransfer],
                     extra_info: HiCacheStorageExtraInfo | None = None) -> dict[Any, list[bool]]:
        return {transfer.name: self._moved(self._set, transfer) for transfer in transfers}

    def _moved(self, move: Callable[[_Pool, Sequence[str], Any], list[bool]], transfer: PoolTransfer) -> list[bool]:
        keys = list(transfer.keys or ())
        of = self._pools.get(_word(transfer.name))
        return [False] * len(keys) if of is None else move(of, keys, transfer.host_indices)

    # ---- pages by themselves: the interface before v1 ----

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        if target_locations is None or len(target_locations) != len(keys):
            return [None] * len(keys)
        buffers = [np.empty(_record_of(target).nbytes, np.uint8) for target in target_locations]
        pages: list[Any] = []
        for target, data, ok in zip(target_locations, buffers, self._run("load", keys, buffers, self._load_timeout)):
            if ok and len(target):
                target[:] = _typed(data, target).reshape(target.shape)
            pages.append(target if ok else None)
        return pages

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        if values is None or len(values) != len(keys):
            return False
        return all(self._run("store", keys, [_record_of(value) for value in values], self._store_timeout))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return None if target_location is None else self.batch_get([key], [target_location])[0]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return value is not None and self.batch_set([key], [value])

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    # ---- all of it ----

    def clear(self) -> None:
        """The disk is empty afterwards. Redis may be others': this process finds nothing of before any more."""
        with self._lock:
            if "servers" in self._medium:
                self._epoch = os.urandom(16)
                logger.error("kvfolio_sglang: cleared for this process alone: Redis keeps what it has until it is evicted, "
                             "and the next process finds it; choose another key_prefix then")
                return
            self._owner.close()
            if self._closed:  # before, or by a signal handler: the folder may be another process's by now
                return
            for path in pathlib.Path(self._medium["directory"], self._folder).iterdir():
                if _FILES.fullmatch(path.name):
                    path.unlink()
            self._owner = self._open()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._owner.close()

    def _run(self, op: Any, keys: Sequence[str], buffers: Sequence[Any] | None, timeout: float,
             of: _Pool | None = None) -> list[bool]:
        """Of the pool kv, unless said otherwise. Even if it is interrupted the tier has let go of the buffers."""
        names = [self._name(key, of or self._pools.get("kv")) for key in keys]
        return [result == "ok" for result in self._owner.run(op, names, buffers, timeout)]

    def _begin(self, op: Any, keys: Sequence[str], buffers: Sequence[Any] | None, timeout: float,
               of: _Pool | None) -> queue.SimpleQueue[Job]:
        end: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._owner.begin(op, [self._name(key, of) for key in keys], buffers, timeout, end.put)
        return end

    def _name(self, key: str, of: _Pool | None) -> bytes | None:
        """None, which ends as "refused", for what is no hash of a page."""
        if of is None or not _KEY.fullmatch(key):
            return None
        return of.names.key(bytes.fromhex(key), salt=self._epoch)

    def _staging(self, of: _Pool, parts: Sequence[slice]) -> list[list[Any]]:
        """Pages of this thread, for as many of these parts as are with the tier at a time."""
        each = max((part.stop - part.start for part in parts), default=0)
        count = min(PARTS, len(parts))
        memory = getattr(self._local, "memory", None)
        if memory is None or memory.size < count * each * of.stride:
            memory = self._local.memory = np.frombuffer(mmap.mmap(-1, max(1, count * each * of.stride)), np.uint8)
        pages = [memory[at * of.stride:at * of.stride + of.record_bytes] for at in range(count * each)]
        return [pages[at:at + each] for at in range(0, len(pages), each or 1)]
