# SPDX-License-Identifier: Apache-2.0
"""Wrong objects where an object is an argument: a TypeError that names the argument, for every function."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from typing import Any, Callable, Iterator

import numpy as np
import pytest

import kvfolio
from kvfolio import _core

CLASSES = {name: kind for name, kind in vars(_core).items() if inspect.isclass(kind)}
SPEC = [kvfolio.GroupSpec(num_layers=1, num_kv_heads=2, head_dim=16, num_blocks=8)]


def made() -> dict[str, Any]:
    """One object of each class."""
    manager, storage = kvfolio.Manager(SPEC), kvfolio.Storage(SPEC)
    sequence = manager.open([1, 2, 3])[0]
    step = manager.step()
    step.append(sequence, [1, 2, 3])
    plan = step.plan(copy=False)
    group = plan.groups[0]
    objects = [
        manager, storage, step, plan, group, group.block_table, storage.view(), kvfolio.ThreadPool(1),
        kvfolio.Batch([0, 3], [3], np.zeros((1, 1), np.int32)), kvfolio.TokenStore(16, max_tokens=8),
        kvfolio.BlockStore(SPEC[0]),
        manager.counters, manager.usage(0), manager.info(sequence), _core.ModuleWatch([], []), _core.TensorWatch([], id, []),
        _core.LayerStates(storage.view(), *np.zeros((2, 1, 2, 32, 16), np.float32)),
    ]
    return {type(each).__name__: each for each in objects}


def raw(kind: type) -> Any:
    """An object whose __init__ did not run."""
    return kind.__new__(kind)


def wrong_objects() -> Iterator[Any]:
    yield from (object(), 3, 1.5, "x", b"x", None, len, type, {}, [object()], (1.5,), [[1]],
                np.zeros(3, np.int64), np.zeros((1, 1)))
    yield from map(raw, CLASSES.values())
    yield from made().values()


def parameters(signature: str) -> list[tuple[str, str | None, bool, bool]]:
    """(name, annotation, by position, has a default) of each, but for self."""
    signature = re.sub(r"\\\d+", "0", re.sub(r"^def \w+", "def f", signature))
    arguments = ast.parse(signature + ": ...").body[0].args
    by_position = arguments.posonlyargs + arguments.args
    first_default = len(by_position) - len(arguments.defaults)
    found = [(each, True, index >= first_default) for index, each in enumerate(by_position)]
    found += [(each, False, default is not None)
              for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return [(each.arg, ast.unparse(each.annotation) if each.annotation else None, position, default)
            for each, position, default in found if each.arg != "self"]


def fitting(name: str, annotation: str | None) -> Any:
    """Something that may stand for an argument that is not looked at."""
    if name in ("modules", "names"):
        return []
    if "GroupSpec" in (annotation or ""):
        return SPEC
    plain = {"int | str": 0} | dict(int=0, float=0.5, bool=True, str="x", View=kvfolio.Storage(SPEC).view())
    if annotation in plain:
        return plain[annotation]
    return [[0]] if name == "tables" else [0] if re.search("Ints|Sequence|Ids", annotation or "") else None


class Method:
    """Calls a method of an object, which is a new one after a call that was not refused."""

    def __init__(self, kind: str, method: str) -> None:
        self.kind, self.method, self.owner = kind, method, None

    def __call__(self, *args: Any, **named: Any) -> None:
        self.owner = self.owner or made()
        getattr(self.owner[self.kind], self.method)(*args, **named)
        self.owner = None


def callables() -> dict[str, tuple[str, Callable[..., Any]]]:
    """By name: the signature, and what calls it."""
    found: dict[str, tuple[str, Callable[..., Any]]] = {}
    for name, thing in vars(_core).items():
        if hasattr(thing, "__nb_signature__"):
            found[name] = (thing.__nb_signature__[0][0], thing)
    for name, kind in CLASSES.items():
        for method in dir(kind):
            signature = getattr(getattr(kind, method), "__nb_signature__", None)
            if method == "__init__" and signature:
                found[name] = (signature[0][0], kind)
            elif signature and isinstance(inspect.getattr_static(kind, method), staticmethod):
                found[f"{name}.{method}"] = (signature[0][0], getattr(kind, method))
            elif signature and not isinstance(inspect.getattr_static(kind, method), property):
                found[f"{name}.{method}"] = (signature[0][0], Method(name, method))
    return found


CALLABLES = callables()
#: NumPy refuses there, in its own words.
NUMPYS = {"PlanArray.__array__", "PlanArray.__getitem__"}


def test_there_is_an_object_of_each_class_and_all_functions_are_found():
    assert made().keys() == CLASSES.keys()
    assert len(CALLABLES) > 80
    assert {"attend", "Manager", "Manager.open", "Storage.borrow", "Step.append_each"} <= CALLABLES.keys()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CALLABLES)
def test_a_wrong_object_is_a_type_error_that_names_the_argument(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one of the values is the name of a file
    signature, function = CALLABLES[name]
    wanted = parameters(signature)
    wrongs = list(wrong_objects())
    for index, (tried, _, _, _) in enumerate(wanted):
        for wrong in wrongs:
            args, named = [], {}
            for number, (other, annotation, by_position, has_default) in enumerate(wanted):
                value = wrong if number == index else fitting(other, annotation)
                if by_position and (number <= index or not has_default):
                    args.append(value)
                elif number == index or not (by_position or has_default):
                    named[other] = value
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # nanobind's, of an object without __init__
                    function(*args, **named)
            except TypeError as error:
                assert tried in str(error) or name in NUMPYS, (wrong, str(error))
            except (kvfolio.Error, LookupError, ValueError, OverflowError):
                pass  # it was looked into: the type is right, or one of several


@pytest.mark.filterwarnings("ignore:nanobind")
@pytest.mark.parametrize("name", CLASSES)
def test_an_object_without_init_is_a_type_error(name):
    kind = CLASSES[name]
    for attribute in dir(kind):
        found = inspect.getattr_static(kind, attribute)
        if isinstance(found, property):
            with pytest.raises(TypeError):
                getattr(raw(kind), attribute)
        elif f"{name}.{attribute}" in CALLABLES and not isinstance(found, staticmethod):
            wanted = parameters(CALLABLES[f"{name}.{attribute}"][0])
            args = [fitting(other, annotation) for other, annotation, by_position, default in wanted
                    if by_position and not default]
            try:
                getattr(raw(kind), attribute)(*args)
            except (TypeError, kvfolio.Error):
                continue
            assert attribute.startswith("__"), attribute


@pytest.mark.parametrize("call, message", [
    (lambda o: kvfolio.attend(np.zeros((3, 2, 16), np.float32), o["View"], o["Batch"], pool=3),
     "pool: int object, wanted: a ThreadPool or None"),
    (lambda o: kvfolio.attend(np.zeros((3, 2, 16), np.float32), o["View"], raw(_core.GroupPlan)),
     r"batch: kvfolio._core.GroupPlan object without __init__, wanted: a GroupPlan \(plan.groups"),
    (lambda o: kvfolio.Manager(raw(kvfolio.Storage)), "spec: kvfolio.* without __init__, wanted: a Storage"),
    (lambda o: kvfolio.Manager([3]), r"spec\[0\]: int object, wanted: a GroupSpec"),
    (lambda o: kvfolio.Manager(3), "spec: int object, wanted: a list of GroupSpec"),
    (lambda o: o["Manager"].open([1], root=3), "root: int object, wanted: a RootKey or None"),
    (lambda o: o["Manager"].open([1], media="x"), "media: str object, wanted: a list of MediaSpan"),
    (lambda o: o["Manager"].open([1], media=[2]), r"media\[0\]: int object, wanted: a MediaSpan"),
    (lambda o: o["Manager"].open([1], root=kvfolio.RootKey(model=3)), "root.model: int object, wanted: bytes or str"),
    (lambda o: o["Manager"].adopt(7, 3, 1), "tables: int object, wanted: a list of int32 arrays"),
    (lambda o: kvfolio.Storage.borrow(SPEC, 3), "arrays: int object, wanted: a list with a tuple of arrays"),
])
def test_messages_say_what_came_and_what_was_wanted(call, message):
    with pytest.raises(TypeError, match=message):
        call(made())


@pytest.mark.parametrize("name", sorted(CLASSES.keys() & set(kvfolio.__all__)))
def test_a_repr_is_one_line_without_an_address(name):
    shown = repr(made()[name])
    assert "0x" not in shown and "\n" not in shown and name.lower() in shown.replace(" ", "").lower()


@pytest.mark.parametrize("name, shown", [
    ("Manager", "<kvfolio.Manager: 1 sequence, 1 of 8 blocks held>"),
    ("Storage", "<kvfolio.Storage: 1 group, 32768 bytes, its own>"),
    ("View", "<kvfolio.View: 1 layer, 8 blocks of 16 tokens, f32, K 2 x 16, V 2 x 16>"),
    ("Plan", "<kvfolio.Plan of step 1: 1 sequence, 3 tokens, 1 group>"),
    ("GroupPlan", "<kvfolio.GroupPlan: group 0 of step 1>"),
    ("PlanArray", "<kvfolio.PlanArray of int32 [1, 1]>"),
    ("Batch", "<kvfolio.Batch: 1 sequence, a table of 1 column>"),
    ("ThreadPool", "<kvfolio.ThreadPool: 1 thread>"),
])
def test_a_repr_says_what_one_looks_for(name, shown):
    objects = made()
    assert repr(objects[name]) == shown


def test_a_repr_never_raises():
    """Where a debugger asks: arrays whose step has ended, memory that a manager has taken or that is lent."""
    storage = kvfolio.Storage([kvfolio.GroupSpec(head_dim=16, head_dim_v=0, num_blocks=2), *SPEC])
    manager = kvfolio.Manager(storage)
    with manager.step() as step:
        step.append(manager.open([1]).sequence, [1])
        plan = step.plan(copy=False)
        rows = plan.rows
    assert repr(plan) == "<kvfolio.Plan of step 1: 1 sequence, 1 token, 2 groups>"
    assert repr(rows) == "<kvfolio.PlanArray of int32 [1], not valid any more>"
    assert repr(storage).endswith("bytes, its own, of a manager>")
    assert repr(storage.view(0)) == "<kvfolio.View: 1 layer, 2 blocks of 16 tokens, f32, K 1 x 16, no V>"
    assert repr(manager) == "<kvfolio.Manager: 1 sequence, 1 of 2, 1 of 8 blocks held>"
    lent = kvfolio.Storage.borrow(SPEC, [tuple(np.zeros((2, 1, 8, 2, 16, 16), np.float32))])
    assert repr(lent) == "<kvfolio.Storage: 1 group, 0 bytes, lent>"
