# SPDX-License-Identifier: Apache-2.0
"""What a model is made of, apart from the elements of its tensors.

A model is a graph of Python objects, and each may change what a forward computes: a norm's epsilon, an
activation that was replaced, a method of an instance or of a class, a hook, a value of the configuration.
So a survey walks over all that the modules refer to and writes down facts: numbers and words by their
value, functions and other objects by a number of their own (see _numbers.py) and by what they hold.

The walk takes some milliseconds, so it also notes a Trace: where it looked and which objects it found
there. As long as the same objects are there, the facts are the same.

Functions of the models' own files and of programs are followed into the functions and the plain values
that they name. What is not seen then: what a function reaches through another module (``math.sqrt``) or
inside of a global object, the insides of libraries, PyTorch's own state, files, and random numbers.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import threading
import types
import weakref
from typing import Any, Iterable

import numpy as np
import torch
from transformers import masking_utils, modeling_utils

from ._layers import UnsupportedModel
from ._numbers import number_of
from ._outside import is_by_number, is_of_torch, is_program
from ._trace import HOOKS, PARTS, Trace, content_of

Fact = tuple[str, Any]

_MOST_FACTS = 1_000_000
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range,
          torch.dtype, torch.device, torch.layout, torch.memory_format)
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Event, threading.Condition,
          threading.local)
_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
              types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodWrapperType,
              types.BuiltinFunctionType)
_PROPERTIES = (property, staticmethod, classmethod, functools.cached_property)
#: Of a module: what the walk reads in another way, and what no forward reads.
_APART = {*PARTS, *HOOKS, "_non_persistent_buffers_set", "_is_full_backward_hook", "_backward_hooks",
          "_backward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks", "warnings_issued",
          "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", Trace.ATTRIBUTE}


class Survey:
    """Facts about a model now, and the trace that says whether they still hold."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.facts: list[Fact] = []
        self.trace = Trace()
        self._places: dict[int, str] = {}
        self._kept: list[Any] = []  # whose id() is in _places
        self._files = {type(part).__module__ for part in model.modules()}
        self._files = {name for name in self._files if not is_of_torch(name)}
        self._visit("model", model)
        self._visit_registries(model)
        self._places.clear()
        self._kept.clear()
        self.trace.close()

    # ---- any object ----

    def _say(self, place: str, *fact: Any) -> None:
        if len(self.facts) == _MOST_FACTS:
            raise UnsupportedModel(f"{place}: the model refers to more than {_MOST_FACTS} objects")
        self.facts.append((place, fact))

    def _visit(self, place: str, thing: Any) -> None:
        kind = type(thing)
        if kind in _PLAIN or isinstance(thing, (np.generic, np.dtype)):
            self._say(place, kind.__name__, repr(thing))
        elif isinstance(thing, enum.Enum):
            self._say(place, number_of(kind), thing.name)
        elif isinstance(thing, (int, float, complex, str, bytes)):
            base: Any = next(base for base in _PLAIN if isinstance(thing, base))
            self._say(place, number_of(kind), base.__repr__(thing))
        elif isinstance(thing, type):
            self._say(place, "class", number_of(thing))
        elif isinstance(thing, (tuple, frozenset)):
            self._visit_items(place, thing)
        elif self._is_new(place, thing):
            self._visit_new(place, thing)

    def _is_new(self, place: str, thing: Any) -> bool:
        known = self._places.setdefault(id(thing), place)
        if known is not place:
            self._say(place, "is", known)
            return False
        self._kept.append(thing)
        return True

    def _visit_new(self, place: str, thing: Any) -> None:
        if isinstance(thing, torch.Tensor):
            self._visit_tensor(place, thing)
        elif isinstance(thing, torch.nn.Module):
            self._visit_module(place, thing)
        elif isinstance(thing, types.FunctionType):
            self._visit_function(place, thing)
        elif isinstance(thing, types.MethodType):
            self._visit(f"{place}.__func__", thing.__func__)
            self._visit(f"{place}.__self__", thing.__self__)
        elif isinstance(thing, functools.partial):
            for name in ("func", "args", "keywords"):
                self._visit(f"{place}.{name}", getattr(thing, name))
        elif isinstance(thing, (dict, list, set)) or type(thing) is types.MappingProxyType:
            self._visit_container(place, thing)
        elif isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
            self._say(place, str(thing.dtype), thing.shape)
            self.trace.arrays.append(thing)
        elif isinstance(thing, _PROPERTIES):
            for name in ("fget", "__func__", "func"):
                if hasattr(thing, name):
                    self._visit(f"{place}.{name}", getattr(thing, name))
        elif isinstance(thing, weakref.ReferenceType):
            target = thing()
            self._say(place, "weak", None if target is None else _number_or_kind(target))
        elif isinstance(thing, _C_METHODS):
            self._say(place, "C", getattr(thing, "__qualname__", repr(type(thing))))
            if isinstance(thing, types.BuiltinFunctionType):
                self._visit(f"{place}.__self__", thing.__self__)
        elif isinstance(thing, _LOCKS):
            self._say(place, "lock")
        elif is_by_number(thing):
            self._say(place, type(thing).__qualname__, _number_or_kind(thing))
        else:
            self._visit_object(place, thing)

    def _visit_items(self, place: str, items: Any) -> None:
        self._say(place, type(items).__qualname__, len(items))
        if isinstance(items, (set, frozenset)):
            items = sorted(items, key=repr)
        for index, item in enumerate(items):
            self._visit(f"{place}[{index}]", item)

    def _visit_container(self, place: str, container: Any) -> None:
        self.trace.note_container(container)
        if isinstance(container, (list, set)):
            self._visit_items(place, container)
        else:
            self._say(place, type(container).__qualname__, len(container))
            for key, value in container.items():
                if type(key) is not str:
                    self._visit(f"{place}: key", key)
                self._visit(f"{place}[{key!r}]", value)
        if type(container) not in (dict, list, set) and hasattr(container, "__dict__"):
            self._visit_entries(place, vars(container))

    def _visit_object(self, place: str, thing: Any) -> None:
        """Of a class in Python: its number and what it holds. Of one in C: what a pickle would hold."""
        self._say(place, type(thing).__qualname__, _number_or_kind(thing))
        self._visit_class(type(thing))
        self.trace.objects.append(thing)
        entries = getattr(thing, "__dict__", None)
        if isinstance(entries, dict):
            self._visit_entries(place, entries)
        slots = [name for base in type(thing).__mro__ for name in _slots(base) if hasattr(thing, name)]
        for name in slots:
            self.trace.note_values(functools.partial(_value_of, thing, name))
            self._visit(f"{place}.{name}", getattr(thing, name))
        if entries is None and not slots and type(thing) is not object:
            self._visit_state(place, thing)

    def _visit_state(self, place: str, thing: Any) -> None:
        try:
            known = copyreg.dispatch_table.get(type(thing))
            state = thing.__reduce_ex__(2) if known is None else known(thing)
        except Exception as error:
            raise UnsupportedModel(
                f"{place} is a {type(thing).__module__}.{type(thing).__qualname__}, and nobody can see "
                f"whether it changes ({error}): a stale hit would give wrong tokens. Keep it elsewhere than "
                "in the model, or pass model.config with a namespace= that you change with it"
            ) from error
        self.trace.blind = True
        self._visit(f"{place}: state", state if isinstance(state, str) else tuple(state))

    def _visit_entries(self, place: str, entries: dict[str, Any]) -> None:
        self.trace.note_container(entries)
        for name, value in entries.items():
            self._visit(f"{place}.{name}", value)

    # ---- modules and tensors ----

    def _visit_module(self, place: str, module: torch.nn.Module) -> None:
        self._say(place, type(module).__qualname__, number_of(module))
        self._visit_class(type(module))
        entries = vars(module)
        self.trace.note_module(module)
        for name, value in entries.items():
            if name not in _APART:
                self._visit(f"{place}.{name}", value)
        self._visit_hooks(place, "hook", module._forward_hooks, module._forward_hooks_with_kwargs,
                          module._forward_hooks_always_called)
        self._visit_hooks(place, "pre-hook", module._forward_pre_hooks,
                          module._forward_pre_hooks_with_kwargs, {})
        for part in (module._parameters, module._buffers, module._modules):
            for name, value in part.items():
                self._visit(f"{place}.{name}", value)

    def _visit_hooks(self, place: str, word: str, hooks: Any, with_kwargs: Any, always: Any) -> None:
        """Without the keys, which are new when a hook is taken away and registered again."""
        for container in (hooks, with_kwargs, always):
            self.trace.note_container(container)
        for index, (key, hook) in enumerate(hooks.items()):
            self._say(f"{place}: {word} {index}", key in with_kwargs, key in always)
            self._visit(f"{place}: {word} {index}", hook)

    def _visit_tensor(self, place: str, tensor: torch.Tensor) -> None:
        seen = self.trace.note_tensor(tensor)
        self._say(place, "tensor", number_of(tensor), str(tensor.device), *seen)

    # ---- functions and classes ----

    def _visit_function(self, place: str, function: types.FunctionType) -> None:
        self._say(place, "function", function.__qualname__, number_of(function), number_of(function.__code__))
        if is_of_torch(function.__module__):
            return
        self.trace.functions.append(function)
        self._visit(f"{place}.__defaults__", function.__defaults__)
        self._visit(f"{place}.__kwdefaults__", function.__kwdefaults__)
        for index, cell in enumerate(function.__closure__ or ()):
            self._visit(f"{place}: closure {index}", content_of(cell))
        self._visit(f"{place}.__dict__", vars(function))
        if self._is_followed(function.__module__):
            self._visit_globals(function)

    def _is_followed(self, module: str | None) -> bool:
        return module is not None and (module in self._files or is_program(module))

    def _visit_globals(self, function: types.FunctionType) -> None:
        names = tuple(name for name in _names(function.__code__) if name in function.__globals__)
        self.trace.note_globals(function.__globals__, names)
        for name in names:
            place, value = f"{function.__globals__['__name__']}.{name}", function.__globals__[name]
            if type(value) in (*_PLAIN, tuple, list, dict, set, frozenset):
                self._visit(place, value)
            elif isinstance(value, types.FunctionType) and self._is_followed(value.__module__):
                self._visit(place, value)
            else:
                self._say(place, _number_or_kind(value))

    def _visit_class(self, kind: type) -> None:
        for base in kind.__mro__:
            place = f"{base.__module__}.{base.__qualname__}"
            if base in (object, dict, list, set, tuple) or not self._is_new(place, base):
                continue
            self._say(place, number_of(base))
            known = vars(base)
            names = [name for name in known if _is_read(name, known[name])]
            self.trace.note_class(base, names)
            followed = self._is_followed(base.__module__)
            for name in names:
                value = known[name]
                if followed or type(value) in _PLAIN or isinstance(value, _PROPERTIES):
                    self._visit(f"{place}.{name}", value)
                else:
                    self._say(f"{place}.{name}", _number_or_kind(value))

    def _visit_registries(self, model: torch.nn.Module) -> None:
        """What stands behind the names of attention functions, and hooks of all modules."""
        configs = [part.config for part in model.modules() if hasattr(part, "config")]
        used = sorted({str(getattr(config, "_attn_implementation", None)) for config in configs})
        attentions = modeling_utils.ALL_ATTENTION_FUNCTIONS
        masks = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS

        def registered() -> Iterable[Any]:
            return [known.get(name) for name in used for known in (attentions, masks)]

        self.trace.note_values(registered)
        self._visit_items("attention functions", used)
        self._visit_items("attention functions", [_number_or_kind(one) for one in registered()])
        every = torch.nn.modules.module
        self._visit_hooks("all modules", "hook", every._global_forward_hooks,
                          every._global_forward_hooks_with_kwargs, every._global_forward_hooks_always_called)
        self._visit_hooks("all modules", "pre-hook", every._global_forward_pre_hooks, {}, {})


def _number_or_kind(thing: Any) -> Any:
    try:
        return number_of(thing)
    except TypeError:  # it has no weak references; its contents or its kind must do
        return type(thing).__qualname__


def _value_of(thing: Any, name: str) -> tuple[Any]:
    return (getattr(thing, name, None),)


def _slots(base: type) -> tuple[str, ...]:
    slots = vars(base).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _is_read(name: str, value: Any) -> bool:
    """An entry of a class that a forward may read; Python and transformers keep notes of their own there."""
    if name.endswith("_cached_value"):
        return False
    if name.startswith("__") or name == "_abc_impl":
        return isinstance(value, (types.FunctionType, staticmethod, classmethod))
    return True


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The global names, and others, that a function and those inside it use."""
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.update(dict.fromkeys(_names(constant)))
    return tuple(found)
