# SPDX-License-Identifier: Apache-2.0
"""What a survey of a model does not look into (see _survey.py)."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import pathlib
import sys
import types
from typing import Any

_BY_NUMBER = (types.ModuleType, logging.Logger, logging.LoggerAdapter)
_BY_NUMBER_OF_TRANSFORMERS = {"GenerationConfig", "PreTrainedTokenizerBase", "ProcessorMixin"}


def is_of_torch(module: str | None) -> bool:
    return module is not None and (module == "torch" or module.startswith("torch."))


def is_by_number(thing: Any) -> bool:
    """They take no part in computing keys, or nobody looks into them: they are known by their identity."""
    kind = type(thing)
    if isinstance(thing, _BY_NUMBER) or is_of_torch(kind.__module__):
        return True
    return any(base.__name__ in _BY_NUMBER_OF_TRANSFORMERS and base.__module__.startswith("transformers.")
               for base in kind.__mro__)


@functools.lru_cache(maxsize=4096)
def is_program(module: str) -> bool:
    """Not a library: the functions of those are known by their identity alone."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("torch", "transformers", "kvfolio"):
        return False
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    installed = {"site-packages", "dist-packages"} & set(pathlib.PurePath(path).parts)
    return not installed and top not in _distributions()


@functools.lru_cache(maxsize=1)
def _distributions() -> frozenset[str]:
    """The packages that an installer knows, wherever they lie."""
    return frozenset(importlib.metadata.packages_distributions())
