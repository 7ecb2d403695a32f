# SPDX-License-Identifier: Apache-2.0
"""Tiers below a cache of kvfolio: its blocks outlive the device memory, the process, the machine.

>>> import kvfolio as kv
>>> from kvfolio import tiers
>>> model = tiers.ModelIdentity(model="llama-3-8b", weights="sha256:0f3a", tokenizer="r1",
...                             model_dtype="bf16", positions="rope 500000", engine="my engine 7")
>>> groups = [kv.GroupSpec(num_layers=2, head_dim=64, num_blocks=64)]
>>> manager = kv.Manager(kv.Storage(groups), list_findable=True)
>>> with tiers.DiskTier(directory, bytes=1 << 20, segment_bytes=1 << 18) as disk:
...     with tiers.Offload(manager, model, arena_bytes=1 << 20, tiers=[disk]) as cache:
...         opened = cache.open(range(40))
...         ready = cache.wait(timeout=1.0) if opened.pending else []
>>> [each.why for each in ready]
['nothing']

docs/tiers.md says what is kept, and what is lost when.
"""

from __future__ import annotations

# First, since _tiers links the library that it has loaded.
import kvfolio as _kvfolio

from ._tiers import (
    DiskTier,
    ForeignIdentity,
    Identity,
    Offload,
    RedisTier,
    Tier,
    check_disk,
    restore,
    save,
)
from ._types import (
    ArenaStats,
    DiskCheck,
    DiskFault,
    DiskStats,
    Done,
    ModelIdentity,
    NameEpochs,
    OffloadCounters,
    OffloadLeft,
    OffloadOpened,
    OffloadTier,
    OffloadTierCounters,
    RedisCounters,
    RedisNode,
    RedisTls,
    RestoreStats,
    RestoredSequence,
    SaveStats,
    SequenceReady,
    SnapshotSequence,
    TierHealth,
)

__version__ = _kvfolio.__version__

__all__ = [
    "ArenaStats",
    "DiskCheck",
    "DiskFault",
    "DiskStats",
    "DiskTier",
    "Done",
    "ForeignIdentity",
    "Identity",
    "ModelIdentity",
    "NameEpochs",
    "Offload",
    "OffloadCounters",
    "OffloadLeft",
    "OffloadOpened",
    "OffloadTier",
    "OffloadTierCounters",
    "RedisCounters",
    "RedisNode",
    "RedisTier",
    "RedisTls",
    "RestoreStats",
    "RestoredSequence",
    "SaveStats",
    "SequenceReady",
    "SnapshotSequence",
    "Tier",
    "TierHealth",
    "check_disk",
    "restore",
    "save",
]
