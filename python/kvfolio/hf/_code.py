# SPDX-License-Identifier: Apache-2.0
"""Names of code that last: of an installed package by its version, other code by its text.

Values that a module or a class got while the program ran are in no name (docs/huggingface.md).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import pathlib
import sys
import types
from typing import Any, Callable


def source_of(module: str) -> str:
    """The module, and a digest of its text."""
    try:
        path = inspect.getsourcefile(sys.modules[module])
        return f"{module} {hashlib.sha256(pathlib.Path(path or '').read_bytes()).hexdigest()}"
    except (KeyError, TypeError, OSError) as error:
        raise ValueError(
            f"the code of module {module}, of which a part of the model is, cannot be read: it has no name that lasts, "
            "so its prompts cannot be kept"
        ) from error


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def has_version(module: str) -> bool:
    """Its package is named with its version beside all others, or is ours."""
    package = module.partition(".")[0]
    return package == "kvfolio" or version_of(package) is not None


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
    source = module if has_version(module) else source_of(module)
    return f"{source} {function.__qualname__} {digest.hexdigest()} {', '.join(defaults)}"


def _text_of(code: Any) -> Any:
    """Two functions of one file may have one name, and one line."""
    if isinstance(code, types.CodeType):
        return code.co_code, code.co_names, code.co_varnames, [_text_of(each) for each in code.co_consts]
    if isinstance(code, (tuple, frozenset)):  # a set has another order in another process
        parts = [repr(_text_of(each)) for each in code]
        return type(code).__name__, sorted(parts) if isinstance(code, frozenset) else parts
    return type(code).__name__, repr(code)
