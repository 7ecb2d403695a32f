# SPDX-License-Identifier: Apache-2.0
"""The README's lines and the examples run, and say what they are meant to."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def run(script: str) -> str:
    ran = subprocess.run([sys.executable, "-W", "ignore", str(ROOT / "examples/python" / script)],
                         capture_output=True, text=True, timeout=300,
                         env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_readmes_lines_find_the_system_prompt():
    assert run("readme_hf.py").splitlines() == [
        "0 of 107 prompt tokens were found",
        "100 of 107 prompt tokens were found",
    ]


def test_after_a_shortage_the_text_goes_on_as_if_there_was_none():
    assert run("shortage_hf.py").splitlines() == [
        "1 block more was needed, 0 were free",
        "63 of 64 tokens were found",
        "equal",
    ]


def test_the_package_asks_for_no_newer_transformers_than_what_is_run():
    lists = (ROOT / "python/tests/hf/env").glob("transformers-*.txt")
    newest = max(tuple(map(int, path.stem.partition("-")[2].split("."))) for path in lists)
    bound = re.search(r'"transformers>=[^"]*,<(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert bound is not None and tuple(map(int, bound.groups())) == (newest[0], newest[1] + 1)


def test_scores_behind_a_shared_prompt_are_those_without_a_cache():
    assert run("score_hf.py").splitlines() == ["as without a cache"] * 2 + ["99 of 100 prompt tokens are found"]


def test_the_few_shot_prompt_survives_the_process():
    assert run("save_hf.py").splitlines() == [
        "0 of 107 prompt tokens were found",
        "100 of 107 prompt tokens were found",
    ]
    assert run("tiers_hf.py").splitlines() == [
        "0 of 100 prompt tokens were found",
        "96 of 100 prompt tokens were found",
    ]


@pytest.mark.parametrize("name", ["MistralForCausalLM", "Gemma3ForCausalLM"])
def test_the_example_finds_its_prompts(name, example):
    lines = [line for line in example.splitlines() if line.startswith(name)]
    assert len(lines) == 8
    assert sum("300 of 312 prompt tokens found" in line for line in lines) == 4


@pytest.fixture(scope="module")
def example() -> str:
    return run("huggingface.py")
