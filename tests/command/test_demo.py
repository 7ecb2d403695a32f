# SPDX-License-Identifier: Apache-2.0
"""scripts/demo shows what it promises, on the shipped model."""

import os
import re
import subprocess
import sys

import pytest
from engine import SOURCE


@pytest.fixture(scope="module")
def shown():
    done = subprocess.run([sys.executable, SOURCE / "scripts" / "demo.py"], capture_output=True,
                          text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def number(pattern, text):
    return int(re.search(pattern, text).group(1))


def test_the_load_is_the_one_that_is_promised(shown):
    assert number(r"(\d+) requests behind one system prompt, 4 samples of one, a beam search", shown) >= 16
    assert number(r"sequences preempted, resumed \.+ (\d+)", shown) > 0
    assert number(r"cached blocks evicted \.+ (\d+)", shown) > 0
    assert number(r"blocks copied on write \.+ (\d+)", shown) > 0


def test_blocks_take_a_fraction_of_the_contiguous_reservation(shown):
    assert number(r"blocks held at the peak .*\((\d+) % of it\)", shown) < 25
    assert number(r"prompt tokens reused .*\((\d+) % were never computed\)", shown) > 80


def test_the_blocks_are_drawn_and_everything_is_verified(shown):
    assert re.search(r"^  #{20}", shown, re.MULTILINE)
    assert re.search(r"^verified: .* are equal, bit for bit", shown, re.MULTILINE)
    assert "DIFFERENT" not in shown


def test_a_command_that_dies_of_a_signal_is_no_success(tmp_path):
    command = tmp_path / "kvfolio"
    command.write_text("#!/bin/sh\nkill -KILL $$\n", encoding="ascii")
    command.chmod(0o755)
    done = subprocess.run([sys.executable, SOURCE / "scripts" / "demo.py"], capture_output=True,
                          env={**os.environ, "KVFOLIO": str(command)}, timeout=60, check=False)
    assert done.returncode == 128 + 9


def test_it_ends_with_the_proof(shown):
    assert shown.endswith("all rows are equal, bit for bit\n")
