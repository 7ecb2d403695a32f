#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The installed adapters: a job through what they share, and each names the host that is missing here. scripts/wheel
runs it."""

import importlib
import tempfile

from kvfolio_adapters import Options, Owner

with tempfile.TemporaryDirectory() as folder:
    owner = Owner(Options("smoke", {"directory": folder + "/kv", "bytes": 16 << 20}).tier(), "smoke")
    back = bytearray(5000)
    assert owner.run("store", [bytes(72)], [b"x" * 5000], 10) == ["ok"]
    assert owner.run("load", [bytes(72)], [back], 10) == ["ok"] and back == b"x" * 5000
    owner.close()
for host in ("vllm", "lmcache", "sglang"):
    try:
        importlib.import_module("kvfolio_" + host)
    except ModuleNotFoundError as error:
        assert error.name == host, error
    else:
        raise AssertionError(f"{host} is here")
print("adapters: smoke ok")
