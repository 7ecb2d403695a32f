# SPDX-License-Identifier: Apache-2.0
"""A paged KV cache for people who write inference engines. A cache hit never changes a bit.

>>> import kvfolio
>>> m = kvfolio.Manager([kvfolio.GroupSpec(head_dim=64, num_blocks=8, block_size=4)])
>>> # Tokens are ints or int32. A tokenizer's int64: ids.to(torch.int32), numpy.asarray(ids, numpy.int32).
>>> sequence, cached = m.open([1, 2, 3, 4, 5])
>>> with m.step() as step:
...     step.append(sequence, [1, 2, 3, 4, 5])
...     plan = step.plan()
>>> plan.groups[0].slot_mapping.tolist()
[0, 1, 2, 3, 4]
>>> m.close(sequence)
>>> m.open([1, 2, 3, 4, 6]).cached_tokens
4
"""

from __future__ import annotations

from ._block_map import block_map
from ._capacity import PoolPlan, plan
from ._core import (
    Batch,
    BlockStore,
    Counters,
    GroupPlan,
    GroupUsage,
    Manager,
    Plan,
    PlanArray,
    SequenceInfo,
    Step,
    Storage,
    ThreadPool,
    TokenStore,
    View,
    append,
    attend,
    bytes_per_block,
    choose_kernel_target,
    convert,
    convert_blocks,
    copy_blocks,
    fit,
    gather,
    kernel_targets,
    merge_states,
    validate,
    version,
)
from ._types import (
    Admission,
    EndedSequence,
    Forgotten,
    GroupSpec,
    MediaSpan,
    Opened,
    Pinned,
    RootKey,
    Soon,
)
from .errors import (
    Aborted,
    Corrupt,
    Error,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfBlocks,
    OutOfMemory,
    ResourceExhausted,
    TimedOut,
    Unavailable,
    Unsupported,
)

__version__ = version()

__all__ = [
    "Aborted",
    "Admission",
    "Batch",
    "BlockStore",
    "Corrupt",
    "Counters",
    "EndedSequence",
    "Error",
    "FailedPrecondition",
    "Forgotten",
    "GroupPlan",
    "GroupSpec",
    "GroupUsage",
    "InvalidArgument",
    "Manager",
    "MediaSpan",
    "NotFound",
    "Opened",
    "OutOfBlocks",
    "OutOfMemory",
    "Pinned",
    "Plan",
    "PlanArray",
    "PoolPlan",
    "ResourceExhausted",
    "RootKey",
    "SequenceInfo",
    "Soon",
    "Step",
    "Storage",
    "ThreadPool",
    "TimedOut",
    "TokenStore",
    "Unavailable",
    "Unsupported",
    "View",
    "__version__",
    "append",
    "attend",
    "block_map",
    "bytes_per_block",
    "choose_kernel_target",
    "convert",
    "convert_blocks",
    "copy_blocks",
    "fit",
    "gather",
    "kernel_targets",
    "merge_states",
    "plan",
    "validate",
    "version",
]
