# SPDX-License-Identifier: Apache-2.0
"""`kvfolio bench` checks what it times and prints a row per figure, in one form."""

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


def rows_of(*arguments):
    done = bench(*arguments, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def rows():
    return rows_of("core")


@pytest.fixture(scope="module")
def attention():
    return rows_of("attention")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def test_each_row_has_the_keys_that_scripts_read(rows, attention):
    for row in rows + attention:
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


def cases(rows, name, *keys):
    return [tuple(row["case"][key] for key in keys) for row in rows if row["name"] == name]


def test_attention_has_a_row_for_every_case(attention):
    dtypes, formats = ("f32", "f16", "bf16", "int8"), ("granule", "hnd", "nhd")
    every = [(d, f, g, t) for f in formats for d in dtypes for g in (1, 4, 5, 7, 8, 12, 16)
             for t in (1, 2)]
    for name in ("decode.bytes", "decode.token_heads"):
        assert cases(attention, name, "dtype", "format", "group", "threads") == every
    assert cases(attention, "decode.group", "dtype", "format", "group", "threads") == \
        [case for case in every if case[2] != 8]
    stored = [(d, f, t) for d in dtypes for f in formats for t in (1, 2)]
    for name in ("read.in_order", "read.blocks", "prefill.flops"):
        assert sorted(cases(attention, name, "dtype", "format", "threads")) == sorted(stored)
    for name in ("append.decode_share", "append.prefill", "gather.rows"):
        assert cases(attention, name, "dtype", "format") == [(d, f) for d in dtypes for f in formats]
    assert len(cases(attention, "short.latency", "dtype", "tokens", "threads")) == 4 * 3 * 2
    assert cases(attention, "long.scaling", "dtype", "threads") == [(d, 2) for d in dtypes]
    assert cases(attention, "loser.head_by_head", "dtype") == [(d,) for d in dtypes]
    assert cases(attention, "loser.gather_first", "dtype") == [(d,) for d in dtypes[:3]]
    assert len(cases(attention, "loser.read", "dtype", "order", "tiles_ahead", "into_level")) == \
        4 * 18
    assert {"machine.core", "machine.peak", "fork_join", "prefill.format", "decode.contiguous",
            "decode.int8_over_bf16"} < {row["name"] for row in attention}


def test_attention_is_a_part_of_its_ceiling(attention):
    for row in attention:
        of_a_ceiling = row["name"] in ("decode.bytes", "decode.group", "prefill.flops", "read.blocks")
        assert not of_a_ceiling or row["ratio"] is not None
        # Several threads are judged only where the machine gave them their share.
        if row["case"].get("threads") == 2 and "not judged" in row["note"]:
            assert row["floor"] is None


@pytest.mark.parametrize("target", ["reference", "portable"])
def test_attention_measures_the_target_that_it_is_told(target):
    rows = rows_of("attention", "--target", target, "--filter", "decode.", "--cache-dtype", "f16",
                   "--format", "hnd", "--threads", "1")
    assert len(cases(rows, "decode.bytes", "group")) == 7
    for row in rows:
        assert row["case"]["target"] == target and row["case"]["dtype"] == "f16"
        assert row["case"]["threads"] == 1


@pytest.mark.parametrize("arguments, says", [
    (("cores",), "allowed: core, attention"),
    (("attention", "--target", "mmx"), "allowed: auto, reference, portable"),
    (("attention", "--threads", "0"), "--threads"),
    (("attention", "--cache-dtype", "f64"), "allowed: f32, f16, bf16, int8"),
    (("attention", "--filter", "tree."), "allowed: a part of one of machine.core"),
    (("core", "--target", "avx2"), "--target: is of kvfolio bench attention"),
    (("core", "--filter", "nothing"), "allowed: a part of one of machine.memcpy"),
    (("core", "--rounds", "0"), "--rounds"),
])
def test_bad_usage_is_refused_with_what_is_allowed(arguments, says):
    done = bench(*arguments)
    assert done.returncode == 2 and says in done.stderr and done.stdout == ""
