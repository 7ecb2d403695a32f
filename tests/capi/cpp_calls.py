#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cpp_calls.py INCLUDE_DIR: each public C++ call has a C function, or the header's foot names it.

A call of KVCacheManager is kvfolio_NAME() in C; one of KVStorage, TokenStore and ThreadPool has the
name of its class before it; kernels and free functions are kvfolio_NAME(). OTHER_NAMES lists the
rest. Headers that the foot names as a whole are not read. --list prints all.
"""

from __future__ import annotations

import pathlib
import re
import sys

# What of each header is public: the prefix of its C functions.
HEADERS = {"manager.h": "", "storage.h": "storage_", "kernels.h": "", "token_store.h": "token_store_",
           "executor.h": "thread_pool_", "spec.h": "", "memory.h": "", "view.h": "view_",
           "version.h": "", "dtype.h": "", "plan_attention.h": "",
           "manager_types.h": "", "step_plan.h": "", "root_key.h": ""}
# (header, C++ name): the C function of another name.
OTHER_NAMES = {
    ("manager.h", "create"): "manager_create",
    ("manager.h", "storage"): "manager_storage",
    ("manager.h", "counters"): "get_counters",
    ("manager.h", "options"): "get_options",
    ("manager.h", "spec"): "get_group",
    ("manager.h", "copy_to"): "copy_to",
    ("storage.h", "view"): "view_create",
    ("kernels.h", "append"): "append_rows",
    ("kernels.h", "attention_params"): "attention_options_of",
    ("kernels.h", "choose_kernel_target"): "choose_target",
    ("kernels.h", "kernel_targets"): "targets",
    ("kernels.h", "parse_kernel_target"): "parse_target",
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


def main() -> None:
    include = pathlib.Path(sys.argv[1])
    header = (include / "kvfolio" / "kvfolio.h").read_text()
    code, foot = header.split("// Not in C, and why:")
    in_c = set(re.findall(r"\bkvfolio_(\w+)\(", re.sub(r"//[^\n]*", "", code)))
    explained = set(re.findall(r"\w+", foot))
    missing: list[str] = []
    count = 0
    for name, prefix in HEADERS.items():
        for call in sorted(public_calls((include / "kvfolio" / name).read_text())):
            count += 1
            other = OTHER_NAMES.get((name, call))
            in_struct = name in ("memory.h", "executor.h") and call in FIELDS
            if "--list" in sys.argv:
                print(name, call)
            if in_struct or (other or prefix + call) in in_c or call in explained:
                continue
            missing.append(f"{name}: {call}()")
    for (name, call), other in OTHER_NAMES.items():
        if other not in in_c:
            missing.append(f"kvfolio_{other}(), which this script takes for {name}: {call}()")
    unread = {path.name for path in include.glob("kvfolio/*.h")} - set(HEADERS) - {"kvfolio.h"}
    for name in sorted(unread):
        part = "".join(word.capitalize() for word in name.removesuffix(".h").split("_"))
        if part not in explained and name not in foot:
            missing.append(f"{name}: neither read by this script nor named at the header's foot")
    if missing:
        sys.exit("no C function, and the foot of kvfolio.h does not say why:\n  " +
                 "\n  ".join(missing))
    print(f"{count} public C++ calls")


if __name__ == "__main__":
    main()
