# SPDX-License-Identifier: Apache-2.0
"""Reads from the code of a release of transformers what a forward with a cache, and attention, may be given.

`python arguments.py` prints the names for the release that is installed; arguments.tsv has them for the
pinned ones.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from typing import Iterator

import transformers

ROOT = pathlib.Path(transformers.__file__).parent
#: The cache itself, and the tensors that attention is about.
_SUBJECTS = {"self", "module", "query", "key", "value", "past_key_values", "cache"}
_FILES = ("models/*/modeling_*.py", "integrations/*.py", "modeling_*.py", "utils/generic.py")


@functools.lru_cache(maxsize=1)
def names() -> frozenset[str]:
    found: set[str] = set()
    for pattern in _FILES:
        for path in sorted(ROOT.glob(pattern)):
            if not path.name.startswith(("modeling_tf", "modeling_flax")):
                for node in ast.walk(ast.parse(path.read_text())):
                    found.update(_named_by(node))
    return frozenset(found - _SUBJECTS)


def _named_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        parameters = [one.arg for one in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
        of_decoder = node.name == "forward" and "input_ids" in parameters
        if of_decoder and {"past_key_values", "cache"} & set(parameters):
            yield from parameters
        if node.name.endswith("attention_forward") and "query" in parameters:
            yield from parameters
        if node.name == "forward":
            yield from (name for inner in ast.walk(node) for name in _read_from_kwargs(inner))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "attention_interface":
        yield from (keyword.arg for keyword in node.keywords if keyword.arg is not None)
    elif isinstance(node, ast.ClassDef) and node.name.endswith("Kwargs"):
        yield from (one.target.id for one in node.body
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name))


def _read_from_kwargs(node: ast.AST) -> Iterator[str]:
    """kwargs.get("name"), kwargs.pop("name") and kwargs["name"]."""
    of: ast.AST | None = None
    name: ast.AST | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        if node.func.attr in ("get", "pop"):
            of, name = node.func.value, node.args[0]
    elif isinstance(node, ast.Subscript):
        of, name = node.value, node.slice
    if isinstance(of, ast.Name) and of.id == "kwargs" and isinstance(name, ast.Constant):
        yield str(name.value)


if __name__ == "__main__":
    print("\n".join(sorted(names())))
