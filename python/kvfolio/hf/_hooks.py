# SPDX-License-Identifier: Apache-2.0
"""Hooks of a model: an observer until it is seen acting.

What a hook will do cannot be read off it, so each is run inside an Observed, which compares what it was
given with what is there afterwards: objects by identity, tensors by version counter, and those of
inference mode, which have none, by their elements. A hook that returns other objects, writes to a tensor,
or changes what the namespace has of its module acts. The forward in which it does publishes nothing, and the
pool remembers the code of the hook: models that carry it find and publish nothing there, unless
``namespace=`` speaks for them. What hooks change elsewhere in the model shows when the last layer has its
keys, if it was not taken back until then.

Hooks that run behind the last layer's keys may do what they like: no key depends on them.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Iterator

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ._namespace import Known, state_of_module

if TYPE_CHECKING:
    from ._core import Core

Hooks = MutableMapping[int, Any]

_thread = threading.local()
_WORDS = (bool, int, float, str, type(None))


def enter(decoder: torch.nn.Module, core: Core | None) -> None:
    """A forward of the decoder begins in this thread, with this cache or without one."""
    stack = _forwards()
    stack.append((weakref.ref(decoder), None if core is None else weakref.ref(core)))


def leave(decoder: torch.nn.Module) -> None:
    """It ended, or died. What lies above it are forwards that an interrupt has ended."""
    stack = _forwards()
    for place in range(len(stack) - 1, -1, -1):
        if stack[place][0]() is decoder:
            del stack[place:]
            break


def _forwards() -> list[Any]:
    """Those that run in this thread: the decoder of each, and its cache."""
    if not hasattr(_thread, "forwards"):
        _thread.forwards = []
    forwards: list[Any] = _thread.forwards
    return forwards


def _watching() -> Core | None:
    """The cache of the innermost forward, if its hooks are watched."""
    stack = _forwards()
    reference = stack[-1][1] if stack else None
    core: Core | None = None if reference is None else reference()
    return core if core is not None and core.watching else None


class Observed:
    """A hook in its place among the hooks of a module. It is the hook itself for all who compare."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook

    def __call__(self, module: torch.nn.Module, *given: Any) -> Any:
        core = _watching()
        if core is None:
            return self.hook(module, *given)
        before = [(leaf, _mark(leaf)) for leaf in _leaves(given)]
        state = state_of_module(module)
        result = self.hook(module, *given)
        if self._acted(before, given, result) or state != state_of_module(module):
            core.hook_acted(self.hook, module)
        return result

    def _acted(self, before: list[tuple[Any, Any]], given: Any, result: Any) -> bool:
        leaves = list(_leaves(given))
        if len(leaves) != len(before):
            return True
        if not all(leaf is old and _same_mark(leaf, mark) for leaf, (old, mark) in zip(leaves, before)):
            return True
        return result is not None and not _same(result, self._replaced(given))

    def _replaced(self, given: tuple[Any, ...]) -> Any:
        """What a result of the hook is put in place of."""
        return given

    def __eq__(self, other: object) -> bool:
        return bool(self.hook == (other.hook if isinstance(other, Observed) else other))

    def __hash__(self) -> int:
        return hash(self.hook)

    def __getattr__(self, name: str) -> Any:
        if name == "hook":  # a copy under way has none yet
            raise AttributeError(name)
        return getattr(self.hook, name)

    def __reduce__(self) -> Any:
        return type(self), (self.hook,)


class ObservedAfter(Observed):
    """A hook behind a forward, whose result takes the place of the output."""

    def _replaced(self, given: tuple[Any, ...]) -> Any:
        return given[-1]


#: The decoders of models that are called from outside.
_decoders: MutableMapping[torch.nn.Module, weakref.ref[torch.nn.Module]] = WeakIdKeyDictionary()


def watch_hooks(model: torch.nn.Module, known: Known) -> None:
    """Observes the hooks of a model, now and whenever it is called with a cache of ours."""
    observe(known)
    if model in _decoders:
        return
    for part in model.modules():
        if part is not model and any(map(_is_ours, part._forward_pre_hooks.values())):
            _decoders[model] = weakref.ref(part)
            model.register_forward_pre_hook(_before_call, prepend=True, with_kwargs=True)


def _before_call(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Other hooks wait for the decoder's forward, but those in front of that one are read before it begins."""
    decoder = _decoders[module]() if module in _decoders else None
    if decoder is not None and any(hasattr(value, "_core") for value in (*kwargs.values(), *args)):
        _wrap(torch.nn.modules.module._global_forward_pre_hooks, Observed)
        _wrap(decoder._forward_pre_hooks, Observed)


def observe(known: Known) -> str | None:
    """Puts every hook of these modules, and of all modules, into an Observed. Returns the name of one that
    comes too late if the decoder's forward has begun: registered behind ours since the last look."""
    every = torch.nn.modules.module
    late = _wrap(every._global_forward_pre_hooks, Observed)
    _wrap(every._global_forward_hooks, ObservedAfter)
    for number in known.hooked:
        module = known.modules[number]()
        if module is not None:
            late = _wrap(module._forward_pre_hooks, Observed) or late
            _wrap(module._forward_hooks, ObservedAfter)
    return late


def _wrap(hooks: Hooks, kind: type[Observed]) -> str | None:
    behind_ours, late = False, None
    for key, hook in list(hooks.items()):
        if _is_ours(hook):
            behind_ours = True
        elif not isinstance(hook, Observed):
            hooks[key] = kind(hook)
            late = name_of(hook) if behind_ours else late
    return late


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("kvfolio.hf.") and not isinstance(hook, Observed)


def hooks_of(known: Known) -> Iterator[tuple[Any, torch.nn.Module | None]]:
    """The hooks of these modules with their module, and those of all modules with None."""
    every = torch.nn.modules.module
    for hook in (*every._global_forward_pre_hooks.values(), *every._global_forward_hooks.values()):
        yield _bare(hook), None
    for number in known.hooked:
        module = known.modules[number]()
        if module is not None:
            for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
                yield _bare(hook), module


def has_hooks(known: Known) -> bool:
    """Of others than kvfolio."""
    return any(not _is_ours(hook) for hook, _ in hooks_of(known))


def _bare(hook: Any) -> Any:
    return hook.hook if isinstance(hook, Observed) else hook


def code_of(hook: Any) -> Any:
    """What a hook that is registered anew has in common with the one that acted."""
    function = _function_of(hook)
    return getattr(function, "__code__", None) or type(function)


def name_of(hook: Any) -> str:
    function = _function_of(hook)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _function_of(hook: Any) -> Any:
    """By their types: others may have any attribute that is asked for, as mocks do."""
    while isinstance(hook, (functools.partial, types.MethodType)):
        hook = hook.func if isinstance(hook, functools.partial) else hook.__func__
    return hook


# ---- what was given, before and after ----


def _leaves(thing: Any) -> Iterator[Any]:
    if isinstance(thing, (tuple, list)):
        for each in thing:
            yield from _leaves(each)
    elif isinstance(thing, dict):
        for key, each in thing.items():
            yield key
            yield from _leaves(each)
    else:
        yield thing


def _mark(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return None
    return leaf.clone() if leaf.is_inference() else leaf._version


def _same_mark(leaf: Any, mark: Any) -> bool:
    if isinstance(mark, torch.Tensor):
        return leaf.shape == mark.shape and bool(((leaf == mark) | ((leaf != leaf) & (mark != mark))).all())
    return mark is None or bool(leaf._version == mark)


def _same(result: Any, given: Any) -> bool:
    ours, theirs = list(_leaves(result)), list(_leaves(given))
    return len(ours) == len(theirs) and all(
        one is other or (isinstance(one, _WORDS) and type(one) is type(other) and one == other)
        for one, other in zip(ours, theirs)
    )
