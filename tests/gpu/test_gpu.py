# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu and tests/gpu/beside.py as far as they go without a GPU: what is timed, printed, shown and claimed."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(os.environ["KVFOLIO_SOURCE_DIR"])
DECODE = "bf16 G8 H8 D128 block 16 HND, 1 x 8192"
PREFILL = "bf16 G8 D128, 1 x 2048 new of 8192"


def load(path):
    loader = importlib.machinery.SourceFileLoader(path.name.split(".")[0] + "_tested", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gpu():
    return load(ROOT / "scripts/gpu")


@pytest.fixture(scope="module")
def beside_rows():
    done = subprocess.run([sys.executable, ROOT / "tests/gpu/beside.py", os.environ["KVFOLIO_FAKE_BESIDE"]],
                          check=False, capture_output=True, text=True, timeout=60)
    rows = [json.loads(line[2:]) for line in done.stdout.splitlines() if line.startswith("J|")]
    return done, {row["shape"]: row for row in rows if "shape" in row}


def test_a_side_that_differs_from_ours_is_refused_and_not_timed(beside_rows):
    done, rows = beside_rows
    assert done.returncode == 1, done.stderr
    assert rows[DECODE]["refused"] == {"wrong": "differs by 5.0e-01", "not a number": "differs by nan"}
    assert list(rows[DECODE]["sides"]) == ["right"]


def test_ratios_are_of_one_round_and_the_roof_is_the_fastest_read(beside_rows):
    row = beside_rows[1][DECODE]
    assert row["rounds"] == 15
    assert row["roof_us"] / row["us"] == pytest.approx(0.8, abs=1e-3)
    assert row["of_roof"] == [0.8, 0.8, 0.8]  # though the last round took longer than the first
    assert row["sides"]["right"]["over_ours"] == [1.25, 1.25, 1.25]
    assert row["sides"]["right"]["differs"] == 2e-3


def test_a_prefill_is_a_rate(beside_rows):
    row = beside_rows[1][PREFILL]
    assert "roof_us" not in row
    assert row["tflops"]["kvfolio"] == pytest.approx(1.5 * row["tflops"]["right"], rel=0.01)


def result_of(decode_us=20.0, flashinfer=0.9, prefill=335):
    """A result as `scripts/gpu run` writes it, of one decode and one prefill."""
    side = {"us": decode_us * flashinfer, "over_ours": [flashinfer, flashinfer - 0.02, flashinfer + 0.03], "differs": 2e-3}
    return {"card": {"name": "a card"}, "parts": [
        {"part": "decode", "rows": [{"shape": DECODE.replace("1 x", "64 x"), "kv_bytes": 2147483648.0, "roof_us": 18.0,
                                     "us": decode_us, "of_roof": 18.0 / decode_us}]},
        {"part": "prefill", "rows": [{"shape": PREFILL, "way": "default", "tflops": prefill}]},
        {"part": "beside", "rows": [
            {"torch": "2"},
            {"shape": DECODE.replace("1 x", "64 x"), "us": decode_us, "roof_us": 18.0,
             "of_roof": [18.0 / decode_us, 0.8, 0.95], "sides": {"FlashInfer FA2": side}}]}]}


def test_what_is_under_its_floor_is_bold(gpu):
    above = gpu.table(result_of(decode_us=19.0, flashinfer=0.95, prefill=401))
    assert "**" not in above
    assert "| 64 x 8,192 | 18.0 | 19.0 | 0.947 | 0.90 | 0.950 (0.93 to 0.98) FA2 | 0.93 |" in above
    below = gpu.table(result_of(decode_us=20.5, flashinfer=0.92, prefill=399))
    assert "| **0.878** | 0.90 | **0.920** (0.90 to 0.95) FA2 | 0.93 |" in below
    assert "| 2,048 new of 8,192 | **399** | 400 |" in below


@pytest.mark.parametrize("shape, kv_bytes, floors", [
    (DECODE, 33e6, {"flashinfer": 0.85}),
    (DECODE.replace("8192", "131072"), 537e6, {"roof": 0.75}),
    (DECODE.replace("8192", "32768"), 134e6, {}),
    ("bf16 G8 H8 D128 block 16 HND, 32 x 1024, one 65536", 400e6, {"roof": 0.75}),
    ("bf16 G8 H8 D128 block 16 HND, 48 x 100 to 8100", 800e6, {"roof": 0.83, "flashinfer": 0.93}),
    ("int8 G1 H32 D128 block 16 HND, 16 x 4096", 5e8, {"roof": 0.75}),
    ("bf16 G8 H8 D128 block 16 HND, 64 x 8192, window", 2e9, {}),
])
def test_floors_are_those_that_were_promised(gpu, shape, kv_bytes, floors):
    assert gpu.floors(shape, kv_bytes) == floors


def test_a_table_that_its_file_does_not_say_is_found(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "root", tmp_path)
    (tmp_path / "x.json").write_text(json.dumps(result_of()))
    page = "<!-- scripts/gpu table x.json -->\n" + gpu.table(result_of()) + "\n<!-- end -->\n"
    assert gpu.wrong_tables(page) == []
    assert gpu.wrong_tables(page.replace("0.900", "0.990")) == [
        "a table of docs/cuda-attention.md is not what `scripts/gpu table x.json` prints"]
    assert gpu.wrong_tables(page.replace("x.json", "y.json")) == [
        "there is no y.json, which a table of docs/cuda-attention.md names"]


def test_moves_that_no_result_shows_must_say_so(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "root", tmp_path)
    results = tmp_path / "bench/results"
    results.mkdir(parents=True)
    for name, text, failures in (("old", "another", 0), ("failed", gpu.hash_of(gpu.MOVES), 1),
                                 ("good", gpu.hash_of(gpu.MOVES), 0)):
        (results / f"cuda-moves-{name}.json").write_text(json.dumps({"text": text, "failures": failures}))
    assert gpu.wrong_moves("`bench/results/cuda-moves-good.json` has every line") == []
    assert gpu.wrong_moves("they are, as they stand, *not yet run on a device*") == []
    for name in ("old", "failed"):
        assert "are not yet run on a device" in gpu.wrong_moves(f"`cuda-moves-{name}.json` has every line")[0]


def test_pack_says_what_a_folder_without_flashinfer_lacks(gpu, tmp_path):
    with pytest.raises(SystemExit, match="has no flashinfer/data/include"):
        gpu.flashinfer_jobs(tmp_path)
