#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""derive.py HEADER OUT_DIR: what the tests of the C interface make of its header.

OUT_DIR/calls.h, .c     a macro for each function that notes its call, and the list of all functions
OUT_DIR/structs.h       the names of all structs that carry their size
OUT_DIR/later/kvfolio/  the header as a later version may have it: two more fields in each struct
"""

from __future__ import annotations

import pathlib
import re
import sys

LATER_FIELDS = "  int32_t later_a;\n  int64_t later_b;\n"


def functions(text: str) -> list[str]:
    """The names of all functions that the header declares."""
    code = re.sub(r"//[^\n]*", "", text)
    declarations = re.findall(r"^KVFOLIO_C_API ([^;]+);", code, re.MULTILINE)
    names = [re.match(r"[\w\s*]*?\b(kvfolio_\w+)\(", each) for each in declarations]
    if not declarations or None in names:
        sys.exit("derive.py: a declaration of the header was not understood")
    return [name.group(1) for name in names if name]


def sized_structs(text: str) -> list[str]:
    """The names of all structs that begin with their size."""
    pattern = r"^typedef struct (\w+) \{\n  uint32_t struct_size;"
    return re.findall(pattern, text, re.MULTILINE)


def later_header(text: str) -> str:
    """The header with two more fields at the end of each struct that carries its size."""
    for name in sized_structs(text):
        if name == "kvfolio_error":
            continue  # it grows by its last field, the shortage
        text, count = re.subn(rf"^\}} {name};", f"{LATER_FIELDS}}} {name};", text,
                              flags=re.MULTILINE)
        if count != 1:
            sys.exit(f"derive.py: the end of {name} was not found")
    return text


def calls_header(names: list[str], header: str) -> str:
    """A macro of each function's name does not expand again within itself."""
    lines = ["// Written by tests/capi/derive.py.", "#pragma once", f'#include "kvfolio/{header}"',
             f"enum {{ kNumFunctions = {len(names)} }};",
             "extern int g_called[kNumFunctions];",
             "extern const char* const kFunctions[kNumFunctions];"]
    lines += [f"#define {name}(...) (g_called[{i}] = 1, {name}(__VA_ARGS__))"
              for i, name in enumerate(names)]
    return "\n".join(lines) + "\n"


def calls_source(names: list[str]) -> str:
    """What calls.h declares."""
    lines = ["// Written by tests/capi/derive.py.", '#include "calls.h"',
             "int g_called[kNumFunctions];", "const char* const kFunctions[kNumFunctions] = {"]
    return "\n".join(lines + [f'    "{name}",' for name in names] + ["};"]) + "\n"


def structs_header(names: list[str]) -> str:
    """Names, for a test that all were tried."""
    lines = ["// Written by tests/capi/derive.py.", "#pragma once",
             f"enum {{ kNumStructs = {len(names)} }};",
             "static const char* const kStructs[kNumStructs] = {"]
    return "\n".join(lines + [f'    "{name}",' for name in names] + ["};"]) + "\n"


def main() -> None:
    header, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    text = header.read_text()
    (out / "later" / "kvfolio").mkdir(parents=True, exist_ok=True)
    (out / "calls.h").write_text(calls_header(functions(text), header.name))
    (out / "calls.c").write_text(calls_source(functions(text)))
    (out / "structs.h").write_text(structs_header(sized_structs(text)))
    (out / "later" / "kvfolio" / header.name).write_text(later_header(text))


if __name__ == "__main__":
    main()
