# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu and tests/gpu/beside.py as far as they go without a GPU: what is timed, printed, shown and claimed."""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import time

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


def test_a_kernel_that_is_asked_for_has_a_row_below_the_default(gpu):
    result = result_of()
    before = gpu.table(result)
    shape = PREFILL.replace("bf16", "int8")
    result["parts"][1]["rows"] += [{"part": "prefill", "shape": shape, "way": way, "tflops": rate}
                                   for way, rate in (("default", 136), ("wgmma tiles", 300))]
    added = gpu.table(result).removeprefix(before).split("\n")[1:]
    assert added == ["| 2,048 new of 8,192, int8 | 136 | | | | | | | | |", "| the same by `cuda-wgmma-tiles` | 300 | | | | | | | | |"]


def test_parts_of_the_library_do_not_stand_for_a_kernel_that_is_asked_for(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "root", tmp_path)
    shown = {**gpu.hashes(), "moves": gpu.hash_of(gpu.MOVES)}
    for kernel in gpu.ASKED_FOR:
        del shown[kernel]
    results = tmp_path / "bench/results"
    results.mkdir(parents=True)
    parts = [{"part": part, "state": "passed"} for part in gpu.OF_THE_LIBRARY]
    (results / "cuda-attention-good.json").write_text(json.dumps({"parts": parts, "kernels": shown}))
    assert gpu.wrong_parts("".join(f"| `{part}` | what | `cuda-attention-good.json` |\n" for part in gpu.OF_THE_LIBRARY)) == []


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


def test_a_part_that_no_result_shows_must_say_so(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "root", tmp_path)
    results = tmp_path / "bench/results"
    results.mkdir(parents=True)
    now = {**gpu.hashes(), "moves": gpu.hash_of(gpu.MOVES)}

    def write(name, state, kernels):
        parts = [{"part": part, "state": state} for part in gpu.OF_THE_LIBRARY]
        (results / f"cuda-attention-{name}.json").write_text(json.dumps({"parts": parts, "kernels": kernels}))

    write("good", "passed", now)
    write("failed", "failed: 1", now)
    write("old", "passed", {**now, "moves": "another"})

    def page(said):
        return "".join(f"| `{part}` | what | {said} |\n" for part in gpu.OF_THE_LIBRARY)

    assert gpu.wrong_parts(page("not yet run on a device")) == []
    assert gpu.wrong_parts(page("`cuda-attention-good.json`")) == []
    for name in ("failed", "old", "missing"):
        faults = gpu.wrong_parts(page(f"`cuda-attention-{name}.json`"))
        assert len(faults) == len(gpu.OF_THE_LIBRARY)
        assert "no result that it names shows it" in faults[0]
    assert gpu.wrong_parts("")[0] == "docs/cuda.md has no row for the part library"


def test_pack_says_what_a_folder_without_flashinfer_lacks(gpu, tmp_path):
    with pytest.raises(SystemExit, match="has no flashinfer/data/include"):
        gpu.flashinfer_jobs(tmp_path)


# ---- run, over programs that are none ----


@pytest.fixture
def packed(gpu, tmp_path, monkeypatch):
    """A pack in tmp_path whose programs a test writes; runs it."""
    about = {"commit": "abc", "kernels": {"moves": "123"}, "glibc": "2.36"}
    (tmp_path / "about.json").write_text(json.dumps(about))
    (tmp_path / "programs").mkdir()
    shutil.copy(ROOT / "scripts/gpu", tmp_path / "gpu")
    monkeypatch.setattr(gpu, "here", tmp_path)
    monkeypatch.delenv("OUT", raising=False)
    monkeypatch.setattr(gpu, "card", lambda: {"name": packed_on.card})

    class Packed:
        card = "NVIDIA H100"

        def program(self, name, text):
            path = tmp_path / "programs" / name
            path.write_text(text if text.startswith("#!") else "#!/bin/sh\n" + text)
            path.chmod(0o755)

        def run(self, parts, quick=True):
            monkeypatch.setattr(gpu, "PARTS", parts)
            code = gpu.run(argparse.Namespace(quick=quick, part=None))
            return code, json.loads((tmp_path / "results/results.json").read_text())

    packed_on = Packed()
    return packed_on


def test_a_part_that_hangs_is_stopped_at_its_own_limit_and_the_others_go_on(packed, capsys, tmp_path):
    packed.program("hangs", """echo 'J|{"shape": "first"}'; printf 'J|{"shape": "cut'
sleep 300 & echo $! > "$OUT/child"; sleep 300
""")
    packed.program("goes", 'echo \'J|{"shape": "x", "us": 5.0, "most_us": 6.0}\'\n')
    packed.program("fails", "echo no; exit 7\n")
    start = time.monotonic()
    code, result = packed.run({"hangs": (9, 5, [["hangs"], ["goes"]]), "fails": (9, 9, [["fails"], ["goes"]]),
                               "goes": (9, 9, [["goes"]]), "lacks": (9, 9, [["@", *("no-such-tool", "1", "2", "3", "4"),
                                                                            "goes"]])})
    assert time.monotonic() - start < 60
    child = pathlib.Path("/proc") / (tmp_path / "results/child").read_text().strip() / "stat"
    assert not child.exists() or child.read_text().split()[2] in "ZX"  # what it had started ended with it
    assert code == 1
    hangs, fails, goes, lacks = result["parts"]
    assert hangs["state"] == "failed: stopped at its limit of 5 s"
    assert hangs["rows"] == [{"shape": "first"}]
    assert fails["state"] == "failed: 7"
    assert len(fails["rows"]) == 1  # its second command ran
    assert goes["state"] == "passed"
    assert lacks["state"] == "not run: there is no no-such-tool here"
    said = capsys.readouterr().out
    assert "x: 5.0 us, 6.0 at most" in said
    assert "| part | seconds | rows | on NVIDIA H100 |" in said
    assert "| lacks |  | 0 | not run: there is no no-such-tool here |" in said
    assert said.endswith("gpu: not passed: hangs, fails\n")


def test_a_machine_without_a_device_says_so_of_each_part_and_fails(packed, capsys):
    packed.program("none", "echo no device: no driver; exit 3\n")
    code, result = packed.run({"one": (9, 9, [["none"]]), "two": (9, 9, [["none"], ["none"]])})
    assert code == 3
    assert [part["state"] for part in result["parts"]] == ["failed: there is no device for it"] * 2
    said = capsys.readouterr().out
    assert said.count("no device: no driver") == 2
    assert said.endswith("gpu: nothing was checked: this machine has no device that the parts can use\n")


@pytest.mark.parametrize("card, state", [
    ("NVIDIA H200", "failed: 2 slower than the floor: g n; steps"),
    ("NVIDIA H100 80GB HBM3", "passed; 2 slower than an H200 has to be"),
    ("NVIDIA H200 MIG 1g.18gb", "passed; 2 slower than an H200 has to be"),
])
def test_floors_are_judged_on_an_h200(packed, card, state):
    packed.card = card
    packed.program("slow", '''echo 'J|{"group": "g", "name": "n", "share": 0.89, "floor": 0.9, "roof": "one memcpy"}'
echo 'J|{"shape": "steps", "us": 7, "most_us": 6.5}'
echo 'J|{"group": "g", "name": "met", "share": 0.9, "floor": 0.9, "roof": "one memcpy"}'
''')
    code, result = packed.run({"slow": (9, 9, [["slow"]])})
    assert result["parts"][0]["state"] == state
    assert code == (1 if state.startswith("failed") else 0)


def test_what_moves_device_wrote_is_named_by_its_text(packed, gpu, tmp_path):
    packed.program("moves_device", '''echo '{"device": "d", "failures": 0, "results": [{"entries": 1}]}' > "$OUT/moves.json"\n''')
    assert packed.run({"moves": (9, 9, [["moves_device"]])})[0] == 0
    moves = json.loads((tmp_path / "results/moves.json").read_text())
    assert moves == {"device": "d", "failures": 0, "commit": "abc", "text": "123", "results": [{"entries": 1}]}
    assert len(list((tmp_path / "results").iterdir())) <= 8


COMMAND = """#!{python}
import json, sys
on_card = "--device" in sys.argv
if sys.argv[1] == "prove":
    model, tiles = sys.argv[sys.argv.index("--model") + 1], {tiles!r}
    kernels = [tiles if "tiles" in model else "cuda-general"]
    print(json.dumps({{"rows": [{{"sha256": "a", "kernels": kernels}}, {{"sha256": {second!r}, "kernels": kernels}}]}}))
else:
    asked = [json.loads(line) for line in open(sys.argv[sys.argv.index("--requests") + 1])]
    for one in asked:
        print(json.dumps({{"id": one["id"], "sample": 0, "token_ids": [1, 2, {other} if on_card and one["id"] == "r2" else 3]}}))
    print(json.dumps({{"summary": {{"kernel": "cuda-sm90-r2"}}}}))
"""


@pytest.mark.parametrize("other, second, tiles, code", [
    (3, "a", "cuda-node", 0), (4, "a", "cuda-node", 1), (3, "b", "cuda-node", 1), (3, "a", "cuda-general", 1)])
def test_prove_wants_the_tokens_of_the_cpu_one_hash_and_a_tile_kernel(packed, tmp_path, other, second, tiles, code):
    packed.program("kvfolio", COMMAND.format(python=sys.executable, other=other, second=second, tiles=tiles))
    lines = [{"id": f"r{i}", "prompt": "x"} for i in range(6)] + [{"id": "drawn", "prompt": "x", "temperature": 1}]
    (tmp_path / "programs/requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    got, result = packed.run({"prove": (60, 60, [["gpu", "tokens"]])}, quick=False)
    rows = result["parts"][0]["rows"]
    assert got == code
    assert rows[0] == {"generate": "f32", "kernel": "cuda-sm90-r2", "samples": 6, "different": int(other != 3)}
    proofs = [row for row in rows if "prove" in row]
    assert [(row["model"], row["cache_dtype"]) for row in proofs] == [
        ("kjv-bytes", "f32"), *((model, dtype) for model in ("kjv-bytes", "tiles-64", "tiles-128")
                                for dtype in ("f16", "bf16", "int8", "e4m3"))]
    assert proofs[0] == {"prove": 2, "model": "kjv-bytes", "cache_dtype": "f32", "hashes": sorted({"a", second}),
                         "kernels": ["cuda-general"]}
    assert proofs[-1]["kernels"] == [tiles]
    assert ("wrong_kernels" in proofs[-1]) == (tiles == "cuda-general")


def test_the_models_of_a_pack_are_the_same_each_time_and_small(gpu, tmp_path):
    names = [name for name in gpu.MODELS if name.startswith("tiles")]
    for folder in ("one", "other"):
        gpu.make_models(tmp_path / folder, names)
    for name, dim, group in (("tiles-64", 64, 4), ("tiles-128", 128, 8)):
        one = tmp_path / "one" / name
        config = json.loads((one / "config.json").read_text())
        assert config["head_dim"] == dim
        assert config["num_attention_heads"] == group * config["num_key_value_heads"]
        weights = (one / "model.safetensors").read_bytes()
        assert weights == (tmp_path / "other" / name / "model.safetensors").read_bytes()
        assert len(weights) < 4_000_000


def test_the_programs_are_unpacked_once_for_each_pack(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "here", tmp_path)
    for text in ("one", "another"):
        (tmp_path / "source").write_text(text)
        with tarfile.open(tmp_path / gpu.PROGRAMS, "w:xz") as archive:
            archive.add(tmp_path / "source", "programs/p")
        assert (gpu.unpack() / "p").read_text() == text
        (tmp_path / "programs/p").write_text("mine")
        assert (gpu.unpack() / "p").read_text() == "mine"


def test_a_pack_that_is_too_large_is_refused_with_the_numbers(gpu, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs/p").write_bytes(bytes(2500))
    (tmp_path / "folder/packed").write_bytes(bytes(1001))
    monkeypatch.setattr(gpu, "PACK_BYTES", 1001)
    assert gpu.check_size(tmp_path / "folder", tmp_path / "programs") == 1001
    monkeypatch.setattr(gpu, "PACK_BYTES", 1000)
    with pytest.raises(SystemExit, match="has 1,001 bytes, 1,000 are allowed; before they are packed: p 2,500"):
        gpu.check_size(tmp_path / "folder", tmp_path / "programs")


def test_a_card_that_is_not_sm_90_runs_the_kernels_for_it(packed):
    packed.program("gpu_checks", "echo no device for sm_90a; exit 3\n")
    packed.program("gpu_checks_sm80", """echo 'J|{"asked": "'"$*"'"}'\n""")
    code, result = packed.run({"checks": (9, 9, [["gpu_checks", "bits"], ["gpu_checks", "nan"]])})
    assert code == 0
    assert result["parts"][0]["rows"] == [{"asked": "bits --quick"}, {"asked": "nan --quick"}]
    packed.program("gpu_checks_sm80", "exit 3\n")
    code, result = packed.run({"checks": (9, 9, [["gpu_checks", "bits"]])})
    assert code == 3


def test_an_architecture_that_no_result_shows_must_say_so(gpu, tmp_path, monkeypatch):
    now = gpu.hashes()
    monkeypatch.setattr(gpu, "root", tmp_path)
    monkeypatch.setattr(gpu, "hashes", lambda: now)
    results = tmp_path / "bench/results"
    results.mkdir(parents=True)

    def write(name, capability, bits="passed", sm80="passed", kernels=now):
        parts = [{"part": "bits", "state": bits}, {"part": "sm80", "state": sm80},
                 {"part": "padded", "state": "passed"}]
        (results / f"cuda-attention-{name}.json").write_text(
            json.dumps({"card": {"compute_cap": capability}, "parts": parts, "kernels": kernels}))

    def page(said, of="sm_86"):
        return "".join(f"| `{name}` | what | {said if name == of else 'not yet run on a device'} |\n"
                       for name in gpu.ARCHITECTURES.values())

    write("good", "8.6")
    write("other", "8.9")
    write("bits", "8.6", bits="failed: 1")
    write("sm80", "8.6", sm80="failed: 1")
    write("old", "8.6", kernels={**now, "cuda-node": "another"})
    assert gpu.wrong_architectures(page("not yet run on a device")) == []
    assert gpu.wrong_architectures(page("cuda-attention-good.json")) == []
    for name in ("other", "bits", "sm80", "old", "missing"):
        assert len(gpu.wrong_architectures(page(f"cuda-attention-{name}.json"))) == 1, name
    assert "has no row for sm_80" in gpu.wrong_architectures("")[0]


def test_a_row_of_a_head_dim_is_shown_by_a_run_that_compared_it(gpu, tmp_path, monkeypatch):
    now = gpu.hashes()
    monkeypatch.setattr(gpu, "root", tmp_path)
    monkeypatch.setattr(gpu, "hashes", lambda: now)
    results = tmp_path / "bench/results"
    results.mkdir(parents=True)

    def write(name, **shapes):
        parts = [{"part": part, "state": "passed", "rows": [{"shape": shape}]} for part, shape in shapes.items()]
        (results / f"cuda-attention-{name}.json").write_text(
            json.dumps({"card": {"compute_cap": "9.0"}, "parts": parts, "kernels": now}))

    def faults(said):
        others = "".join(f"| `{kernel}` | what | not yet run on a device |\n" for kernel in gpu.KERNELS)
        return gpu.wrong_kernels(f"| `cuda-node`, head_dim 256 | what | {said} |\n{others}")[0]

    write("other", bits="bf16 D128 G8", right="bf16 D256 G4")  # those of cuda-general
    write("d256", bits="bf16 D256 G8")
    assert faults("*not yet run on a device*") == []
    assert faults("cuda-attention-d256.json") == []
    assert "of cuda-node, head_dim 256: 'cuda-attention-other.json', but" in faults("cuda-attention-other.json")[0]
    assert "has no row for cuda-plan" in gpu.wrong_kernels("")[0][list(gpu.KERNELS).index("cuda-plan")]


def test_the_results_that_there_are_do_not_show_head_dim_256(gpu):
    page = (ROOT / "docs/cuda-attention.md").read_text()
    row = "| `cuda-node`, head_dim 256 |"
    assert row in page
    page = re.sub(rf"^({re.escape(row)}.*\|)[^|\n]*\|$", r"\1 cuda-attention-2026-11-27-h200.json, -h100.json |", page,
                  flags=re.MULTILINE)
    assert len(gpu.wrong_kernels(page)[0]) == 1


def test_a_kernel_is_shown_by_a_card_that_has_it(gpu):
    def result(capability, *passed):
        return {"card": {"compute_cap": capability} if capability else {},
                "parts": [{"part": part, "state": "passed"} for part in passed]}

    assert gpu.ran(result(None, "bits"), "cuda-wgmma")
    assert gpu.ran(result("9.0", "bits"), "cuda-wgmma")
    assert not gpu.ran(result("9.0", "bits"), "cuda-plan")
    assert gpu.ran(result("9.0", "padded"), "cuda-plan")
    assert not gpu.ran(result("8.0", "bits", "sm80"), "cuda-wgmma")
    assert gpu.ran(result("9.0", "bits"), "cuda-wgmma-tiles")
    assert not gpu.ran(result("8.0", "bits", "sm80"), "cuda-wgmma-tiles")
    assert not gpu.ran(result("9.0", "bits"), "cuda-narrow")
    assert gpu.ran(result("9.0", "bits", "sm80"), "cuda-narrow")
    assert gpu.ran(result("8.0", "bits"), "cuda-node")
    assert not gpu.ran(result("8.0", "sm80"), "cuda-node")


def test_all_parts_together_end_in_time_if_each_one_hangs(gpu):
    quick = sum(limit for part, (_, limit, _) in gpu.PARTS.items() if part not in gpu.NOT_QUICK)
    whole = sum(limit for part, (limit, _, _) in gpu.PARTS.items() if part not in ("beside", "racecheck"))
    assert quick < gpu.SECONDS[True] == 120
    assert whole < gpu.SECONDS[False] == 420
    assert gpu.PACK_BYTES == 48_000_000


# ---- what nvcc makes ----


@pytest.mark.parametrize("line, code", [
    ("fma.rn.f32 %f1, %f2, %f3, %f4;", 0),
    ("ex2.approx.ftz.f32 %f1, %f2;", 0),
    ("setp.lt.f32 %p1, %f2, %f3;", 0),
    ("add.f32 %f1, %f2, %f3;", 1),
    ("mul.ftz.f32 %f1, %f2, %f3;", 1),
    ("fma.f16x2 %r1, %r2, %r3;", 1),
    ("sub.bf16x2 %r1, %r2, %r3;", 1),
])
def test_ptx_that_leaves_a_driver_a_choice_is_refused(tmp_path, line, code):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"""#!/bin/sh
for last; do :; done
printf 'mul.rn.f32 %%f1, %%f2, %%f3;\n\t{line.replace("%", "%%")}\n' > "$last/tiles.ptx"
""")
    nvcc.chmod(0o755)
    done = subprocess.run([ROOT / "src/cuda/library/compile_kernels", "--rounded", tmp_path / "log", nvcc], check=False,
                          capture_output=True, text=True)
    assert done.returncode == code
    assert ("operations without their rounding" in done.stderr) == bool(code)
    assert (line in done.stderr) == bool(code)
    assert not (tmp_path / "log.kept").exists() or code  # left where it is to be read


# ---- what kernels take ----


def cubin_of(sizes):
    """An ELF file of sections .text.NAME of some sizes."""
    names, at, heads = b"\0", 64, [(0, 0, 0, 0, 0, 0)]
    for name, size in sizes.items():
        heads.append((len(names), 1, 6, 0, at, size))
        names += f".text.{name}".encode() + b"\0"
    heads.append((len(names), 3, 0, 0, 64, len(names) + 10))
    names += b".shstrtab\0"
    table = b"".join(struct.pack("<IIQQQQIIQQ", *head, 0, 0, 1, 0) for head in heads)
    head = b"\x7fELF".ljust(0x28, b"\0") + struct.pack("<QIHHHHHH", 64 + len(names), 0, 64, 0, 0, 64, len(heads),
                                                       len(heads) - 1)
    return head + names + table


def fatbin_of(cubins):
    entries = b"".join(struct.pack("<HHIQIIIIIIII", 2, 257, 64, len(cubin), 0, 0, 0, arch, 0, 0, 0, 0).ljust(64, b"\0") + cubin
                       for arch, cubin in cubins)
    ptx = struct.pack("<HHIQ", 1, 257, 80, 8).ljust(80, b"\0") + bytes(8)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(ptx) + len(entries)) + ptx + entries


def ptxas_of(kernel, arch="sm_90a", registers=32, stack=0, stores=0, loads=0, shared=None):
    memory = f", {shared} bytes smem" if shared else ""
    return (f"ptxas info    : Compiling entry function '{kernel}' for '{arch}'\nptxas info    : Function properties for {kernel}\n"
            f"    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 1 barriers{memory}, 664 bytes cmem[0]\n")


@pytest.fixture
def built(gpu, tmp_path, monkeypatch):
    """A build with one image of two kernels for two architectures; writes it anew with other numbers."""
    folder = tmp_path / "build/src/cuda/library"
    folder.mkdir(parents=True)
    (tmp_path / "tests/gpu").mkdir(parents=True)
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.48\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(gpu, "root", tmp_path)
    monkeypatch.setattr(gpu, "nvcc", lambda: str(nvcc))

    def build(code=512, kernels=("one", "two"), **numbers):
        sizes = {name: code for name in kernels}
        (folder / "moves.image").write_bytes(fatbin_of([(80, cubin_of({name: 128 for name in kernels})),
                                                        (90, cubin_of(sizes))]))
        (folder / "moves.ptxas").write_text("".join([
            *(ptxas_of(name, "sm_80") for name in kernels),
            *(ptxas_of(name, **(numbers if name == "one" else {})) for name in kernels)]))

    def check(renew=False):
        return gpu.resources(argparse.Namespace(build=tmp_path / "build", renew=renew))

    build()
    assert check(renew=True) == 0
    return argparse.Namespace(build=build, check=check, path=tmp_path / gpu.RESOURCES, nvcc=nvcc)


def test_what_kernels_take_is_recorded_by_architecture(built):
    recorded = json.loads(built.path.read_text())
    assert recorded["compiler"] == "13.0.48"
    assert recorded["images"]["moves"] == {"one sm_80": [32, 0, 0, 0, 128], "two sm_80": [32, 0, 0, 0, 128],
                                           "one sm_90a": [32, 0, 0, 0, 512], "two sm_90a": [32, 0, 0, 0, 512]}
    assert built.check() == 0


@pytest.mark.parametrize("numbers, said", [
    ({"registers": 33}, "moves: one sm_90a: registers 32 -> 33"),
    ({"stack": 8}, "moves: one sm_90a: stack 0 -> 8"),
    ({"shared": 1024}, "moves: one sm_90a: shared 0 -> 1024"),
    ({"code": 640}, "moves: two sm_90a: code 512 -> 640"),
    ({"kernels": ("one", "two", "three")}, "moves: three sm_80 is not recorded: registers 32"),
    ({"kernels": ("one",)}, "moves: two sm_90a is recorded and is gone"),
])
def test_a_kernel_that_takes_more_fails_with_both_numbers(built, capsys, numbers, said):
    built.build(**numbers)
    assert built.check() == 1
    assert said in capsys.readouterr().out


def test_a_kernel_that_takes_less_passes_and_may_be_recorded(built):
    built.build(registers=30, code=384)
    assert built.check() == 0
    assert built.check(renew=True) == 0
    built.build()
    assert built.check() == 1


def test_a_spill_fails_and_is_not_recorded_but_by_hand(built, capsys):
    built.build(stores=4, loads=8)
    before = built.path.read_text()
    assert built.check(renew=True) == 1
    assert "moves: one sm_90a spills 12 bytes, allowed: 0" in capsys.readouterr().out
    assert built.path.read_text() == before
    built.path.write_text(before.replace('"spills": {}', '"spills": {"one sm_90a": 12}'))
    assert built.check(renew=True) == 0
    built.build(stores=4, loads=12)
    assert built.check() == 1


def test_another_compiler_is_judged_by_its_spills_alone(built, capsys):
    built.nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 13.1, V13.1.2\n")
    built.build(registers=40)
    assert built.check() == 0
    assert "recorded with nvcc 13.0.48, this is 13.1.2: only spills are judged" in capsys.readouterr().out
    built.build(stores=4)
    assert built.check() == 1
