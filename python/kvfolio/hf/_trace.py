# SPDX-License-Identifier: Apache-2.0
"""Where a survey of a model looked, and which objects it found there.

Objects are compared by identity, and the trace keeps those it found, so that no id is used again.
Modules and tensors it keeps weakly, since they are large: what a model has dropped is not held.
"""

from __future__ import annotations

import operator
import types
import weakref
from typing import Any, Callable, Iterable, NamedTuple, Sequence

import numpy as np
import torch

PARTS = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
         "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")

_Getter = Callable[[Any], Iterable[Any]]


class Trace:
    #: The attribute of a model that keeps its trace: so they end together, whatever the trace refers to.
    ATTRIBUTE = "_kvfolio_trace"

    def __init__(self) -> None:
        #: The survey found something that only another survey can compare.
        self.blind = False
        self.objects: list[Any] = []
        self.functions: list[types.FunctionType] = []
        self.arrays: list[np.ndarray] = []
        self.tensors: list[weakref.ref[torch.Tensor]] = []
        self._tensor_states: list[tuple[Any, ...]] = []
        self._modules: list[tuple[weakref.ref[torch.nn.Module], _Getter]] = []
        self._parts: list[tuple[weakref.ref[torch.nn.Module], str]] = []
        self._classes: list[tuple[Any, _Getter]] = []
        self._empty: list[Any] = []
        self._full: list[Any] = []
        self._globals: list[tuple[dict[str, Any], tuple[str, ...]]] = []
        self._readers: list[Callable[[], Iterable[Any]]] = []
        self._getters: dict[tuple[str, ...], _Getter] = {}
        self._found: _Look | None = None
        self._found_weak: list[Callable[[], Any]] = []

    # ---- what a survey notes ----

    def note_container(self, container: Any) -> None:
        (self._full if container else self._empty).append(container)

    def note_values(self, read: Callable[[], Iterable[Any]]) -> None:
        self._readers.append(read)

    def note_globals(self, known: dict[str, Any], names: tuple[str, ...]) -> None:
        self._globals.append((known, names))

    def note_class(self, kind: type, names: Sequence[str]) -> None:
        self._classes.append((kind, self._getter(names)))

    def note_module(self, module: torch.nn.Module) -> None:
        reference, entries = weakref.ref(module), vars(module)
        full = [part for part in PARTS if entries[part]]
        self._parts += [(reference, part) for part in full]
        self._empty += [entries[part] for part in PARTS if part not in full]
        # Full parts are compared by what they hold: an entry here would keep that alive.
        names = [name for name in entries if name not in full and name != Trace.ATTRIBUTE]
        self._modules.append((reference, self._getter(names)))

    def note_tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        state = state_of(tensor)
        self.tensors.append(weakref.ref(tensor))
        self._tensor_states.append(state)
        return state

    def _getter(self, names: Sequence[str]) -> _Getter:
        key = tuple(names)
        if key not in self._getters:
            self._getters[key] = _getter_of(key)
        return self._getters[key]

    # ---- whether it still is so ----

    def close(self) -> None:
        """The survey is done: keeps what is there now."""
        self._found = self._look()
        self._found_weak = [_nothing if part is None else weakref.ref(part) for part in self._found.weak]
        self._found.weak.clear()

    def holds(self) -> bool:
        """All that the survey saw is as it was, but for elements of tensors and arrays."""
        known = self._found
        if self.blind or known is None or any(self._empty):
            return False
        try:
            now = self._look()
            weak = [reference() for reference in self._found_weak]
            states = [state_of(reference()) for reference in self.tensors]
        except (AttributeError, KeyError, RuntimeError):
            return False  # something is gone, or another thread is changing it
        return (
            now.sizes == known.sizes
            and len(now.strong) == len(known.strong)
            and len(now.weak) == len(weak)
            and all(map(operator.is_, now.strong, known.strong))
            and all(map(operator.is_, now.weak, weak))
            and states == self._tensor_states
        )

    def _look(self) -> _Look:
        found: list[Any] = []
        sizes: list[int] = []
        weak: list[Any] = []
        for reference, get in self._modules:
            module = reference()
            entries = module.__dict__
            sizes.append(len(entries))
            found.append(type(module))
            found += get(entries)
        for reference, name in self._parts:
            part = reference().__dict__[name]
            sizes.append(len(part))
            found += part
            weak += part.values()
        for container in self._full:
            sizes.append(len(container))
            found += container
            if hasattr(container, "values"):
                found += container.values()
        for kind, get in self._classes:
            entries = kind.__dict__
            sizes.append(len(entries))
            found += get(entries)
        found += map(type, self.objects)
        for known, names in self._globals:
            found += map(known.get, names)
        for function in self.functions:
            found += (function.__code__, function.__defaults__, function.__kwdefaults__)
            if function.__closure__:
                found += map(content_of, function.__closure__)
        for read in self._readers:
            found += read()
        return _Look(found, sizes, weak)


class _Look(NamedTuple):
    strong: list[Any]
    sizes: list[int]  # so that two containers cannot trade places
    weak: list[Any]  # modules and tensors


def state_of(tensor: torch.Tensor | None) -> tuple[Any, ...]:
    """What changes when a tensor is written to, or gets other memory."""
    if tensor is None:
        raise AttributeError("the tensor is gone")
    version = -1 if tensor.is_inference() else tensor._version
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a tensor that wraps others has no memory of its own
        address = 0
    return version, address, tensor.dtype, tuple(tensor.shape)


def _getter_of(names: tuple[str, ...]) -> _Getter:
    """Reads these entries as a tuple, in C."""
    if len(names) > 1:
        return operator.itemgetter(*names)
    return lambda entries: tuple(entries[name] for name in names)


def _nothing() -> None:
    """A weak reference to None, which has none."""


def content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return NotImplemented
