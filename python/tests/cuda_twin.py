# SPDX-License-Identifier: Apache-2.0
"""kvfolio.cuda over a driver that is none (tests/python_cuda), for the tests of a device: `twin` says what the driver
does and has seen. Skips the file of tests that imports it where the build has none."""

import pathlib
import sys

import pytest

import kvfolio as kv

PACKAGES = pathlib.Path(kv.__file__).parents[1]
TWIN = PACKAGES.parent / "python_twin"
if not (TWIN / "kvfolio_cuda" / "_cuda.abi3.so").exists():
    pytest.skip("this build has no twin of kvfolio_cuda", allow_module_level=True)
sys.path.insert(0, str(TWIN))
from kvfolio import cuda  # noqa: E402
from kvfolio_cuda import _cuda  # noqa: E402

__all__ = ["PACKAGES", "TWIN", "cuda", "fresh", "twin"]

twin = _cuda.twin


@pytest.fixture(autouse=True)
def fresh():
    """Behind each test the driver is there, holds nothing back and fails nowhere."""
    yield
    twin.hold(False)
    twin.absent(False)
    twin.fail_at(0, 2)
    twin.take_log()
