#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""manager_calls.py MANAGER_H OUT: the public calls of KVCacheManager, for tests that make each of them.

A test defines the two macros and includes OUT:
  CALL(name, void(types...), question)   each call; question: 1 if it is const
  QUESTION(name, types...)               each const call with an error whose arguments, one or more, are ids and numbers
"""

from __future__ import annotations

import pathlib
import re
import sys

PLAIN = {"SequenceId", "GroupId", "BlockId", "std::int32_t", "std::int64_t", "std::uint64_t"}
NOT_A_CALL = re.compile(r"static |(?:explicit )?~?KVCacheManager\(|.*\boperator=")
CALL = re.compile(r"(?P<returned>.*\S) ?\b(?P<name>\w+)\((?P<parameters>.*)\)(?P<const> const)?(?: noexcept)?")


def types_of(parameters: str) -> list[str]:
    """The types of parameters, without names and defaults."""
    parts = re.split(r",\s*(?![^<>]*>)", parameters) if parameters else []
    return [re.sub(r"\s*\b\w+$", "", part.split(" = ")[0]) for part in parts]


def calls_of(text: str) -> list[str]:
    """The lines of OUT."""
    _, _, rest = text.partition("class KVFOLIO_API KVCacheManager {\n public:\n")
    body, _, _ = re.sub(r"//[^\n]*", "", rest).partition("\n private:\n")
    lines = []
    for part in body.split(";"):
        declaration = " ".join(part.split()).removeprefix("[[nodiscard]] ")
        if not declaration or NOT_A_CALL.match(declaration):
            continue
        call = CALL.fullmatch(declaration)
        if call is None:
            sys.exit(f"manager_calls.py: not understood: {declaration}")
        name, types, is_const = call["name"], types_of(call["parameters"]), call["const"] is not None
        lines.append(f"CALL({name}, void({', '.join(types)}), {int(is_const)})")
        if is_const and call["returned"].startswith("Result<") and types and PLAIN.issuperset(types):
            lines.append(f"QUESTION({name}, {', '.join(types)})")
    if not lines:
        sys.exit("manager_calls.py: no call was found")
    return lines


def main() -> None:
    lines = calls_of(pathlib.Path(sys.argv[1]).read_text())
    pathlib.Path(sys.argv[2]).write_text("\n".join(["// Written by tests/manager_calls.py.", *lines]) + "\n")


if __name__ == "__main__":
    main()
