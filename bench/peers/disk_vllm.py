# SPDX-License-Identifier: Apache-2.0
"""vLLM's file tier: FileSystemTierManager, a secondary tier below its memory of the host."""

import importlib.util
import os
import pathlib
import sys
import types

import numpy as np

import cases


def _import_tier():
    """The tier and what it is made of. The packages that it lies in import all of vLLM when they are
    imported, with what runs models on a GPU: they are left empty, and their modules are found."""
    root = pathlib.Path(importlib.util.find_spec("vllm").origin).parent
    name = "vllm.distributed"
    for part in (None, "kv_transfer", "kv_connector", "v1", "offloading"):
        name = f"{name}.{part}" if part else name
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    from vllm.v1.kv_offload import base, config
    from vllm.v1.kv_offload.tiering import base as tiering
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    from vllm.v1.kv_offload.tiering.fs import io
    return base, config, tiering, SecondaryTierFactory, io


os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
try:
    base, config, tiering, factory, io = _import_tier()
    import vllm
except (ImportError, AttributeError) as error:
    raise cases.Missing(f"vLLM: {error}; scripts/peers-disk installs it") from error

NAME = "vllm"
NOTE = ("FileSystemTierManager as it comes: a file for each record, 16 and 16 threads, a job for "
        "each MiB")
JOB_BYTES = 1 << 20  # a job is done by one thread; a job for each 256 KiB was no faster


class Spec(base.OffloadingSpec):
    """What the tier asks a configured vLLM for."""

    def __init__(self, record_bytes):
        super().__init__(config.OffloadingConfig(
            groups=(config.OffloadingGroupConfig(16, ("layer",), 0),),
            worker_kv_bytes_per_block=record_bytes, enable_kv_cache_events=False, extra_config={},
            engine_id="bench", model=config.OffloadingModelConfig("bench", "bfloat16"),
            cache=config.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
            parallel=config.OffloadingParallelConfig(
                rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1,
                data_parallel_index=0, data_parallel_size=1, data_parallel_rank_local=None,
                is_parallelism_agnostic=False)))

    def get_manager(self):
        raise NotImplementedError

    def get_worker(self, kv_caches):
        raise NotImplementedError


class Peer:
    def version(self):
        return f"{vllm.__version__}, {'with' if io._HAS_FSIO_C else 'without'} its C extension"

    def open(self, folder, record_bytes, count):
        return Disk(folder, record_bytes, count)


class Disk:
    def __init__(self, folder, record_bytes, count):
        self.payloads = cases.huge_array((count, record_bytes), np.uint8)
        self.tier = factory.create_secondary_tier(
            {"type": "fs", "root_dir": str(folder)}, memoryview(self.payloads), Spec(record_bytes))
        self.context = base.ReqContext(req_id="bench")
        self.right = [False] * count

    def note(self):
        return "O_DIRECT" if self.tier._use_o_direct else "page cache: O_DIRECT does not work here"

    @staticmethod
    def key(name):
        return base.make_offload_key(name.to_bytes(32, "little"), 0)

    def run(self, submit, first, order, promotion):
        each = max(1, JOB_BYTES // self.payloads.shape[1])
        jobs = [list(order[i:i + each]) for i in range(0, len(order), each)]
        for number, places in enumerate(jobs):
            submit(tiering.TransferJob(
                job_id=number, keys=[self.key(first + i) for i in places],
                chunk_ids=np.array(places), is_promotion=promotion, req_context=self.context))
        self.tier.drain_jobs()
        for job in self.tier.get_finished_jobs():
            for i in jobs[job.job_id]:
                self.right[i] = job.success

    def store(self, first):
        self.run(self.tier.submit_store, first, range(len(self.right)), promotion=False)
        if not all(self.right):
            raise RuntimeError("a store failed")

    def clear(self):
        """What was loaded is gone."""
        self.payloads.fill(0xee)
        self.right = [False] * len(self.right)

    def load(self, first, order):
        self.run(self.tier.submit_load, first, order, promotion=True)

    def loaded(self, i):
        return self.payloads[i] if self.right[i] else None

    def says(self, i):
        return "success" if self.right[i] else "failure"

    def forget(self, first):
        """The tier removes nothing itself."""
        for i in range(len(self.right)):
            os.remove(self.tier.file_mapper.get_file_name(self.key(first + i)))

    def close(self):
        self.tier.shutdown()
