# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.33: its file tier and ours below one region of rows, by vLLM's factory and the calls of its manager."""

import atexit
import functools
import os
import types

import numpy as np
import sides

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import vllm  # noqa: E402
from vllm.v1.kv_offload import base, config  # noqa: E402
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion  # noqa: E402
from vllm.v1.kv_offload.tiering import base as tiering  # noqa: E402
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: E402

VERSION = vllm.__version__


def spec(record_bytes):
    """What a configured vLLM says of itself."""
    said = config.OffloadingConfig(
        groups=(config.OffloadingGroupConfig(tokens_per_block=16, layer_names=("layer",), group_id=0),),
        worker_kv_bytes_per_block=record_bytes, enable_kv_cache_events=False, extra_config={}, engine_id="bench",
        model=config.OffloadingModelConfig("bench", "bfloat16"),
        cache=config.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=config.OffloadingParallelConfig(
            rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0,
            data_parallel_size=1, data_parallel_rank_local=None, is_parallelism_agnostic=False),
        kv_cache_layout="NHD")
    return types.SimpleNamespace(config=said, blocks_per_chunk=1, kv_events_config=base.OffloadingKVEventsConfig(
        enable_kv_cache_events=False, self_describing_kv_events=False))


@functools.cache
def region_of(record_bytes, count):
    """vLLM's own, one for both sides (sides.rows() says why)."""
    from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager

    region = SharedOffloadRegion(f"kvfolio-bench-{os.getpid()}-{record_bytes}", count, None, record_bytes, record_bytes)
    atexit.register(region.cleanup)
    return CPUPrimaryTierOffloadingManager(num_chunks=count, mmap_region=region)


class Side:
    def __init__(self, options, folder, record_bytes, count, removes):
        view = region_of(record_bytes, count).get_kv_memoryview()
        self.payloads = np.asarray(view).view(np.uint8)
        self.tier = SecondaryTierFactory.create_secondary_tier(options, view, spec(record_bytes))
        self.folder, self.removes = folder, removes
        self.right = [False] * count
        self.context = base.ReqContext(req_id="bench")

    def run(self, submit, first, order, promotion):
        each = max(1, sides.TASK_BYTES // self.payloads.shape[1])
        jobs = [list(order[i:i + each]) for i in range(0, len(order), each)]
        for number, places in enumerate(jobs):
            submit(tiering.TransferJob(
                job_id=number, keys=[base.make_offload_key(sides.digest(first + i), 0) for i in places],
                chunk_ids=np.array(places, np.int32), is_promotion=promotion, req_context=self.context))
        self.tier.drain_jobs()
        for job in self.tier.get_finished_jobs():
            for i in jobs[job.job_id]:
                self.right[i] = job.success

    def store(self, first):
        self.run(self.tier.submit_store, first, range(len(self.right)), False)
        if not all(self.right):
            raise sides.Broken("a store failed")

    def load(self, first, order):
        self.run(self.tier.submit_load, first, order, True)

    def clear(self):
        self.payloads.fill(0xee)
        self.right = [False] * len(self.right)

    def loaded(self, i):
        return self.payloads[i] if self.right[i] else None

    def forget(self, first):
        if self.removes:
            sides.remove_files(self.folder)

    def close(self):
        self.tier.shutdown()


class Theirs:
    """A file for each chunk, 16 and 16 threads, as it comes."""

    medium = "disk"

    def open(self, folder, record_bytes, count):
        side = Side({"type": "fs", "root_dir": str(folder)}, folder, record_bytes, count, True)
        side.note = lambda: (f"{'behind O_DIRECT' if side.tier._use_o_direct else 'in the page cache'}, "
                             f"{sides.FILES_DURABLE}")
        return side


class Ours:
    medium = "disk"

    def open(self, folder, record_bytes, count):
        given = {**sides.IDENTITY, "hash": "sha256", "type": "KvfolioTier", "module_path": "kvfolio_vllm",
                 **sides.tier_options(folder, record_bytes, count)}
        side = Side(given, folder, record_bytes, count, False)
        side.note = lambda: f"{sides.says_of(side.tier._owner.tier.describe())}, {sides.OURS_DURABLE}"
        return side


DISK = {"kvfolio": Ours(), "fs": Theirs()}
REDIS = {}
