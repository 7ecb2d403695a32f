#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what the adapters stand on: names, parameters and fields of the released packages, never their code.

python record.py vllm|lmcache|sglang: writes hosts/NAME.json, in an environment that has the package (scripts/adapters
makes one). hosts.py makes stand-ins from it, and test_hosts.py compares it with the package where that is installed.
"""

import ast
import dataclasses
import enum
import importlib
import inspect
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent / "hosts"
VLLM, LMCACHE = "vllm.v1.kv_offload", "lmcache.v1.distributed"
SGLANG = "sglang.srt.mem_cache"
WANTED = {
    "vllm": {
        f"{VLLM}.base": ["Locality", "LookupResult", "Medium", "OffloadingEvent", "OffloadingKVEventsConfig",
                         "OffloadPolicy", "ReqContext", "RequestOffloadingContext", "ScheduleEndContext"],
        f"{VLLM}.config": ["OffloadingCacheConfig", "OffloadingConfig", "OffloadingGroupConfig",
                           "OffloadingModelConfig", "OffloadingParallelConfig"],
        f"{VLLM}.tiering.base": ["JobResult", "SecondaryTierManager", "TransferJob"],
    },
    "lmcache": {
        f"{LMCACHE}.api": ["ObjectKey"],
        f"{LMCACHE}.l2_adapters.native_connector_l2_adapter": ["NativeConnectorL2Adapter"],
        f"{LMCACHE}.l2_adapters.native_plugin_l2_adapter": ["NativePluginL2AdapterConfig"],
    },
    "sglang": {
        f"{SGLANG}.hicache_storage": ["HiCacheStorage", "HiCacheStorageConfig", "HiCacheStorageExtraInfo", "PoolHitPolicy", "PoolName",
                                      "PoolTransfer", "PoolTransferResult"],
        f"{SGLANG}.pool_host.base": ["HostKVCache"],
    },
}


def default_of(value):
    """Only what can be written down: an object of the host's is a mark that there is a default."""
    try:
        return repr(ast.literal_eval(repr(value)))
    except (ValueError, SyntaxError):
        return "..."


def parameters(function):
    """Each as in a signature, without its type."""
    texts, star = [], False
    for parameter in inspect.signature(function).parameters.values():
        text = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            text, star = "*" + text, True
        elif parameter.kind is parameter.VAR_KEYWORD:
            text = "**" + text
        elif parameter.kind is parameter.KEYWORD_ONLY and not star:
            texts.append("*")
            star = True
        if parameter.default is not parameter.empty:
            text += "=" + default_of(parameter.default)
        texts.append(text)
    return texts


def fields_of(cls):
    texts = []
    for field in dataclasses.fields(cls):
        if field.init:
            has_default = (field.default is not dataclasses.MISSING
                           or field.default_factory is not dataclasses.MISSING)
            texts.append(field.name + ("=" + default_of(field.default) if has_default else ""))
    return texts


def record_of(cls):
    if issubclass(cls, enum.Enum):
        return {"enum": {member.name: default_of(member.value) for member in cls}}
    if issubclass(cls, tuple):
        return {"tuple": list(cls._fields)}
    if dataclasses.is_dataclass(cls):
        return {"fields": fields_of(cls)}
    methods = {}
    for base in reversed([base for base in cls.__mro__ if base.__module__ == cls.__module__]):
        for name, member in vars(base).items():
            if isinstance(member, (classmethod, staticmethod)):
                member = member.__func__
            if inspect.isfunction(member) and (not name.startswith("_") or name == "__init__"):
                methods[name] = {"abstract": bool(getattr(member, "__isabstractmethod__", False)),
                                 "parameters": parameters(member)}
    return {"methods": methods}


def record(package):
    version = importlib.import_module(package).__version__
    classes = {module: {name: record_of(getattr(importlib.import_module(module), name)) for name in names}
               for module, names in WANTED[package].items()}
    return {"package": package, "version": version, "classes": classes}


def main():
    for package in sys.argv[1:] or WANTED:
        text = json.dumps(record(package), indent=1, sort_keys=True)
        (FOLDER / f"{package}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
