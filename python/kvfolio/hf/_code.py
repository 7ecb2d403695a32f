# SPDX-License-Identifier: Apache-2.0
"""Names of code that last: of an installed package by its version, other code by its text.

Values that a module or a class got while the program ran are in no name (docs/huggingface.md).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import json
import pathlib
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, Callable


def texts_of(modules: Iterable[str]) -> list[str]:
    """Of these modules, and of all that they import: a digest of the text, or the version of the package.

    Raises ValueError for one of these that has no file.
    """
    facts: set[str] = set()
    seen: set[str] = set()
    todo, packaged = list(modules), set(sys.stdlib_module_names)
    wanted = set(todo)
    while todo:
        module = todo.pop()
        package, _, _ = module.partition(".")
        if module in seen or package in packaged:
            continue
        if has_version(module):
            packaged.add(package)
            facts.add(f"{package} {version_of(package)}")
            continue
        seen.add(module)
        path, folders = _found(module)
        try:
            text = b"" if path is None and folders is not None else pathlib.Path(path or "").read_bytes()
        except OSError as error:
            if module not in wanted:
                continue  # an import that is allowed to fail
            raise ValueError(
                f"the code of module {module}, of which a part of the model is, cannot be read: it has no name that "
                "lasts, so its prompts cannot be kept"
            ) from error
        facts.add(f"{module} {hashlib.sha256(text).hexdigest()}")
        todo.extend(_imports(text, module, folders is not None) if path is None or path.endswith(".py") else ())
    return sorted(facts)


def _found(module: str) -> tuple[str | None, list[str] | None]:
    """Its file, and the folders of its submodules if it is a package. Nothing is loaded for that."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        folders = getattr(loaded, "__path__", None)
        return getattr(loaded, "__file__", None), None if folders is None else list(folders)
    parent, _, _ = module.rpartition(".")
    around = _found(parent)[1] if parent else None
    spec = None if parent and around is None else importlib.machinery.PathFinder.find_spec(module, around)
    if spec is None:
        return None, None
    return spec.origin, spec.submodule_search_locations


def _imports(text: bytes, module: str, is_package: bool) -> set[str]:
    """All that may be modules among what it imports, wherever that stands in it, and the packages around these."""
    names = {module}
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        nodes = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = module.split(".")[: None if is_package else -1]
            base = around[: len(around) - node.level + 1] if node.level else []
            whole = ".".join([*base, *filter(None, [node.module])])
            names.update([whole, *(f"{whole}.{alias.name}" for alias in node.names)])
    return {".".join(parts[:end]) for name in names if name for parts in [name.split(".")] for end in range(1, len(parts) + 1)}


def has_version(module: str) -> bool:
    """A version says what its code is: that of its package, or ours, whose kernels are named apart."""
    package, _, _ = module.partition(".")
    return package.startswith("kvfolio") or version_of(package) is not None


@functools.lru_cache(maxsize=None)
def version_of(package: str) -> str | None:
    """Of what is installed under this name of a module; None if it is not, or may be written to where it lies."""
    if package == "torch":
        return str(sys.modules["torch"].__version__)
    for name in [package, *_distributions().get(package, ())]:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        said: Any = json.loads(found.read_text("direct_url.json") or "{}")
        path = _found(package)[0]
        lies_there = path is not None and pathlib.Path(path).is_relative_to(pathlib.Path(str(found.locate_file(""))))
        if found.read_text("RECORD") and lies_there and not said.get("dir_info", {}).get("editable"):
            return found.version
    return None


@functools.lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[str]]:
    """By the names of their modules, which may be others."""
    return importlib.metadata.packages_distributions()


def name_of_function(place: str, function: Any, plain: Callable[[Any, str], str]) -> str:
    """The name of a function behind a table's word; ``plain``: the text of a value of that place, or an exception.

    Raises ValueError for what holds values that cannot be read off its text.
    """
    if function is None:
        return "none"
    if type(function) is not types.FunctionType or function.__closure__ is not None:
        kind = "a closure" if type(function) is types.FunctionType else f"a {type(function).__name__}"
        raise ValueError(
            f"{place} is {kind}, which has no name that lasts: its prompts cannot be kept. Make it a plain function of a "
            "module, which reads what it needs off its arguments"
        )
    module = str(function.__globals__.get("__name__"))  # a decorator can say another __module__
    digest = hashlib.sha256(repr(_text_of(function.__code__)).encode())
    defaults = []
    given: list[tuple[Any, Any]] = [*enumerate(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    for name, value in given:
        at = f"the default {name} of {place}"
        defaults.append(f"{name}={name_of_function(at, value, plain) if callable(value) else plain(value, at)}")
    source = module if has_version(module) else f"{module} {texts_of([module])}"
    return f"{source} {function.__qualname__} {digest.hexdigest()} {', '.join(defaults)}"


def _text_of(code: Any) -> Any:
    """Two functions of one file may have one name, and one line."""
    if isinstance(code, types.CodeType):
        return code.co_code, code.co_names, code.co_varnames, [_text_of(each) for each in code.co_consts]
    if isinstance(code, (tuple, frozenset)):  # a set has another order in another process
        parts = [repr(_text_of(each)) for each in code]
        return type(code).__name__, sorted(parts) if isinstance(code, frozenset) else parts
    return type(code).__name__, repr(code)
