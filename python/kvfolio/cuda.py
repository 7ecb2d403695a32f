# SPDX-License-Identifier: Apache-2.0
"""Caches of kvfolio on NVIDIA cards, if the package kvfolio-cuda is installed."""

from __future__ import annotations

try:
    from kvfolio_cuda import (
        AttendCapacity as AttendCapacity,
        AttendPlan as AttendPlan,
        Batch as Batch,
        BatchAttention as BatchAttention,
        Device as Device,
        DeviceGroupPlan as DeviceGroupPlan,
        DevicePlan as DevicePlan,
        Storage as Storage,
        Tensor as Tensor,
        View as View,
        append as append,
        attend as attend,
        available as available,
        convert_blocks as convert_blocks,
        copy_blocks as copy_blocks,
        fill as fill,
        gather as gather,
        has_kernels as has_kernels,
        kernel_revision as kernel_revision,
        num_devices as num_devices,
        plan_attend as plan_attend,
        why_not as why_not,
    )
    from kvfolio_cuda import __all__ as __all__
    from kvfolio_cuda import __doc__ as __doc__
except ModuleNotFoundError as error:
    if error.name != "kvfolio_cuda":
        raise
    from . import __version__

    raise ModuleNotFoundError(
        "kvfolio.cuda needs the package kvfolio-cuda, which is not installed here: "
        f"pip install kvfolio-cuda=={__version__}", name="kvfolio_cuda") from None
