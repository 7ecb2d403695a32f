# SPDX-License-Identifier: Apache-2.0
"""`kvfolio bench` checks what it times and prints a row per figure, in one form."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(os.environ["KVFOLIO_SOURCE_DIR"]) / "tests"))
import signals  # noqa: E402

COMMAND = os.environ["KVFOLIO"]
KEYS = ["name", "case", "value", "unit", "ceiling", "ratio", "floor", "goal", "rounds", "spread"]
# Every row of core under --quick: how many rows there are of the name and case (a space is an underscore, | is or);
# floor and goal, of what, and which way is better; whether a ceiling stands beside it. "-": none.
CORE = """
machine.memcpy            bytes=512KiB                          1  -     -     value  higher  -
machine.memcpy            bytes=8MiB                            1  -     -     value  higher  -
machine.memcpy            bytes=256MiB                          1  -     -     value  higher  -
machine.fill              bytes=512KiB                          1  -     -     value  higher  -
machine.fill              bytes=8MiB                            1  -     -     value  higher  -
machine.fill              bytes=256MiB                          1  -     -     value  higher  -
machine.read              bytes=512KiB                          1  -     -     value  higher  -
machine.read              bytes=8MiB                            1  -     -     value  higher  -
machine.read              bytes=256MiB                          1  -     -     value  higher  -
pool.take_give            -                                     1  0.25  0.7   ratio  lower   ceiling
pool.take_give_10         -                                     1  -     -     value  lower   ceiling
pool.hold_release         -                                     1  -     -     value  lower   -
tree.match                runs=one                              1  0.4   0.8   ratio  lower   ceiling
tree.match                runs=of_64_blocks                     1  0.25  0.5   ratio  lower   ceiling
tree.match                runs=of_1_block                       1  0.025 0.06  ratio  lower   ceiling
open.cached               -                                     2  0.1   0.25  ratio  lower   ceiling
open.two_blocks           runs=100                              1  0.35  0.7   ratio  lower   ceiling
open.two_blocks           runs=10000                            1  0.35  0.7   ratio  lower   ceiling
publish.block             at=decode                             1  0.08  0.25  ratio  lower   ceiling
publish.block             at=prefill                            1  0.2   0.5   ratio  lower   ceiling
step.decode               -                                     1  0.03  0.1   ratio  lower   ceiling
step.decode.c             -                                     1  0.95  1     ratio  lower   ceiling
step.arrays               -                                     1  0.5   0.8   ratio  higher  ceiling
evict.instructions        -                                     2  1.5   1.3   value  lower   -
evict.time                -                                     2  0.15  0.5   ratio  lower   ceiling
preempt_to.half           -                                     1  0.07  0.2   ratio  lower   ceiling
select_victim.after_step  sequences=10                          1  1     2     ratio  lower   ceiling
select_victim.after_step  sequences=1000                        1  -     -     value  lower   ceiling
select_victim.after_step  policy=lru,sequences=100              1  1     2     ratio  lower   ceiling
select_victim.after_step  policy=lfu,sequences=100              1  -     -     value  lower   ceiling
select_victim.after_step  policy=longest,sequences=100          1  -     -     value  lower   ceiling
select_victim.after_step  policy=lowest_priority,sequences=100  1  -     -     value  lower   ceiling
select_victim.again       sequences=10                          1  -     -     value  lower   -
select_victim.again       sequences=100                         1  -     -     value  lower   -
select_victim.again       sequences=1000                        1  -     -     value  lower   -
life.allocate_8_blocks    -                                     2  -     -     value  lower   -
life.append_1_token       -                                     2  -     -     value  lower   -
life.append_16_tokens     -                                     2  -     -     value  lower   -
life.fork_10_blocks       -                                     2  -     -     value  lower   -
life.close_fork           -                                     2  -     -     value  lower   -
life.close_last_owner     -                                     2  -     -     value  lower   -
life.evict_admit_10       -                                     1  -     -     value  lower   -
life.slot_mapping         -                                     1  -     -     value  lower   -
life.trim                 blocks=10                             1  -     -     value  lower   -
life.trim                 blocks=20                             1  -     -     value  lower   -
life.trim                 blocks=110                            1  -     -     value  lower   -
life.copy_block           -                                     1  -     -     value  lower   ceiling
life.read_token           -                                     1  -     -     value  lower   ceiling
life.copy_to              tokens=20                             1  -     -     value  lower   ceiling
life.copy_to              tokens=128                            1  -     -     value  lower   ceiling
storage.append            tokens=64                             2  0.8   0.9   ratio  higher  ceiling
storage.append            tokens=128                            2  0.8   0.9   ratio  higher  ceiling
storage.gather            tokens=64                             2  0.8   0.9   ratio  higher  ceiling
storage.gather            tokens=128                            2  0.8   0.9   ratio  higher  ceiling
storage.append_token      tokens=64                             2  -     -     value  higher  ceiling
storage.append_token      tokens=128                            2  -     -     value  higher  ceiling
storage.gather_head       -                                     2  -     -     value  lower   ceiling
storage.append_tiles      dtype=f32|f16|bf16                    6  0.5   0.7   ratio  higher  ceiling
storage.append_tiles      dtype=int8                            2  -     -     ratio  higher  ceiling
storage.gather_tiles      -                                     8  -     -     ratio  higher  ceiling
storage.first_fill        -                                     2  0.8   0.95  ratio  higher  ceiling
token_store.append        dim=8                                 1  0.3   0.6   ratio  lower   ceiling
token_store.append        dim=64                                1  0.5   0.8   ratio  lower   ceiling
token_store.append        dim=1024                              1  0.8   1     ratio  lower   ceiling
token_store.read          by=at                                 3  0.25  0.5   ratio  lower   ceiling
token_store.read          by=copy                               3  -     -     value  lower   ceiling
metadata.empty            -                                     1  -     -     value  lower   -
metadata.reserved         -                                     1  -     -     value  lower   -
metadata.block            -                                     1  80    48    value  lower   -
growth.prompt_tokens      -                                     2  -     -     value  lower   ceiling
growth.pool_blocks        -                                     2  -     -     value  lower   ceiling
growth.children           -                                     2  -     -     value  lower   ceiling
growth.runs               -                                     2  -     -     value  lower   ceiling
"""

# Every promise of attention: the target that it is made for, floor and goal of the ratio (of append.decode_share,
# of the value); two of them: on a Zen 5 and on a Zen 4, and on no other core.
ATTENTION = """
decode.bytes            dtype=f32|f16,format=granule,q_per_kv=8       avx512       0.65/0.75  0.5/0.6
decode.bytes            dtype=bf16,format=granule,q_per_kv=8          avx512-bf16  0.7/0.85   0.6/0.75
decode.bytes            dtype=int8,format=granule,q_per_kv=8          avx512-bf16  0.8/0.92   0.72/0.85
decode.bytes            dtype=f32|f16|bf16,format=hnd|nhd,q_per_kv=8  avx512       0.45/0.6   0.38/0.5
decode.q_per_kv         format=granule,q_per_kv=5|7                   any          0.85/0.95
decode.q_per_kv         format=granule,q_per_kv=12                    any          0.6/0.75
decode.int8_over_bf16   format=granule                             avx512-bf16  1.5/1.75
decode.contiguous       -                                          any          0.9/0.95
prefill.flops           dtype=f32,format=granule                   any          0.78/0.9
prefill.flops           dtype=bf16,format=granule                  avx512-bf16  0.65/0.8
prefill.format          dtype=f32|f16|bf16                         any          0.8/0.9
long.scaling            -                                          any          0.93/0.97
append.decode_share     -                                          any          2/1
append.prefill          -                                          any          0.5/0.7
"""


def bench(*arguments):
    return subprocess.run([COMMAND, "bench", *arguments], capture_output=True, text=True, timeout=500)


def quick(*arguments):
    """Rows, and what is said beside them."""
    done = bench(*arguments, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.fixture(scope="module")
def core():
    return quick("core")


@pytest.fixture(scope="module")
def rows(core):
    return core[0]


@pytest.fixture(scope="module")
def attention():
    return quick("attention")[0]


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


def is_of(row, name, case):
    facts = dict(fact.split("=") for fact in case.split(",")) if case != "-" else {}
    return row["name"] == name and all(
        str(row["case"][key]).replace(" ", "_") in fact.split("|") for key, fact in facts.items())


def shown(row):
    """A row in the words of CORE."""
    def text(value):
        return "-" if value is None else f"{value:.9g}"

    return [text(row["floor"]), text(row["goal"]), row["judged"],
            "lower" if row["lower_is_better"] else "higher", "-" if row["ceiling"] is None else "ceiling"]


def test_core_has_every_row_with_its_promise_and_its_ceiling(core):
    rows, said = core
    lines = [line.split() for line in CORE.splitlines()[1:]]
    for name, case, count, *expected in lines:
        if f"kvfolio bench: {name} is left out: " in said:
            count = "0"
        found = [shown(row) for row in rows if is_of(row, name, case)]
        assert (name, case, found) == (name, case, [expected] * int(count))
    for row in rows:
        assert sum(is_of(row, name, case) for name, case, *_ in lines) == 1, row


def test_only_what_cannot_be_counted_is_left_out(core):
    for line in core[1].splitlines():
        assert line == "kvfolio bench: evict.instructions is left out: " \
            "neither perf events nor ptrace are allowed here"


def test_no_promise_of_core_is_a_time(rows):
    """A time would be missed by a slower machine, and by no fault of ours."""
    for row in rows:
        assert row["floor"] is None or row["judged"] == "ratio" or row["unit"] in ("ratio", "B"), row


def test_the_filter_leaves_only_what_it_names():
    done = bench("core", "--quick", "--json", "--filter", "pool.hold")
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["pool.hold_release"]


def test_a_table_for_people_names_the_floor():
    done = bench("core", "--quick", "--filter", "pool.take_give")
    assert done.returncode == 0 and "ratio: floor 0.25, goal 0.7" in done.stdout
    assert "earlier" not in done.stdout


def cases(rows, name, *keys):
    return [tuple(row["case"][key] for key in keys) for row in rows if row["name"] == name]


def test_attention_has_a_row_for_every_case(attention):
    dtypes, formats = ("f32", "f16", "bf16", "int8"), ("granule", "hnd", "nhd")
    every = [(d, f, g, t) for f in formats for d in dtypes for g in (1, 4, 5, 7, 8, 12, 16)
             for t in (1, 2)]
    for name in ("decode.bytes", "decode.token_heads"):
        assert cases(attention, name, "dtype", "format", "q_per_kv", "threads") == every
    assert cases(attention, "decode.q_per_kv", "dtype", "format", "q_per_kv", "threads") == \
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


def test_attention_is_promised_what_its_table_says(attention):
    lines = [line.split() for line in ATTENTION.splitlines()[1:]]
    [core] = [row["case"] for row in attention if row["name"] == "machine.core"]
    made_for = {"avx512": ("any", "avx512"), "avx512-bf16": ("any", "avx512", "avx512-bf16")}
    for row in attention:
        promises = [promises for name, case, target, *promises in lines if is_of(row, name, case) and
                    target in made_for.get(core["target"], ("any",))]
        if not promises or "not judged" in row["note"]:
            assert row["floor"] is None, row
            continue
        of_class = {"those of Zen 5": 0, "those of Zen 4": 1}.get(core["promises"])
        if of_class is None and len(promises[0]) == 2:
            assert row["floor"] is None, row
            continue
        promise = promises[0][of_class or 0] if len(promises[0]) == 2 else promises[0][0]
        assert f"{row['floor']:g}/{row['goal']:g}" == promise, row
        assert row["judged"] == ("value" if row["name"] == "append.decode_share" else "ratio")
        assert (row["ceiling"] is None) == (row["name"] == "append.decode_share")
    for name, *_ in lines:
        assert name in {row["name"] for row in attention}


def test_attention_is_a_part_of_its_ceiling(attention):
    for row in attention:
        of_a_ceiling = row["name"] in ("decode.bytes", "decode.q_per_kv", "prefill.flops", "read.blocks")
        assert not of_a_ceiling or row["ratio"] is not None
        # Several threads are judged only where the machine gave them their share.
        if row["case"].get("threads") == 2 and "not judged" in row["note"]:
            assert row["floor"] is None


@pytest.mark.parametrize(("option", "target"), [
    ("--kernel", "reference"), ("--kernel", "portable"), ("--target", "portable"),
])
def test_attention_measures_the_target_that_it_is_told(option, target):
    rows, _ = quick("attention", option, target, "--filter", "decode.", "--cache-dtype", "f16",
                   "--format", "hnd", "--threads", "1")
    assert len(cases(rows, "decode.bytes", "q_per_kv")) == 7
    for row in rows:
        assert row["case"]["target"] == target and row["case"]["dtype"] == "f16"
        assert row["case"]["threads"] == 1


def test_the_variable_names_a_kernel_and_a_wrong_one_is_refused():
    only = ["attention", "--quick", "--filter", "decode.bytes", "--cache-dtype", "f16", "--format", "hnd",
            "--threads", "1", "--json"]
    for name, code in (("portable", 0), ("mmx", 2)):
        done = subprocess.run([COMMAND, "bench", *only], capture_output=True, text=True, timeout=500, check=False,
                              env={**os.environ, "KVFOLIO_KERNEL": name})
        assert done.returncode == code, done.stderr
        if code == 0:
            assert {json.loads(row)["case"]["target"] for row in done.stdout.splitlines()} == {"portable"}
        else:
            assert "mmx" in done.stderr and "portable" in done.stderr and done.stdout == ""


def start(*options):
    return signals.Started([COMMAND, "bench", "core", "--quick", *options])


def test_ctrl_c_leaves_whole_rows():
    out, err, code = start("--json").signal()
    assert code == 130 and err.endswith(b"kvfolio: interrupted\n") and out.endswith(b"\n")
    for line in out.splitlines():
        json.loads(line)


def test_a_reader_that_goes_away_ends_it_without_a_word():
    out, err, code = start("--filter", "life.").leave()
    assert (code, err) == (0, b"") and out.startswith(b"life.")


def test_a_long_run_that_was_not_asked_for_by_name_is_announced():
    with subprocess.Popen([COMMAND, "bench"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        first = process.stderr.readline()
        process.kill()
    assert first.startswith(b"kvfolio bench: measuring core, which takes some minutes and 4 GiB; --help names ")
    short = bench("--quick", "--filter", "pool.hold")
    assert "minutes" not in short.stderr and short.stdout.startswith("pool.hold")


@pytest.mark.parametrize("arguments, says", [
    (("cores",), "allowed: core, attention"),
    (("attention", "--target", "mmx"), "--kernel: \"mmx\", allowed: auto, reference, portable"),
    (("attention", "--kernel", "mmx"), "--kernel: \"mmx\", allowed: auto, reference, portable"),
    (("attention", "--threads", "0"), "--threads"),
    (("attention", "--cache-dtype", "f64"), "allowed: f32, f16, bf16, int8"),
    (("attention", "--filter", "tree."), "allowed: a part of one of machine.core"),
    (("core", "--kernel", "avx2"), "--kernel: is of kvfolio bench attention"),
    (("core", "--filter", "nothing"), "allowed: a part of one of machine.memcpy"),
    (("core", "--rounds", "0"), "--rounds"),
])
def test_bad_usage_is_refused_with_what_is_allowed(arguments, says):
    done = bench(*arguments)
    assert done.returncode == 2 and says in done.stderr and done.stdout == ""
