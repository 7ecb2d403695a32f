#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cpp_calls.py INCLUDE_DIR: each public C++ call has a C function, or the header's foot names it.

A call of KVCacheManager is kvfolio_NAME() in C; one of KVStorage, TokenStore, ThreadPool, Identity,
Tier and Offload has the name of its class before it; kernels and free functions are kvfolio_NAME().
OTHER_NAMES lists the rest. Headers that a foot names as a whole are not read. --list prints all.
kvfolio.h has the calls of libkvfolio, kvfolio_tiers.h and kvfolio_cuda.h those of the libraries of their names.
"""

from __future__ import annotations

import pathlib
import re
import sys

# What of each header is public: the prefix of its C functions.
HEADERS = {"manager.h": "", "storage.h": "storage_", "attention_params.h": "", "kernel_target.h": "", "kernels.h": "", "token_store.h": "token_store_",
           "block_store.h": "block_store_", "gather_sequence.h": "",
           "executor.h": "thread_pool_", "spec.h": "", "memory.h": "", "strides.h": "", "view.h": "view_",
           "version.h": "", "dtype.h": "", "block_state.h": "", "plan_attention.h": "",
           "manager_types.h": "", "step_plan.h": "", "root_key.h": ""}
# The same of kvfolio_tiers.h.
TIERS_HEADERS = {"identity.h": "identity_", "tier.h": "tier_", "arena_tier.h": "tier_", "disk_tier.h": "tier_",
                 "redis_tier.h": "tier_", "offload.h": "offload_", "snapshot.h": ""}
# The same of kvfolio_cuda.h.
CUDA_HEADERS = {"cuda_capacity.h": "cuda_", "cuda_device.h": "cuda_device_", "cuda_memory.h": "cuda_memory_", "cuda_kernels.h": "cuda_",
                "cuda_plan.h": "cuda_plan_", "cuda_graph.h": "cuda_graph_",
                "cuda_wrapper.h": "cuda_batch_attention_"}
# (header, C++ name): the C function of another name.
OTHER_NAMES = {
    ("manager.h", "create"): "manager_create",
    ("manager.h", "storage"): "manager_storage",
    ("manager.h", "counters"): "get_counters",
    ("manager.h", "options"): "get_options",
    ("manager.h", "spec"): "get_group",
    ("manager.h", "copy_to"): "copy_to",
    ("storage.h", "view"): "view_create",
    ("gather_sequence.h", "gather"): "gather_sequence",
    ("kernels.h", "append"): "append_rows",
    ("attention_params.h", "attention_params"): "attention_options_of",
    ("kernels.h", "choose_kernel_target"): "choose_target",
    ("kernel_target.h", "kernel_targets"): "targets",
    ("kernel_target.h", "parse_kernel_target"): "parse_target",
    ("identity.h", "check_spec"): "identity_check_groups",
    ("identity.h", "model_namespace"): "identity_namespace",
    ("identity.h", "layout_namespace"): "identity_namespace",
    ("identity.h", "fields"): "identity_field",
    ("tier.h", "health"): "tier_get_health",
    ("tier.h", "to_string"): "tier_result_name",
    ("disk_tier.h", "open"): "tier_open_disk",
    ("disk_tier.h", "stats"): "tier_disk_stats",
    ("disk_tier.h", "health"): "tier_get_health",
    ("redis_tier.h", "create"): "tier_create_redis",
    ("redis_tier.h", "counters"): "tier_redis_counters",
    ("redis_tier.h", "health"): "tier_get_health",
    ("arena_tier.h", "create"): "tier_create_memory",
    ("arena_tier.h", "another"): "tier_share",
    ("arena_tier.h", "health"): "tier_get_health",
    ("offload.h", "counters"): "offload_get_counters",
    ("offload.h", "tier_counters"): "offload_get_tier_counters",
    ("offload.h", "to_string"): "load_end_name",
    ("cuda_device.h", "available"): "cuda_available",
    ("cuda_device.h", "num_devices"): "cuda_num_devices",
    ("cuda_device.h", "create"): "cuda_stream_create",
    ("cuda_device.h", "done"): "cuda_stream_done",
    ("cuda_device.h", "handle"): "cuda_stream_handle",
    ("cuda_device.h", "hold_back"): "cuda_event_hold_back",
    ("cuda_device.h", "passed"): "cuda_event_passed",
    ("cuda_device.h", "record"): "cuda_event_record",
    ("cuda_memory.h", "allocate"): "cuda_pinned_allocate",
    ("cuda_memory.h", "bytes"): "cuda_pinned_bytes",
    ("cuda_memory.h", "data"): "cuda_pinned_data",
    ("cuda_wrapper.h", "paged_kv_view"): "cuda_paged_kv_view",
    ("cuda_wrapper.h", "shape"): "cuda_batch_attention_get_shape",
    ("cuda_kernels.h", "shape"): "cuda_attend_plan_get_shape",
    ("cuda_kernels.h", "load"): "cuda_kernels_load",
    ("cuda_kernels.h", "capacity"): "cuda_attend_plan_get_capacity",
    ("cuda_kernels.h", "check"): "cuda_attend_plan_check",
    ("cuda_kernels.h", "explain"): "cuda_attend_plan_explain",
    ("cuda_kernels.h", "image"): "cuda_attend_plan_image",
    ("cuda_kernels.h", "target"): "cuda_attend_plan_target",
    ("cuda_kernels.h", "workspace_bytes"): "cuda_attend_plan_workspace_bytes",
    ("cuda_kernels.h", "zeroed_bytes"): "cuda_attend_plan_zeroed_bytes",
    ("view.h", "k_at"): "view_k",
    ("view.h", "v_at"): "view_v",
    ("view.h", "k_scale_at"): "view_k_scale",
    ("view.h", "v_scale_at"): "view_v_scale",
}
# The functions of a kvfolio_memory_resource and a kvfolio_executor, by their fields.
FIELDS = {"allocate", "deallocate", "copy", "copy_batch", "copy_in", "copy_out", "kind",
          "parallel_for"}
DECLARATION = re.compile(
    r"^(?:  )?(?!return\b|if\b|for\b|while\b|switch\b|static_assert|using\b|friend\b|else\b|#)"
    r"(?:[\w:<>,&*\[\] ]|\n {4,})+?[ *&>](\w+)\(", re.MULTILINE)
CONTROL = {"if", "for", "while", "switch", "return", "decltype", "requires", "noexcept", "explicit",
           "static_assert", "sizeof", "defined"}


def public_calls(text: str) -> set[str]:
    """The names of functions that a header declares outside of private parts and namespace detail."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^ (?:private|protected):\n.*?^\};", "};", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^namespace (?:\w+::)?detail \{.*?^\}  ?$", "", text,
                  flags=re.MULTILINE | re.DOTALL)
    names = {match.group(1) for match in DECLARATION.finditer(text)}
    return {name for name in names if name not in CONTROL and not name.endswith("_")
            and name[0].islower()}


def check(include: pathlib.Path, c_header: str, headers: dict[str, str],
          missing: list[str]) -> tuple[int, set[str], str]:
    """Adds to `missing`; returns the number of calls, the C functions and the foot."""
    text = (include / "kvfolio" / c_header).read_text()
    code, foot = text.split("// Not in C, and why:")
    in_c = set(re.findall(r"\bkvfolio_(\w+)\(", re.sub(r"//[^\n]*", "", code)))
    explained = set(re.findall(r"\w+", foot))
    count = 0
    for name, prefix in headers.items():
        for call in sorted(public_calls((include / "kvfolio" / name).read_text())):
            count += 1
            other = OTHER_NAMES.get((name, call))
            in_struct = name in ("memory.h", "executor.h") and call in FIELDS
            if "--list" in sys.argv:
                print(name, call)
            if in_struct or (other or prefix + call) in in_c or call in explained:
                continue
            missing.append(f"{name}: {call}(), which the foot of {c_header} does not name either")
    return count, in_c, foot


def main() -> None:
    include = pathlib.Path(sys.argv[1])
    missing: list[str] = []
    count, in_c, foot = check(include, "kvfolio.h", HEADERS, missing)
    tiers_count, in_tiers, tiers_foot = check(include, "kvfolio_tiers.h", TIERS_HEADERS, missing)
    cuda_count, in_cuda, cuda_foot = check(include, "kvfolio_cuda.h", CUDA_HEADERS, missing)
    for (name, call), other in OTHER_NAMES.items():
        if other not in (in_tiers if name in TIERS_HEADERS else in_cuda if name in CUDA_HEADERS else in_c):
            missing.append(f"kvfolio_{other}(), which this script takes for {name}: {call}()")
    unread = {path.name for path in include.glob("kvfolio/*.h")} - set(HEADERS) - set(TIERS_HEADERS)
    unread -= set(CUDA_HEADERS)
    feet = foot + tiers_foot + cuda_foot
    explained = set(re.findall(r"\w+", feet))
    for name in sorted(unread - {"kvfolio.h", "kvfolio_tiers.h", "kvfolio_cuda.h"}):
        part = "".join(word.capitalize() for word in name.removesuffix(".h").split("_"))
        if part not in explained and name not in feet:
            missing.append(f"{name}: neither read by this script nor named at a header's foot")
    if missing:
        sys.exit("no C function:\n  " + "\n  ".join(missing))
    print(f"{count} public C++ calls of libkvfolio, {tiers_count} of libkvfolio_tiers, "
          f"{cuda_count} of libkvfolio_cuda")


if __name__ == "__main__":
    main()
