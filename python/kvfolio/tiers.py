# SPDX-License-Identifier: Apache-2.0
"""The tiers of kvfolio, if the package kvfolio-tiers is installed."""

from __future__ import annotations

try:
    from kvfolio_tiers import (
        ArenaStats as ArenaStats,
        DiskCheck as DiskCheck,
        DiskFault as DiskFault,
        DiskStats as DiskStats,
        DiskTier as DiskTier,
        Done as Done,
        ForeignIdentity as ForeignIdentity,
        Identity as Identity,
        ModelIdentity as ModelIdentity,
        NameEpochs as NameEpochs,
        Offload as Offload,
        OffloadCounters as OffloadCounters,
        OffloadLeft as OffloadLeft,
        OffloadOpened as OffloadOpened,
        OffloadTier as OffloadTier,
        OffloadTierCounters as OffloadTierCounters,
        RedisCounters as RedisCounters,
        RedisNode as RedisNode,
        RedisTier as RedisTier,
        RedisTls as RedisTls,
        RestoreStats as RestoreStats,
        RestoredSequence as RestoredSequence,
        SaveStats as SaveStats,
        SequenceReady as SequenceReady,
        SnapshotSequence as SnapshotSequence,
        Tier as Tier,
        TierHealth as TierHealth,
        check_disk as check_disk,
        restore as restore,
        save as save,
    )
    from kvfolio_tiers import __all__ as __all__
    from kvfolio_tiers import __doc__ as __doc__
except ModuleNotFoundError as error:
    if error.name != "kvfolio_tiers":
        raise
    from . import __version__

    raise ModuleNotFoundError(
        "kvfolio.tiers needs the package kvfolio-tiers, which is not installed here: "
        f"pip install kvfolio-tiers=={__version__}", name="kvfolio_tiers") from None
