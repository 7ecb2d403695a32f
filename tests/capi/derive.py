#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""derive.py HEADER OUT_DIR: what the tests of the C interface make of its header.

OUT_DIR/calls.h, .c     a macro for each function that notes its call, and the list of all functions
OUT_DIR/structs.h       the names of all structs that carry their size
OUT_DIR/null_handles.h  a call of each function with null in place of its handle (refused.h)
OUT_DIR/later/kvfolio/  the header as a later version may have it: two more fields in each struct
"""

from __future__ import annotations

import pathlib
import re
import sys

LATER_FIELDS = "  int32_t later_a;\n  int64_t later_b;\n"


def declarations_of(text: str) -> list[str]:
    """All functions that the header declares."""
    code = re.sub(r"//[^\n]*", "", text)
    return re.findall(r"^KVFOLIO_C_API ([^;]+);", code, re.MULTILINE)


def functions(text: str) -> list[str]:
    """Their names."""
    declarations = declarations_of(text)
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


def type_of(parameter: str) -> str:
    """The type of a parameter of C."""
    return re.sub(r"\w+$", "", " ".join(parameter.split())).replace(" *", "*").strip()


def given_for(parameter: str, handles: set[str]) -> str:
    """An argument that is fine, as far as one without a handle can be."""
    kind = type_of(parameter)
    target = kind.removeprefix("const ").rstrip("*").strip()
    if "*" not in kind:
        return "0"
    if kind == "kvfolio_error*":
        return "E"
    counts = re.search(r"\bnum_\w+$", parameter)  # of what was done, written also by a call that fails
    if kind.startswith("const ") or counts or kind.count("*") == 1 and target in handles:
        return "NULL"
    is_struct = kind.count("*") == 1 and target.startswith("kvfolio_")
    return f"result_of(sizeof({target}))" if is_struct else "result_of(0)"


def null_handles(text: str, first: str) -> str:
    """`first`: the header that the other stands on, or itself."""
    handles = set(re.findall(r"^typedef struct (\w+) \1;", first + text, re.MULTILINE))
    lines = ["// Written by tests/capi/derive.py.", "static void call_without_handles(void) {"]
    for declaration in declarations_of(text):
        name, _, parameters = declaration.removesuffix(")").partition("(")
        name = name.split()[-1].lstrip("*")
        first_of_all, *others = parameters.split(",")
        subject = type_of(first_of_all).removeprefix("const ").removesuffix("*")
        if subject in handles and others and type_of(others[-1]) == "kvfolio_error*":
            rest = ", ".join(given_for(each, handles) for each in others)
            lines.append(f"  BAD({name}(NULL, {rest}));")
    return "\n".join([*lines, "}"]) + "\n"


def main() -> None:
    header, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    text = header.read_text()
    (out / "later" / "kvfolio").mkdir(parents=True, exist_ok=True)
    (out / "calls.h").write_text(calls_header(functions(text), header.name))
    (out / "calls.c").write_text(calls_source(functions(text)))
    (out / "structs.h").write_text(structs_header(sized_structs(text)))
    first = (header.parent / "kvfolio.h").read_text()
    (out / "null_handles.h").write_text(null_handles(text, first))
    (out / "later" / "kvfolio" / header.name).write_text(later_header(text))


if __name__ == "__main__":
    main()
