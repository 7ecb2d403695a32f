# SPDX-License-Identifier: Apache-2.0
"""`kvfolio bench core` checks what it times and prints a row per figure, in one form."""

import json
import os
import subprocess

import pytest

COMMAND = os.environ["KVFOLIO"]
KEYS = ["name", "case", "value", "unit", "ceiling", "ratio", "floor", "goal", "rounds", "spread"]
PROMISED = """pool.take_give tree.match open.cached open.two_blocks publish.block step.decode step.arrays
    evict.time preempt_to.half storage.append storage.gather storage.append_tiles
    storage.first_fill metadata.block""".split()
MEASURED = """machine.memcpy machine.fill machine.read select_victim.after_step
    select_victim.again growth.prompt_tokens growth.pool_blocks growth.children growth.runs life.append_1_token life.trim
    storage.gather_tiles""".split()


def bench(*arguments):
    return subprocess.run([COMMAND, "bench", *arguments], capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def rows():
    done = bench("core", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def test_each_row_has_the_keys_that_scripts_read(rows):
    for row in rows:
        assert list(row)[:len(KEYS)] == KEYS
        assert isinstance(row["case"], dict) and isinstance(row["unit"], str)
        assert all(isinstance(fact, (int, str)) for fact in row["case"].values())
        assert is_number(row["value"]) and row["rounds"] == 1
        for key in ("ceiling", "ratio", "floor", "goal"):
            assert row[key] is None or is_number(row[key])
        assert (row["ceiling"] is None) == (row["ratio"] is None)
        assert (row["floor"] is None) == (row["goal"] is None) == (row["reached"] is None)
        low, high = row["spread"]
        assert low <= high
        assert row["judged"] in ("ratio", "value")


def test_every_promise_and_every_curve_has_a_row(rows):
    names = {row["name"] for row in rows}
    assert not (set(PROMISED) | set(MEASURED)) - names
    assert all(any(row["name"] == name and row["floor"] is not None for row in rows)
               for name in PROMISED)


def test_the_filter_leaves_only_what_it_names():
    done = bench("core", "--quick", "--json", "--filter", "pool.hold")
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["pool.hold_release"]


def test_a_table_for_people_names_the_floor():
    done = bench("core", "--quick", "--filter", "pool.take_give")
    assert done.returncode == 0 and "floor 10, goal 5" in done.stdout


@pytest.mark.parametrize("arguments, says", [
    (("cores",), "allowed: core"),
    (("core", "--filter", "nothing"), "allowed: a part of one of machine.memcpy"),
    (("core", "--rounds", "0"), "--rounds"),
])
def test_bad_usage_is_refused_with_what_is_allowed(arguments, says):
    done = bench(*arguments)
    assert done.returncode == 2 and says in done.stderr and done.stdout == ""
