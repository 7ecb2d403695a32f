# SPDX-License-Identifier: Apache-2.0
"""What the tests of all adapters share."""

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).parent
for folder in (HERE, HERE.parents[1] / "tests", *sorted(HERE.parent.glob("kvfolio_*"))):
    sys.path.insert(0, str(folder))

import hosts  # noqa: E402
import media  # noqa: E402

for package in ("vllm", "lmcache", "sglang"):
    hosts.provide(package)


def pytest_report_header():
    return ["hosts: " + ", ".join(
        f"{name} {sys.modules[name].__version__} ({'released' if hosts.released(name) else 'a stand-in'})"
        for name in ("vllm", "lmcache", "sglang"))]


@pytest.fixture(params=["disk", "redis"])
def medium(request, tmp_path):
    """Options of a tier, and how to damage what it keeps."""
    made = media.Disk(tmp_path) if request.param == "disk" else media.Redis(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def disk(tmp_path):
    return media.Disk(tmp_path)
