#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""derive.py HEADER OUT_DIR: what the tests of the C interface make of its header.

OUT_DIR/calls.h, .c     a macro for each function that notes its call, and the list of all functions
OUT_DIR/structs.h       the names of all structs that carry their size
OUT_DIR/null_handles.h  a call of each function with null in place of its handle (refused.h)
OUT_DIR/plain_calls.h   a call of each function of a manager that takes no array and gives no handle (families.c)
OUT_DIR/bad_calls.h     calls of each function of a manager with one argument that is wrong (hostile_manager.c)
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


class Function:
    """One of a manager, with the types and names of what follows the manager; without its error."""

    def __init__(self, declaration: str, handles: set[str]) -> None:
        head, _, parameters = " ".join(declaration.split()).removesuffix(")").partition("(")
        self.name = head.split()[-1].lstrip("*")
        first, *others = [(type_of(each), each.split()[-1].lstrip("*")) for each in parameters.split(",")]
        self.says_code = bool(others) and others[-1][0] == "kvfolio_error*"
        self.parameters = others[:-1] if self.says_code else others
        self.is_of_manager = first[0].removeprefix("const ") == "kvfolio_manager*"
        self.is_plain = not any(kind.rstrip("*") in handles or kind.startswith("const ") and
                                kind.count("*") == 1 and "options" not in kind for kind, _ in self.parameters)


def functions_of_manager(text: str) -> list[Function]:
    """All but the one that ends it."""
    handles = set(re.findall(r"^typedef struct (\w+) \1;", text, re.MULTILINE))
    every = [Function(each, handles) for each in declarations_of(text)]
    return [each for each in every if each.is_of_manager and each.name != "kvfolio_manager_destroy"]


def plain_argument(kind: str, name: str, sized: list[str]) -> str:
    """An argument that makes sense, if the call has no array; names are those of PLAIN in families.c."""
    target = kind.removesuffix("*")
    if kind == "kvfolio_sequence":
        return "sequence"
    if "*" not in kind:
        return "0" if name in ("group", "of", "block", "policy") else "1"
    if kind.startswith("const ") and kind.count("*") == 1 or target.endswith("void") or target == "char":
        return "NULL"
    return f"&({target}){{.struct_size = sizeof({target})}}" if target in sized else f"&({target}){{0}}"


def plain_calls(text: str) -> str:
    """Each in a world of its own, since some end the sequence."""
    lines = ["// Written by tests/capi/derive.py.", "static void call_plainly(void) {"]
    for each in functions_of_manager(text):
        if not each.is_plain:
            continue
        given = "".join(f", {plain_argument(*one, sized_structs(text))}" for one in each.parameters)
        lines.append(f"  PLAIN({each.name}(m{given}, &g_error));" if each.says_code else
                     f"  PLAIN(((void){each.name}(m{given}), KVFOLIO_OK));")
    return "\n".join([*lines, "}"]) + "\n"


# What is wrong in every state, by type or by name. Arrays and their counts are in bad_values().
BAD_IDS = {"kvfolio_sequence": ["0", "UINT64_MAX", "w.closed", "w.foreign", "w.idle ^ (1u << 30)"],
           "kvfolio_ticket": ["0", "UINT64_MAX", "w.old_step"], "double": ["NAN", "INFINITY", "-INFINITY"],
           "kvfolio_pin_id": ["0", "UINT64_MAX"], "kvfolio_load_id": ["0", "UINT64_MAX"],
           "kvfolio_hold_id": ["0", "UINT64_MAX"]}
BAD_PLACES = {"group": ["-1", "2", "INT_MIN", "INT_MAX"], "of": ["-1", "2", "INT_MIN", "INT_MAX"],
              "block": ["-1", "16", "INT_MIN", "INT_MAX"]}
ANY_NUMBER = ("priority",)  # each is fine
GOOD_ARRAYS = {"int32_t": "w.tokens", "int64_t": "kOnes", "kvfolio_sequence": "&w.idle", "uint8_t": "kHas"}


def good_argument(function: Function, at: int, sized: list[str]) -> str:
    """One that the call need not refuse. Places of results are such that a write to them is seen."""
    kind, name = function.parameters[at]
    target = kind.removeprefix("const ").removesuffix("*").strip()
    if kind in BAD_IDS:
        return {"kvfolio_sequence": "w.idle", "kvfolio_ticket": "w.step"}.get(kind, "1")
    if "*" not in kind:
        before = function.parameters[at - 1][0] if at > 0 else ""
        empty = "media" in before or "void" in before or before == "int32_t*"
        if before == "const int32_t*" and function.parameters[at - 1][1] == "prompt":
            return "20"  # as many as the sequence has
        return "2" if name in ("num_groups", "num_tables") else "0" if name in BAD_PLACES or empty else "1"
    if kind.startswith("const ") and kind.count("*") == 1:
        return GOOD_ARRAYS.get(target, "NULL")
    if kind == "uint8_t*":
        return GOOD_ARRAYS[target]
    if re.match(r"num_\w+$", name):
        return "NULL"
    if target == "kvfolio_group_plan":
        return "w.out.group_plans"
    return f"result_of(sizeof({target}))" if target in sized else "(void*)w.out.floats"


def bad_values(function: Function, at: int, sized: list[str]) -> list[dict[int, str]]:
    """What is wrong at one place, and what has to be so at others."""
    kind, name = function.parameters[at]
    following = function.parameters[at + 1] if at + 1 < len(function.parameters) else ("", "")
    is_array = kind.removeprefix("const ").removesuffix("*") in GOOD_ARRAYS and kind.startswith("const ")
    if kind in BAD_IDS:
        return [{at: value} for value in BAD_IDS[kind]]
    if name in BAD_PLACES and kind == "int32_t":
        return [{at: value} for value in BAD_PLACES[name]]
    if kind in ("int32_t", "int64_t"):
        least = kind[:-2].upper() + "_MIN"
        return [] if name in ANY_NUMBER else [{at: least}]
    if is_array and following[0] == "int64_t" and following[1].startswith("num_"):
        return [{at: "NULL", at + 1: "3"}, {at + 1: "-1"}, {at + 1: "INT64_MAX"}]
    if kind.removesuffix("*") in sized and name != "media":  # which has 0 elements
        null = [{at: "NULL"}] if name == "out" else []
        return [*null, {at: "result_of(2)"}]
    if name == "out" and following[0] not in ("int64_t", "int32_t"):
        return [{at: "NULL"}]
    if "options" in kind:
        return [{at: f"options_of_size({size})"} for size in ("2", "UINT32_MAX")]
    return []


def bad_calls(text: str) -> str:
    """One thing is wrong in each."""
    lines = ["// Written by tests/capi/derive.py.", "static void call_badly(void) {"]
    for each in functions_of_manager(text):
        if not each.says_code:
            continue
        good = [good_argument(each, i, sized_structs(text)) for i in range(len(each.parameters))]
        for at in range(len(each.parameters)):
            for bad in bad_values(each, at, sized_structs(text)):
                given = "".join(f", {bad.get(i, value)}" for i, value in enumerate(good))
                lines.append(f"  BAD({each.name}(M{given}, E));")
    return "\n".join([*lines, "}"]) + "\n"


def main() -> None:
    header, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    text = header.read_text()
    (out / "later" / "kvfolio").mkdir(parents=True, exist_ok=True)
    (out / "calls.h").write_text(calls_header(functions(text), header.name))
    (out / "calls.c").write_text(calls_source(functions(text)))
    (out / "structs.h").write_text(structs_header(sized_structs(text)))
    first = header.parent / "kvfolio.h"
    (out / "null_handles.h").write_text(null_handles(text, first.read_text()))
    if header.name == first.name:
        (out / "plain_calls.h").write_text(plain_calls(text))
        (out / "bad_calls.h").write_text(bad_calls(text))
    (out / "later" / "kvfolio" / header.name).write_text(later_header(text))


if __name__ == "__main__":
    main()
