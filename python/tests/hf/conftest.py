# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that need torch and transformers: scripts/test --hf runs them."""

from __future__ import annotations

import pathlib
import sys
import warnings

import pytest
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parent))

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
warnings.filterwarnings("ignore", category=FutureWarning)


def pytest_report_header() -> str:
    return f"transformers {transformers.__version__}, torch {torch.__version__}"


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield
