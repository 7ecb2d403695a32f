# SPDX-License-Identifier: Apache-2.0
"""LMCache's local disk: LocalDiskBackend, over the memory of its LocalCPUBackend."""

import asyncio
import os
import threading

import numpy as np

import cases

os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
try:
    import lmcache
    import torch
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.memory_management import MemoryFormat
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
    from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend
except ImportError as error:
    raise cases.Missing(f"LMCache: {error}; scripts/peers-disk installs it") from error

NAME = "lmcache"
NOTE = ("LocalDiskBackend: a file for each record, 4 threads; batched_submit_put_task() and "
        "batched_get_blocking()")


class Peer:
    """direct: with its option use_odirect. It comes without."""

    def __init__(self, direct):
        self.direct = direct

    def version(self):
        return lmcache.__version__

    def open(self, folder, record_bytes, count):
        return Disk(folder, record_bytes, count, self.direct)


class Disk:
    def __init__(self, folder, record_bytes, count, direct):
        tokens, width = 256, 64  # a chunk: [K and V, layers, tokens, width] of bf16
        layers = record_bytes // (2 * tokens * width * 2)
        self.shape = torch.Size([2, layers, tokens, width])
        self.options = LMCacheEngineConfig.from_defaults(
            chunk_size=tokens, local_cpu=False,
            max_local_cpu_size=(2 * count * record_bytes + (64 << 20)) / 2**30,
            local_disk=str(folder), max_local_disk_size=64.0,
            extra_config={"use_odirect": direct})
        about = LMCacheMetadata(model_name="bench", world_size=1, local_world_size=1, worker_id=0,
                                local_worker_id=0, kv_dtype=torch.bfloat16,
                                kv_shape=(layers, 2, tokens, 1, width))
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.memory = LocalCPUBackend(self.options, about, "cpu")
        pool = self.memory.memory_allocator.buffer
        cases.prefer_huge_pages(pool.data_ptr(), pool.numel())
        self.disk = LocalDiskBackend(self.options, self.loop, self.memory, "cpu", metadata=about)
        self.sources = [self.allocate() for _ in range(count)]
        self.payloads = [self.bytes_of(one) for one in self.sources]
        self.results = [None] * count

    def allocate(self):
        return self.memory.allocate(self.shape, torch.bfloat16, MemoryFormat.KV_2LTD)

    @staticmethod
    def bytes_of(memory):
        return np.frombuffer(memory.byte_array, np.uint8)

    def note(self):
        return "O_DIRECT" if self.disk.use_odirect else "page cache"

    @staticmethod
    def key(name):
        return CacheEngineKey("bench", 1, 0, name, torch.bfloat16)

    def store(self, first):
        stored = threading.Semaphore(0)
        self.disk.batched_submit_put_task(
            [self.key(first + i) for i in range(len(self.sources))], self.sources,
            on_complete_callback=lambda key: stored.release())
        for _ in self.sources:
            if not stored.acquire(timeout=120):
                raise RuntimeError("a store did not end within 120 s")

    def clear(self):
        """What was loaded is gone: back in the pool."""
        for i, memory in enumerate(self.results):
            if memory is not None:
                memory.ref_count_down()
            self.results[i] = None

    def load(self, first, order):
        found = self.disk.batched_get_blocking([self.key(first + i) for i in order])
        for i, memory in zip(order, found):
            self.results[i] = memory

    def loaded(self, i):
        return None if self.results[i] is None else self.bytes_of(self.results[i])

    def says(self, i):
        return "None" if self.results[i] is None else "memory"

    def forget(self, first):
        self.clear()
        for i in range(len(self.sources)):
            self.disk.remove(self.key(first + i))

    def close(self):
        self.clear()
        self.disk.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
