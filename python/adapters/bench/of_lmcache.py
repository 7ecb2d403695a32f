# SPDX-License-Identifier: Apache-2.0
"""LMCache 0.5.6: our native_plugin beside its L2 adapters fs, fs_native and resp, and its local disk of before."""

import os
import select

import sides

os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

import lmcache  # noqa: E402
from lmcache.v1.distributed.api import ObjectKey  # noqa: E402
from lmcache.v1.distributed.l2_adapters import (  # noqa: E402
    fs_l2_adapter,
    fs_native_l2_adapter,
    native_plugin_l2_adapter,
    resp_l2_adapter,
)

VERSION = getattr(lmcache, "__version__", "?")
RANK = ObjectKey.ComputeKVRank(1, 0, 1, 0)


class Object:
    """What an L2 adapter asks of a memory object."""

    def __init__(self, view):
        self.byte_array = view


class Side:
    """An L2 adapter, called as LMCache's controllers do: tasks of a request's keys, all at once."""

    def __init__(self, adapter, folder, record_bytes, count, after):
        self.adapter, self.folder, self.after = adapter, folder, after
        self.payloads = sides.rows(count, record_bytes)
        self.objects = [Object(view) for view in sides.views_of(self.payloads)]
        self.right = [False] * count

    @staticmethod
    def key(name):
        return ObjectKey(sides.digest(name), "bench", RANK, 0, "")

    def run(self, submit, results, event, first, order):
        """results(tasks that are open) -> those that ended, with an answer for each of their keys."""
        poller = select.poll()
        poller.register(event, select.POLLIN)
        open_tasks = {}
        for at in range(0, len(order), sides.TASK_KEYS):
            places = order[at:at + sides.TASK_KEYS]
            open_tasks[submit([self.key(first + i) for i in places], [self.objects[i] for i in places])] = places
        while open_tasks:
            if not poller.poll(60_000):
                raise sides.Broken(f"{len(open_tasks)} tasks do not end")
            os.eventfd_read(event)
            for task, answer in results(list(open_tasks)):
                for at, i in enumerate(open_tasks.pop(task)):
                    self.right[i] = answer(at)

    def store(self, first):
        def results(_):
            for task, result in self.adapter.pop_completed_store_tasks().items():
                yield task, lambda _, ok=result.is_successful(): ok

        self.run(self.adapter.submit_store_task, results, self.adapter.get_store_event_fd(), first,
                 range(len(self.right)))
        if not all(self.right):
            raise sides.Broken("a store failed")

    def load(self, first, order):
        def results(tasks):
            for task in tasks:
                bitmap = self.adapter.query_load_result(task)
                if bitmap is not None:
                    yield task, bitmap.test

        self.run(self.adapter.submit_load_task, results, self.adapter.get_load_event_fd(), first, order)

    def clear(self):
        self.payloads.fill(0xee)
        self.right = [False] * len(self.right)

    def loaded(self, i):
        return self.payloads[i] if self.right[i] else None

    def forget(self, first):
        self.after()

    def close(self):
        self.adapter.close()


class Files:
    medium = "disk"

    def __init__(self, config, create):
        self.config, self.create = config, create

    def open(self, folder, record_bytes, count):
        adapter = self.create(self.config.from_dict({"base_path": str(folder)}))
        side = Side(adapter, folder, record_bytes, count, lambda: sides.remove_files(folder))
        side.note = lambda: f"in the page cache, {sides.FILES_DURABLE}"
        return side


def plugin(options):
    config = native_plugin_l2_adapter.NativePluginL2AdapterConfig.from_dict({
        "type": "native_plugin", "module_path": "kvfolio_lmcache", "class_name": "Client", "max_capacity_gb": 0,
        "adapter_params": {"models": {"bench": "sha256:bench"}, "model_dtype": "bfloat16", "kv_dtype": "bfloat16",
                           "hash": "blake3", "engine": "bench", "layout": "NHD", **options}})
    return native_plugin_l2_adapter._create_native_plugin_l2_adapter(config)


class Ours:
    medium = "disk"

    def open(self, folder, record_bytes, count):
        adapter = plugin(sides.tier_options(folder, record_bytes, count))
        side = Side(adapter, folder, record_bytes, count, lambda: None)
        side.note = lambda: f"{sides.says_of(adapter._client._owner.tier.describe())}, {sides.OURS_DURABLE}"
        return side


class LocalDisk:
    """LocalDiskBackend of LMCache inside of an engine, by bench/peers."""

    medium = "disk"

    def open(self, folder, record_bytes, count):
        import disk_lmcache

        side = disk_lmcache.Peer(False).open(folder, record_bytes, count)
        side.note = lambda: f"in the page cache, {sides.FILES_DURABLE}"
        return side


class Redis:
    """Either client of one server that keeps nothing on a disk; it is emptied between rounds."""

    medium = "redis"
    server = None  # the bench's

    def __init__(self, ours):
        self.ours = ours

    def open(self, folder, record_bytes, count):
        if self.ours:
            adapter = plugin({"servers": self.server.address, "load_timeout": 60, "store_timeout": 60})
        else:
            adapter = resp_l2_adapter._create_resp_l2_adapter(
                resp_l2_adapter.RESPL2AdapterConfig.from_dict({"host": "127.0.0.1", "port": self.server.port}))
        side = Side(adapter, folder, record_bytes, count, lambda: self.server.ask("FLUSHALL"))
        side.note = lambda: "in the server's memory: it survives the process, not the server"
        return side


DISK = {"kvfolio": Ours(),
        "fs": Files(fs_l2_adapter.FSL2AdapterConfig, fs_l2_adapter._create_fs_adapter),
        "fs_native": Files(fs_native_l2_adapter.FSNativeL2AdapterConfig,
                           fs_native_l2_adapter._create_fs_native_l2_adapter),
        "local_disk": LocalDisk()}
REDIS = {"kvfolio": Redis(True), "resp": Redis(False)}
