# SPDX-License-Identifier: Apache-2.0
"""A cache of kvfolio in the memory of an NVIDIA card, over tensors of torch and of other packages that speak DLPack.

>>> import torch, kvfolio as kv
>>> from kvfolio import cuda
>>> spec = kv.GroupSpec(num_layers=2, num_kv_heads=8, head_dim=128, num_blocks=1024, dtype="bf16")
>>> storage = cuda.Storage([spec], device=0)
>>> layer = storage.view(0, layer=1)
>>> rows = torch.randn(5, 8, 128, device="cuda", dtype=torch.bfloat16)
>>> slots = torch.arange(5, device="cuda", dtype=torch.int32)
>>> cuda.append(layer, rows, rows, slots, stream=torch.cuda.current_stream())
>>> torch.from_dlpack(layer.k).shape
torch.Size([1, 1024, 8, 16, 128])
>>> storage.check()

With torch's graphs, and from FlashInfer's arrays:

>>> attention = cuda.BatchAttention(max_sequences=256, max_pages_of_sequence=512)
>>> attention.plan((k, v), indptr, indices, last_page_len, 32, stream=stream)
>>> with torch.cuda.graph(graph, stream=stream):
...     attention.run(q, (k, v), out=out, stream=stream, keep=False)
>>> attention.plan((k, v), indptr, indices, last_page_len, 32, stream=stream)  # the next step, of an equal shape
>>> graph.replay()

One graph for every batch within a capacity, which makes its plan of lengths that lie on the device, those of a DevicePlan
(BatchAttention(padded=True) has one shape, too, with plans of the host):

>>> capacity = cuda.AttendCapacity(max_sequences=64, max_sequence_tokens=8192)
>>> plan = cuda.plan_attend(q, layer, batch, out=out, capacity=capacity, stream=stream)
>>> with torch.cuda.graph(graph, stream=stream):
...     plan.plan_on_device(query_start, kv_lens, counts=counts, stream=stream, keep=False)
...     plan.attend(q, layer, out=out, stream=stream, keep=False)
>>> plan.check(next_batch)  # within the capacity
>>> graph.replay()

A call starts its kernels on `stream` (None: the legacy default stream) and returns. A tensor that it is given is
asked for through DLPack with that stream, which so waits for what still writes the tensor; and it is kept until
the stream has passed, whatever an allocator would do with its memory. Without ``keep`` a call keeps nothing, notes
nothing that __dlpack__() or the end of a storage waits for, and may be captured in a graph: then the caller does
that. Who writes to, or reads, a storage on another stream than the call before orders the two streams.

docs/cuda.md says what was run on a card.
"""

from __future__ import annotations

import warnings as _warnings

# First, since _cuda links the library that it has loaded.
import kvfolio as _kvfolio

from ._cuda import (
    AttendCapacity,
    AttendPlan,
    Batch,
    BatchAttention,
    Device,
    DeviceGroupPlan,
    DevicePlan,
    Storage,
    Tensor,
    View,
    append,
    attend,
    available,
    convert_blocks,
    copy_blocks,
    fill,
    gather,
    has_kernels,
    kernel_revision,
    num_devices,
    plan_attend,
    why_not,
)

__version__ = _kvfolio.__version__

if not has_kernels():
    _warnings.warn("kvfolio_cuda was built without nvcc and has no kernels", RuntimeWarning, stacklevel=2)

__all__ = [
    "AttendCapacity",
    "AttendPlan",
    "Batch",
    "BatchAttention",
    "Device",
    "DeviceGroupPlan",
    "DevicePlan",
    "Storage",
    "Tensor",
    "View",
    "append",
    "attend",
    "available",
    "convert_blocks",
    "copy_blocks",
    "fill",
    "gather",
    "has_kernels",
    "kernel_revision",
    "num_devices",
    "plan_attend",
    "why_not",
]
