# SPDX-License-Identifier: Apache-2.0
"""The packages that the adapters serve: released, where they are installed, or stand-ins made of what record.py wrote."""

import abc
import ast
import dataclasses
import enum
import importlib.util
import json
import os
import pathlib
import sys
import types
import typing

FOLDER = pathlib.Path(__file__).parent / "hosts"


def record(package):
    return json.loads((FOLDER / f"{package}.json").read_text(encoding="utf-8"))


def released(package):
    """Whether the real one is here."""
    spec = importlib.util.find_spec(package) if package not in sys.modules else sys.modules[package].__spec__
    assert spec is not None or "KVFOLIO_ADAPTERS_RELEASED" not in os.environ, f"scripts/adapters has no {package}"
    return spec is not None


def provide(package, version=None):
    """Makes `package` importable. version: a stand-in of that one, whatever is installed."""
    if version is not None or not released(package):
        said = record(package)
        for module, classes in said["classes"].items():
            made = _module(module)
            for name, shape in classes.items():
                setattr(made, name, _stand_in(name, shape, module))
        sys.modules[package].__version__ = version or said["version"]
    return importlib.import_module(package)


def _module(name):
    """That module and its parents."""
    module = sys.modules.get(name)
    if module is None:
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(_module(parent), last, module)
    return module


def _split(text):
    """A parameter's name and, if it has one, its default."""
    name, equals, default = text.partition("=")
    if not equals:
        return name, dataclasses.MISSING
    return name, None if default == "..." else ast.literal_eval(default)


def _stand_in(name, shape, module):
    if "enum" in shape:
        made = enum.Enum(name, {member: ast.literal_eval(value) for member, value in shape["enum"].items()})
    elif "tuple" in shape:
        made = typing.NamedTuple(name, [(field, object) for field in shape["tuple"]])
    elif "fields" in shape:
        fields = [(field, object) if default is dataclasses.MISSING
                  else (field, object, dataclasses.field(default=default))
                  for field, default in map(_split, shape["fields"])]
        made = dataclasses.make_dataclass(name, fields)
    else:
        made = abc.ABCMeta(name, (), {method: _method(method, about) for method, about in shape["methods"].items()})
    made.__module__ = module
    return made


def _method(name, about):
    """With the recorded parameters, so that a call that the host would refuse is refused; it does nothing."""
    names = [text if text == "*" else _split(text)[0] + ("" if _split(text)[1] is dataclasses.MISSING else "=None")
             for text in about["parameters"]]
    scope = {}
    exec(f"def {name}({', '.join(names)}): pass", scope)  # noqa: S102: our own list
    if names and names[0] == "cls":
        return classmethod(scope[name])
    return abc.abstractmethod(scope[name]) if about["abstract"] else scope[name]
