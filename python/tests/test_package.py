# SPDX-License-Identifier: Apache-2.0
"""The package: names, stubs, examples, plans of capacity, block maps."""

import doctest
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

import kvfolio as kv
from kvfolio import tiers

PACKAGE = pathlib.Path(kv.__file__).parent
MODULES = ["kvfolio", "kvfolio._types", "kvfolio._capacity", "kvfolio._block_map", "kvfolio_tiers",
           "kvfolio_tiers._types"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name, tmp_path):
    result = doctest.testmod(importlib.import_module(name), extraglobs={"directory": tmp_path / "disk"})
    assert result.attempted > 0 and result.failed == 0


def test_every_name_is_there_and_said():
    for name in kv.__all__:
        assert getattr(kv, name) is not None
        if isinstance(getattr(kv, name), (type, types.FunctionType)):
            assert getattr(kv, name).__doc__, name
    version = [line.split()[-1] for line in
               (pathlib.Path(__file__).parents[2] / "include/kvfolio/version.h").read_text()
               .splitlines() if line.startswith("#define KVFOLIO_VERSION_")]
    assert kv.__version__ == ".".join(version[:3])


def test_every_name_of_tiers_is_there_and_said():
    tiers = importlib.import_module("kvfolio.tiers")
    for name in tiers.__all__:
        assert getattr(tiers, name).__doc__, name
    types_ = importlib.import_module("kvfolio_tiers._types")
    missing = {name for name, value in vars(types_).items()
               if isinstance(value, type) and value.__module__ == types_.__name__} - set(tiers.__all__)
    assert not missing


def test_every_name_of_cuda_is_there_and_said():
    cuda = importlib.import_module("kvfolio.cuda")
    for name in cuda.__all__:
        assert getattr(cuda, name).__doc__, name


@pytest.mark.parametrize("module", ["kvfolio._core", "kvfolio_tiers._tiers", "kvfolio_cuda._cuda"])
def test_every_public_call_has_a_stub(module):
    package, _, extension = module.partition(".")
    stub = (PACKAGE.parent / package / f"{extension}.pyi").read_text()
    for name, value in vars(importlib.import_module(module)).items():
        if name.startswith("_") or name == "twin":  # of tests/python_cuda
            continue
        assert f"class {name}" in stub or f"def {name}(" in stub, name
        for member in vars(value) if isinstance(value, type) else ():
            if not member.startswith("_"):
                assert f"def {member}(" in stub, f"{name}.{member}"


def test_the_reference_in_docs_is_what_the_package_says():
    script = pathlib.Path(__file__).parents[2] / "scripts/python-reference"
    ran = subprocess.run([sys.executable, script, "--check", PACKAGE], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_mypy_strict_passes(tmp_path):
    pytest.importorskip("mypy")
    use = tmp_path / "use.py"
    use.write_text('''
import numpy as np
import kvfolio as kv
from kvfolio import cuda, tiers

m = kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=4)], order="unordered")
sequence, cached = m.open(np.zeros(3, np.int32), root=kv.RootKey(tenant_salt=b"a"))
total: int = sequence + cached + m.info(sequence).length + m.counters.forks
with m.step() as step:
    step.append(sequence, [1, 2, 3])
    shape: tuple[int, ...] = step.plan().groups[0].slot_mapping.shape
try:
    m.admit(sequence, 10**6)
except kv.OutOfBlocks as error:
    print(error.needed + 1)

model = tiers.ModelIdentity(model="m", weights="w", tokenizer="t", model_dtype="f32", positions="p", engine="e")
with tiers.DiskTier("/x", bytes=2**20) as disk, tiers.Offload(m, model, arena_bytes=2**20, tiers=[disk]) as cache:
    opened = cache.open([1, 2])
    for ready in cache.wait(1.0):
        print(ready.cached_tokens + opened.cached_tokens, ready.why == "loaded")
    tickets: range = disk.submit("load", [bytes(72)], [np.zeros(3), bytearray(3)], timeout=0.5)
    print({done.ticket: done.result for done in disk.wait(all=True)}, disk.stats().bytes + 1)
    left: bool = bool(cache.drain(0.5))
print(tiers.save(m, "x", model, sequences=[tiers.SnapshotSequence(sequence, [1])]).bytes + 1)
if cuda.available():
    device = cuda.Device(0)
    storage = cuda.Storage([kv.GroupSpec(head_dim=8, num_blocks=4)], device=device)
    layer = storage.view(0, 0)
    cuda.append(layer, layer.k, layer.v, layer.k, stream=2)
    cuda.copy_blocks(layer, [0], np.zeros(1, np.int32))
    over = kv.Manager(storage, order="unordered").device_storage
    up = cuda.DevicePlan(max_sequences=1, max_tokens=4, num_rows=m.num_rows, groups=[(16, 4)])
    with m.step() as step:
        up.upload(step.plan(changed_entries=True), stream=2)
    if (slots := up.group(0).slot_mapping) is not None:
        print(slots.shape[0] + up.last_upload["bytes"])
    batch = cuda.Batch([0, 1], np.ones(1, np.int32), layer.k)
    plan: cuda.AttendPlan = cuda.plan_attend(layer.k, layer, batch, out=layer.k, window=4, reuse=None, stream=2)
    print(plan.target + "", plan.attend(layer.k, layer, out=layer.v), cuda.attend(layer.k, layer, batch, out=layer.v))
    name: str = device.engine + str(layer.k.shape[0] + device.capability[1]) + (cuda.why_not() or "")
''')
    wrong = tmp_path / "wrong.py"
    wrong.write_text('''
import kvfolio as kv
m = kv.Manager([], order="sideways")
m.open("prompt")
m.close(None)

from kvfolio import tiers
disk = tiers.DiskTier("/x")
disk.submit("steal", [1])

from kvfolio import cuda
cuda.append(cuda.Storage([], device="cuda"), None, None, [1])
''')
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental",
               f"--cache-dir={tmp_path}"]
    env = {"MYPYPATH": str(PACKAGE.parent)}
    public = [str(path) for package in (PACKAGE, PACKAGE.parent / "kvfolio_tiers", PACKAGE.parent / "kvfolio_cuda")
              for path in package.glob("*.py*") if path.suffix in (".py", ".pyi")]
    ran = subprocess.run([*command, str(use), *sorted(public, key=lambda path: not path.endswith(".pyi"))],
                         capture_output=True, text=True, env=env, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    ran = subprocess.run([*command, str(wrong)], capture_output=True, text=True, env=env,
                         timeout=300)
    assert ran.stdout.count("error:") == 10, ran.stdout + ran.stderr


def test_the_lines_of_the_docs_print_what_they_say():
    root = pathlib.Path(__file__).parents[2]
    example = root / "examples/python/readme.py"
    ran = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    mark = "<!-- output of examples/python/readme.py -->\n```text\n"
    page = (root / "docs" / "languages.md").read_text()
    begin = page.index(mark) + len(mark)
    assert ran.stdout == page[begin:page.index("```", begin)]


@pytest.mark.parametrize(("name", "said"), [
    ("tiers", "first run: 0 of 100 tokens found\nsecond run: 96 of 100 tokens found\n"),
    ("tier_alone", "stored: 8, loaded: 8, equal: True\n"),
])
def test_the_lines_of_the_page_on_tiers_run(name, said, tmp_path):
    example = pathlib.Path(__file__).parents[2] / f"examples/python/{name}.py"
    ran = subprocess.run([sys.executable, str(example), str(tmp_path / "disk")], capture_output=True, text=True,
                         timeout=60)
    assert ran.returncode == 0 and ran.stdout == said, ran.stdout + ran.stderr


def test_the_benchmark_of_a_step_runs():
    command = os.environ.get("KVFOLIO", "")
    if not pathlib.Path(command).is_file():
        pytest.skip("the command was not built")
    bench = pathlib.Path(__file__).parents[2] / "bench/python/step.py"
    ran = subprocess.run([sys.executable, str(bench), "--quick", "--kvfolio", command],
                         capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and "step.decode.python" in ran.stdout, ran.stdout + ran.stderr


LLAMA = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
         "hidden_size": 512}


def test_a_plan_fits_memory_and_makes_a_pool():
    plan = kv.plan(LLAMA, "8MiB", dtype="f16")
    (group,) = plan.groups
    assert (group.num_kv_heads, group.head_dim, group.dtype) == (2, 64, "f16")
    assert plan.bytes_per_token == 2 * 4 * 2 * 64 * 2
    assert plan.total_bytes == 8 << 20 and plan.num_tokens == (8 << 20) // 2048
    assert kv.Manager(plan.groups).bytes_total == plan.total_bytes
    assert kv.plan(LLAMA, blocks=7).groups[0].num_blocks == 7
    assert kv.plan(LLAMA, 2**23, dtype="float16") == plan


def test_a_plan_reads_windows_and_text_configs():
    config = types.SimpleNamespace(text_config=types.SimpleNamespace(
        num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
        hidden_size=640, sliding_window=512, dtype="torch.bfloat16",
        layer_types=["sliding_attention"] * 5 + ["full_attention"]))
    plan = kv.plan(config, "64MB")
    full, window = plan.groups
    assert (full.num_layers, window.num_layers) == (1, 5)
    assert window.window == 512 and full.window == 0 and full.dtype == "bf16"
    assert plan.total_bytes <= 64 * 10**6 and window.num_blocks < full.num_blocks
    assert "window 512" in str(plan)
    mistral = {**LLAMA, "sliding_window": 8}
    assert kv.plan(mistral, "1MiB").groups[0].window == 8
    assert kv.plan({**mistral, "use_sliding_window": False}, "1MiB").groups[0].window == 0


def test_a_plan_reads_values_of_single_layers_and_leaves_out_layers_that_share():
    """Gemma 4, as its file says it, and as transformers writes it since 5.23."""
    config = {"num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
              "hidden_size": 64, "sliding_window": 8, "num_kv_shared_layers": 2,
              "layer_types": ["sliding_attention", "full_attention"] * 3}
    own = {"head_dim": 32, "num_key_value_heads": 1}
    configs = [{**config, "global_head_dim": 32, "num_global_key_value_heads": 1},
               {**config, "per_layer_config": {"1": own, "3": own, "5": own}}]
    for given in configs:
        full, window = kv.plan(given, "1MiB").groups
        assert (full.num_layers, full.num_kv_heads, full.head_dim, full.window) == (2, 1, 32, 0)
        assert (window.num_layers, window.num_kv_heads, window.head_dim, window.window) == (2, 2, 16, 8)
    full = kv.plan({**configs[0], "attention_k_eq_v": False}, "1MiB").groups[0]
    assert (full.num_kv_heads, full.head_dim) == (2, 32)


@pytest.mark.parametrize(("error", "text", "call"), [
    (kv.InvalidArgument, "either memory or blocks", lambda: kv.plan(LLAMA)),
    (kv.InvalidArgument, "'2 parsecs'", lambda: kv.plan(LLAMA, "2 parsecs")),
    (kv.InvalidArgument, "bytes", lambda: kv.plan(LLAMA, 10)),
    (kv.InvalidArgument, "num_hidden_layers is None", lambda: kv.plan({}, "1GiB")),
    (kv.InvalidArgument, "num_key_value_heads is -1",
     lambda: kv.plan({**LLAMA, "num_key_value_heads": -1}, "1GiB")),
    (kv.InvalidArgument, "dtype is 'f8'", lambda: kv.plan(LLAMA, "1GiB", dtype="f8")),
    (kv.InvalidArgument, "no sliding_window",
     lambda: kv.plan({**LLAMA, "layer_types": ["sliding_attention"] * 4}, "1GiB")),
    (kv.InvalidArgument, "3 layer_types for 4",
     lambda: kv.plan({**LLAMA, "layer_types": ["full_attention"] * 3}, "1GiB")),
    (kv.Unsupported, "layer 1 is of type 'linear_attention'",
     lambda: kv.plan({**LLAMA, "layer_types": ["full_attention", "linear_attention"] * 2}, "1GiB")),
    (kv.Unsupported, "kv_lora_rank", lambda: kv.plan({**LLAMA, "kv_lora_rank": 512}, "1GiB")),
    (kv.InvalidArgument, "blocks", lambda: kv.plan(LLAMA, blocks=2**40)),
])
def test_a_config_that_does_not_fit_is_refused(error, text, call):
    with pytest.raises(error, match=text):
        call()


def test_a_block_map_names_every_state(manager, tmp_path):
    a, _ = manager.open([])
    b, _ = manager.open([])
    with manager.step() as step:
        step.append(a, range(5))
        step.append(b, range(20, 28))
    c = manager.fork(a)
    manager.close(b)
    text = kv.block_map(manager, width=8)
    assert text.splitlines()[:2] == ["##--....", "........"]
    assert "2 held, 2 cached, 0 retiring, 12 free" in text
    with manager.step() as step:
        step.append(c, [9])
    assert kv.block_map(manager, width=16).splitlines()[0] == "#a--b..........."
    with pytest.raises(kv.InvalidArgument):
        kv.block_map(manager, 1)
    with pytest.raises(kv.InvalidArgument):
        kv.block_map(manager, width=0)


def test_the_picture_of_a_block_map_has_an_equal_square_for_each_block(manager, tmp_path):
    image = pytest.importorskip("matplotlib.image", reason="the picture was not drawn: no matplotlib")
    a, _ = manager.open([])
    b, _ = manager.open([])
    with manager.step() as step:
        step.append(a, range(5))
        step.append(b, range(20, 28))
    manager.fork(a)
    manager.close(b)
    picture = tmp_path / "map.png"
    assert kv.block_map(manager, width=8, path=picture).splitlines()[:2] == ["##--....", "........"]
    pixels = (image.imread(picture)[..., :3] * 255).round().astype(int)
    counts = {"dark": (31, 58, 95), "grey": (184, 196, 206), "light": (242, 242, 242)}
    counts = {name: int((pixels == color).all(axis=2).sum()) for name, color in counts.items()}
    # The edges of squares and the letters of the title are blended.
    assert counts["dark"] > 1000
    assert abs(counts["grey"] / counts["dark"] - 1) < 0.1
    assert abs(counts["light"] / counts["dark"] - 6) < 0.3
    rows, columns = (pixels == (31, 58, 95)).all(axis=2).nonzero()
    grey_columns = (pixels == (184, 196, 206)).all(axis=2).nonzero()[1]
    assert columns.max() < grey_columns.min()  # in the order of the text
    kv.block_map(manager, path=tmp_path / "map.svg")
    assert "<svg" in (tmp_path / "map.svg").read_text()


def test_a_picture_without_matplotlib_says_what_to_install(manager, tmp_path, monkeypatch):
    for name in ("matplotlib", "matplotlib.colors", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="a picture needs matplotlib .*pip install matplotlib"):
        kv.block_map(manager, path=tmp_path / "map.png")
    assert "held" in kv.block_map(manager)


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_hf_names_the_package_that_it_lacks(missing):
    code = ("import importlib.machinery, sys, types; "
            "[sys.modules.__setitem__(n, types.ModuleType(n)) for n in ('torch', 'transformers')]; "
            "[setattr(sys.modules[n], '__spec__', importlib.machinery.ModuleSpec(n, None)) for n in "
            "('torch', 'transformers')]; "
            f"sys.modules['{missing}'] = None; import kvfolio.hf")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"ModuleNotFoundError: kvfolio.hf needs {missing}, which is not installed here: pip install torch" in done.stderr


def docstrings(module):
    """(name, text) of all public classes, calls and attributes."""
    for name, thing in vars(module).items():
        if not name.startswith("_"):
            yield name, inspect.getdoc(thing) or ""
            for attribute, inner in vars(thing).items() if inspect.isclass(thing) else ():
                yield f"{name}.{attribute}", inspect.getdoc(inner) or ""


@pytest.mark.parametrize("package", ["kvfolio", "kvfolio.tiers", "kvfolio.cuda"])
def test_help_speaks_python(package):
    module = pytest.importorskip(package)
    for name, text in docstrings(module):
        assert not re.search(r"\w\.h\b|\w::|\bk[A-Z]", text), (name, text)


@pytest.mark.parametrize("kind", [kv.Manager, tiers.DiskTier])
def test_each_option_has_a_line(kind):
    text = kind.__init__.__doc__
    options = re.findall(r"(\w+): [^,]+ =", text.splitlines()[0])
    assert len(options) > 9
    for option in options:
        assert option in text.partition("\n")[2], option
