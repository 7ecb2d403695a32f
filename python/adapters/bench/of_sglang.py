# SPDX-License-Identifier: Apache-2.0
"""SGLang 0.5.23: our HiCache storage beside its file storage, by the calls of its cache controller over its host pool."""

import functools
import types

import numpy as np
import sglang
import sides
import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import STORAGE_BATCH_SIZE, HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

VERSION = sglang.__version__
PAGE = 64  # tokens
LAYOUT = "layer_first"  # SGLang's default


@functools.cache
def pool_of(record_bytes, count):
    """One for both sides (sides.rows() says why). Pages of bf16 with one head of 128 for each 32 layers, or fewer layers."""
    per_layer = 2 * PAGE * 128 * 2
    layers = min(32, record_bytes // per_layer)
    heads = record_bytes // (per_layer * layers)
    rows = tuple(torch.zeros(PAGE, heads, 128, dtype=torch.bfloat16) for _ in range(layers))
    pointers = torch.zeros(layers, dtype=torch.uint64)
    info = MHABufferInfo(
        buffers=KVBuffers(k=rows, v=rows, k_data_ptrs=pointers, v_data_ptrs=pointers, layout=KVBufferLayout.NHD),
        page_size=PAGE, head_num=heads, head_dim=128, v_head_dim=128, dtype=torch.bfloat16, device=torch.device("cpu"))
    # Twice as many pages, since what is loaded goes to other places than what was stored.
    return MHATokenToKVPoolHost(info, 2.0 * count, 0, PAGE, LAYOUT, pin_memory=False, device_capacity_tokens=PAGE,
                                start_layer=0, end_layer=layers)


class Payloads:
    """Pages of the pool by number, as the bench writes them."""

    def __init__(self, pool):
        self.pool = pool

    def __getitem__(self, i):
        return Page(self.pool, i)


class Page:
    def __init__(self, pool, i):
        self.pool, self.i = pool, i

    def __setitem__(self, _, data):
        page = torch.from_numpy(data.copy()).view(torch.bfloat16)
        self.pool.set_from_flat_data_page(self.i * PAGE, page)


class Side:
    def __init__(self, backend, extra, folder, record_bytes, count, removes):
        self.pool = pool_of(record_bytes, count)
        self.payloads, self.count = Payloads(self.pool), count
        self.folder, self.removes = folder, removes
        said = HiCacheStorageConfig(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
            enable_storage_metrics=False, is_page_first_layout=False, model_name="bench", extra_config=extra)
        self.storage = StorageBackendFactory.create_backend(backend, said, self.pool)
        self.storage.register_mem_pool_host(self.pool)
        self.storage.on_host_pools_registered()
        self.controller = types.SimpleNamespace(storage_backend=self.storage, storage_host_pool=self.pool,
                                                mem_pool_host=self.pool, page_size=PAGE)
        v1 = backend == "dynamic"
        self.get = HiCacheController._page_get_zero_copy if v1 else HiCacheController._generic_page_get
        self.put = HiCacheController._page_set_zero_copy if v1 else HiCacheController._generic_page_set
        self.operation = types.SimpleNamespace(request_id="bench", is_terminated=lambda: False)
        self.right = [False] * count

    def batches(self, first, order, offset):
        for at in range(0, len(order), STORAGE_BATCH_SIZE):
            places = order[at:at + STORAGE_BATCH_SIZE]
            tokens = torch.cat([torch.arange((offset + i) * PAGE, (offset + i + 1) * PAGE) for i in places])
            yield places, [sides.digest(first + i).hex() for i in places], tokens

    def store(self, first):
        for _, keys, tokens in self.batches(first, range(self.count), 0):
            if not self.put(self.controller, keys, tokens):
                raise sides.Broken("a store failed")

    def load(self, first, order):
        for places, keys, tokens in self.batches(first, order, self.count):
            for i in places[:self.get(self.controller, self.operation, keys, tokens)]:
                self.right[i] = True

    def clear(self):
        self.right = [False] * self.count
        half = self.pool.kv_buffer[:, :, self.count * PAGE:]
        half.fill_(3.0)

    def loaded(self, i):
        if not self.right[i]:
            return None
        return self.pool.get_data_page((self.count + i) * PAGE).view(torch.uint8).numpy().view(np.uint8)

    def forget(self, first):
        if self.removes:
            self.storage.clear()

    def close(self):
        if not self.removes:
            self.storage.close()


class Theirs:
    medium = "disk"

    def open(self, folder, record_bytes, count):
        side = Side("file", {"file_storage_path": str(folder)}, folder, record_bytes, count, True)
        side.note = lambda: f"in the page cache, {sides.FILES_DURABLE}"
        return side


class Ours:
    medium = "disk"

    def open(self, folder, record_bytes, count):
        extra = {**sides.IDENTITY, "kv_dtype": "bfloat16", "backend_name": "kvfolio", "module_path": "kvfolio_sglang",
                 "class_name": "KvfolioStorage", "interface_v1": 1,
                 "load_timeout": 60, "store_timeout": 60, **sides.tier_options(folder, record_bytes, count)}
        side = Side("dynamic", extra, folder, record_bytes, count, False)
        side.note = lambda: f"{sides.says_of(side.storage._owner.tier.describe())}, {sides.OURS_DURABLE}"
        return side


DISK = {"kvfolio": Ours(), "file": Theirs()}
REDIS = {}
