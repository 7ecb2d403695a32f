# SPDX-License-Identifier: Apache-2.0
"""Looks at a module's calls without a hook of its own, which would be another model to a cache."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import torch


@contextlib.contextmanager
def before(module: torch.nn.Module, act: Callable[..., Any]) -> Iterator[None]:
    """Calls act(module, arguments) before each forward of the module."""

    def hook(called: torch.nn.Module, arguments: tuple) -> None:
        if called is module:
            act(called, arguments)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class Fed:
    """``with Fed(model) as fed``: fed.tokens counts what the model computes, all rows together."""

    def __init__(self, model: Any) -> None:
        self._before = before(model.get_input_embeddings(), self._count)
        self.tokens = 0

    def __enter__(self) -> Fed:
        self._before.__enter__()
        return self

    def _count(self, module: Any, arguments: tuple) -> None:
        self.tokens += arguments[0].numel()

    def __exit__(self, *_: Any) -> None:
        self._before.__exit__(None, None, None)
