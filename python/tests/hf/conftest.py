# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that need torch and transformers: scripts/test --hf runs them."""

from __future__ import annotations

import pathlib
import sys

import pytest
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parent))

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()


def pytest_report_header() -> str:
    return f"transformers {transformers.__version__}, torch {torch.__version__}"


def pytest_configure(config) -> None:
    # The releases rename past_key_values, and one of the two names is old in each.
    config.addinivalue_line("filterwarnings", "ignore::FutureWarning")


def pytest_addoption(parser) -> None:
    parser.addoption("--cut", action="store_true", help="of each test one case, and one for each flow")


def pytest_collection_modifyitems(config, items) -> None:
    if not config.getoption("--cut"):
        return
    kept, cut, seen = [], [], set()
    for item in items:
        parameters = getattr(item, "callspec", None)
        key = (item.function, parameters and parameters.params.get("flow"))
        (cut if key in seen else kept).append(item)
        seen.add(key)
    items[:] = kept
    config.hook.pytest_deselected(items=cut)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield
