# SPDX-License-Identifier: Apache-2.0
"""A HiCache storage of SGLang 0.5.23 over kvfolio's disk or Redis: what is handed back has the bytes that were stored.

README.md has the line of configuration. A page is one record, which is verified before a byte of it enters SGLang's
memory.
"""

from __future__ import annotations

import logging
import mmap
import os
import pathlib
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import sglang
from kvfolio import tiers
from kvfolio_adapters import Options, Owner, check_version

check_version("sglang", "0.5.23", sglang.__version__)

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage  # noqa: E402

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo

__version__ = "0.1.0"
__all__ = ["KvfolioStorage"]

logger = logging.getLogger(__name__)

_KEY = re.compile("[0-9a-f]{64}")  # a SHA-256 of all tokens up to the end of the page, and of the salt
# What a disk tier makes in its folder.
_FILES = re.compile("lock|manifest.*|segment-[0-9a-f]+.*")
# What SGLang's pool says of itself that decides the bytes of a page.
_POOL_FIELDS = ("dtype", "layout", "page_size", "layer_num", "target_layer_num", "head_num", "head_dim", "v_head_dim",
                "head_group_num", "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim", "start_layer", "end_layer",
                "storage_format_tag", "dcp_size")
# Of 'dynamic' itself.
_SGLANGS = ("backend_name", "module_path", "class_name", "interface_v1")


def _bytes_of(page: Any) -> Any:
    """The memory of a tensor, or of an array, as bytes."""
    if not isinstance(page, np.ndarray):
        import torch

        page = page.contiguous().view(torch.uint8).numpy()
    return np.ascontiguousarray(page).reshape(-1).view(np.uint8)


def _typed(data: Any, like: Any) -> Any:
    """Bytes as a page like another one."""
    if isinstance(like, np.ndarray):
        return data.view(like.dtype)
    import torch

    return torch.from_numpy(data).view(like.dtype)


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
        self._lock = threading.Lock()
        self._owner = self._open()
        self._names: tiers.ForeignIdentity | None = None
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
        # A copy of a page, by which pages are made; a pool without such has no pages for us.
        self._like = mem_pool_host.get_data_page(0, flat=True)
        self._page_bytes = _bytes_of(self._like).nbytes
        pool = {name: getattr(mem_pool_host, name, None) for name in _POOL_FIELDS}
        pool |= {"class": type(mem_pool_host).__name__, "page_bytes": self._page_bytes}
        layout = Options.layout({**self._layout, "pool": pool})
        self._names = tiers.ForeignIdentity(layout=layout, **self._fields)
        logger.info("kvfolio_sglang: names: %s", self._names.fields)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A hybrid or draft model has further pools, whose pages would have to be found together with these."""
        if str(getattr(host_pool_name, "value", host_pool_name)) != "kv":
            raise NotImplementedError(f"kvfolio_sglang keeps the pool 'kv' alone, and this model has "
                                      f"'{host_pool_name}', too: interface v2 is not here yet")
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    # ---- pages of the pool ----

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        results = self._run("exists", keys, None, self._load_timeout)
        return next((at for at, ok in enumerate(results) if not ok), len(keys))

    def batch_get_v1(self, keys: list[str], host_indices: Any,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        places = self._places(keys, host_indices)
        if places is None:
            return [False] * len(keys)
        pages = self._staging(len(keys))
        results = self._run("load", keys, pages, self._load_timeout)
        for place, page, ok in zip(places, pages, results):
            if ok:
                self.mem_pool_host.set_from_flat_data_page(place, _typed(page, self._like))
        return results

    def batch_set_v1(self, keys: list[str], host_indices: Any,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        places = self._places(keys, host_indices)
        if places is None:
            return [False] * len(keys)
        pages = [_bytes_of(self.mem_pool_host.get_data_page(place, flat=True)) for place in places]
        return self._run("store", keys, pages, self._store_timeout)

    # ---- pages by themselves: the interface before v1 ----

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        if target_locations is None or len(target_locations) != len(keys):
            return [None] * len(keys)
        buffers = [np.empty(_bytes_of(target).nbytes, np.uint8) for target in target_locations]
        pages: list[Any] = []
        for target, data, ok in zip(target_locations, buffers, self._run("load", keys, buffers, self._load_timeout)):
            if ok:
                target[:] = _typed(data, target).reshape(target.shape)
            pages.append(target if ok else None)
        return pages

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        if values is None or len(values) != len(keys):
            return False
        return all(self._run("store", keys, [_bytes_of(value) for value in values], self._store_timeout))

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
            for path in pathlib.Path(self._medium["directory"], self._folder).iterdir():
                if _FILES.fullmatch(path.name):
                    path.unlink()
            self._owner = self._open()

    def close(self) -> None:
        with self._lock:
            self._owner.close()

    def _run(self, op: Any, keys: Sequence[str], buffers: Sequence[Any] | None, timeout: float) -> list[bool]:
        names = [self._name(key) for key in keys]
        return [result == "ok" for result in self._owner.run(op, names, buffers, timeout)]

    def _name(self, key: str) -> bytes | None:
        """None, which ends as "refused", for what is no hash of a page."""
        if self._names is None or not _KEY.fullmatch(key):
            return None
        return self._names.key(bytes.fromhex(key), salt=self._epoch)

    def _places(self, keys: Sequence[str], host_indices: Any) -> list[int] | None:
        """Where each page begins; None if there are not as many as keys."""
        size = self.mem_pool_host.page_size
        if len(host_indices) != len(keys) * size:
            logger.error("kvfolio_sglang: %d keys have %d indices, wanted: %d", len(keys), len(host_indices),
                         len(keys) * size)
            return None
        return [int(index) for index in host_indices[::size]]

    def _staging(self, count: int) -> list[Any]:
        """Pages of this thread, aligned so that a disk reads into them without a copy."""
        stride = -(-self._page_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = getattr(self._local, "memory", None)
        if memory is None or memory.size < count * stride:
            memory = self._local.memory = np.frombuffer(mmap.mmap(-1, max(1, count) * stride), np.uint8)
        return [memory[at * stride:at * stride + self._page_bytes] for at in range(count)]
