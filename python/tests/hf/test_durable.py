# SPDX-License-Identifier: Apache-2.0
"""Prompts that outlive the process: files and tiers, and whose they are."""

from __future__ import annotations

import copy
import functools
import gc
import pathlib
import socket
import stat
import subprocess
import sys
import threading
import weakref

import models
import pytest
import torch
import transformers
from caches import generate, hits, pool_for, warm
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import masking_utils, modeling_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import kvfolio
from kvfolio import hf, tiers
from kvfolio.hf import _code, _durable

ALL = 29  # tokens of a prompt of 30 that can be found
BLOCKS = dict(blocks=64, block_size=16)


def durable(model, **arguments) -> hf.Pool:
    return pool_for(model, **(BLOCKS | dict(durable=True) | arguments))


def logits_behind(model, cache, ids, start: int) -> torch.Tensor:
    return model(ids[:, start:], past_key_values=cache).logits


def in_two_parts(model, ids, start: int) -> torch.Tensor:
    """What the model says of the rest, behind a prompt that it computed itself: a miss, of the same shapes."""
    with hf.PagedCache(model, pool_for(model)) as cache:
        if start:
            model(ids[:, :start], past_key_values=cache)
        return logits_behind(model, cache, ids, start)


FLOWS = [(family, attention) for family in models.FAMILIES for attention in (None, "kvfolio")
         if (family, attention) != ("deepseek_v3", "kvfolio")]


def made(family: str, attention: str | None = None, seed: int = 0):
    if attention == "kvfolio":
        hf.register()
    return models.make(family, seed=seed, attention=attention)


def compute(model, pool, ids) -> torch.Tensor:
    """A miss: what the model says of the last token, behind the others."""
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        assert cache.cached_tokens == 0
        model(ids[:, :-1], past_key_values=cache)
        return model(ids[:, -1:], past_key_values=cache).logits


def behind_hit(model, pool, ids) -> torch.Tensor:
    """The same for a prompt that was found."""
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        assert cache.cached_tokens == ids.shape[1] - 1
        return model(ids[:, -1:], past_key_values=cache).logits


@pytest.mark.parametrize(("family", "attention"), FLOWS)
def test_a_restored_hit_has_the_bits_of_a_miss(tmp_path, family, attention):
    model = made(family, attention)
    ids = models.prompt(40)
    pool = durable(model)
    missed = compute(model, pool, ids)
    saved = pool.save(tmp_path / "prompts")
    assert saved.records > 0
    again = made(family, attention)  # equal weights, another object
    back = hf.Pool.restore(tmp_path / "prompts", again, **BLOCKS)
    assert back.restored.records_loaded == saved.records
    assert torch.equal(behind_hit(again, back, ids), missed)
    assert torch.equal(missed, compute(again, pool_for(again), ids))  # another miss
    assert hits(again, back, ids) == 39


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_a_cache_of_another_type_comes_back_as_it_was(tmp_path, dtype):
    model = made("llama")
    ids = models.prompt(30)
    pool = durable(model, dtype=dtype)
    warm(model, pool, ids)
    pool.save(tmp_path / "prompts")
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        expected = logits_behind(model, cache, ids, cache.cached_tokens)
    model = made("llama")
    back = hf.Pool.restore(tmp_path / "prompts", model, dtype=dtype, **BLOCKS)
    with hf.PagedCache(model, back, prompt_ids=ids) as cache:
        assert cache.cached_tokens == ALL
        assert torch.equal(logits_behind(model, cache, ids, ALL), expected)


CHILD = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)
import models
from test_durable import compute
from kvfolio import hf
with torch.no_grad():
    model = models.make("gemma3")
    pool = hf.Pool(model, blocks=64, block_size=16, durable=True)
    torch.save(compute(model, pool, models.prompt(40)), sys.argv[2] + ".logits")
    print(pool.save(sys.argv[2]).records)
"""


def test_another_process_computed_it(tmp_path):
    ran = subprocess.run([sys.executable, "-c", CHILD, str(pathlib.Path(__file__).parent), str(tmp_path / "prompts")],
                         capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    model, ids = made("gemma3"), models.prompt(40)
    back = hf.Pool.restore(tmp_path / "prompts", model, **BLOCKS)
    assert back.restored.records_loaded == int(ran.stdout)
    assert torch.equal(behind_hit(model, back, ids), torch.load(tmp_path / "prompts.logits"))
    assert torch.equal(behind_hit(model, back, ids), compute(model, pool_for(model), ids))
    assert stat.S_IMODE((tmp_path / "prompts").stat().st_mode) == 0o600


def saved(tmp_path, **arguments) -> pathlib.Path:
    model = made("llama")
    pool = durable(model, **arguments)
    warm(model, pool, models.prompt(30))
    pool.save(tmp_path / "prompts")
    return tmp_path / "prompts"


@pytest.mark.parametrize(
    ("change", "field"),
    [("seed", "weights"), ("one weight", "weights"), ("a buffer", "weights"), ("dtype", "model_dtype"),
     ("attention", "engine"), ("rope", "positions"), ("eps", "model"), ("training", "model"), ("revision", "weights"),
     ("matmul", "engine"), ("block size", "block_size"), ("cache dtype", "dtype")])
def test_a_file_of_another_identity_is_refused_by_its_field(tmp_path, change, field):
    same = {"weights": "the same"} if change == "dtype" else {}  # bytes of another type are other bytes
    path = saved(tmp_path, **same)
    model, options = made("llama", seed=int(change == "seed")), BLOCKS | same
    before = torch.get_float32_matmul_precision()
    if change == "one weight":
        model.get_decoder().layers[3].mlp.down_proj.weight[5, 7] *= 1.0001
    elif change == "a buffer":
        model.get_decoder().rotary_emb.inv_freq *= 1.01
    elif change == "dtype":
        model = model.to(torch.bfloat16)
        options["dtype"] = "f32"
    elif change == "attention":
        model.set_attn_implementation("eager")
    elif change == "rope":
        model.config.max_position_embeddings = 1024
    elif change == "eps":
        model.get_decoder().layers[2].input_layernorm.variance_epsilon = 1e-3
    elif change == "training":
        model.train()
    elif change == "revision":
        options["weights"] = "revision 7"
    elif change == "matmul":
        torch.set_float32_matmul_precision("medium")
    elif change == "block size":
        options["block_size"] = 32
    elif change == "cache dtype":
        options["dtype"] = "bf16"
    try:
        with pytest.raises(kvfolio.InvalidArgument, match=field):
            hf.Pool.restore(path, model, **options)
    finally:
        torch.set_float32_matmul_precision(before)


def softer(module, query, key, value, mask, scaling=None, factor=0.2, **kwargs):
    return sdpa_attention_forward(module, query * factor, key, value, mask, scaling=scaling, **kwargs)


def softest(module, query, key, value, mask, scaling=None, factor=0.1, **kwargs):
    return sdpa_attention_forward(module, query * factor, key, value, mask, scaling=scaling, **kwargs)


def with_factor(factor):
    def attend(module, query, key, value, mask, scaling=None, **kwargs):
        return sdpa_attention_forward(module, query * factor, key, value, mask, scaling=scaling, **kwargs)

    return attend


@pytest.fixture
def own_attention():
    """A model whose attention is the function that was registered last."""
    functions, masks = modeling_utils.ALL_ATTENTION_FUNCTIONS, masking_utils.ALL_MASK_ATTENTION_FUNCTIONS

    def with_attention(function):
        type(functions).register("mine", function)
        model = made("llama")
        model.set_attn_implementation("mine")
        return model

    type(masks).register("mine", masking_utils.sdpa_mask)
    yield with_attention
    for table in (functions, masks):
        table._global_mapping.pop("mine", None)


def test_an_attention_is_named_by_its_function(tmp_path, own_attention):
    ids = models.prompt(40)
    pool = durable(model := own_attention(softer))
    missed = compute(model, pool, ids)
    pool.save(tmp_path / "prompts")
    for function in (softest, functools.partial(softer, factor=0.3), with_factor(0.2)):
        other = own_attention(function)
        with pytest.raises((kvfolio.InvalidArgument, ValueError), match="engine|has no name that lasts"):
            hf.Pool.restore(tmp_path / "prompts", other, **BLOCKS)
    assert hits(own_attention(softest), pool, ids) == 0
    again = own_attention(softer)
    back = hf.Pool.restore(tmp_path / "prompts", again, **BLOCKS)
    assert torch.equal(behind_hit(again, back, ids), missed)


def test_the_mask_and_the_defaults_of_an_attention_are_in_its_name(tmp_path, own_attention, monkeypatch):
    pool = durable(model := own_attention(softer))
    warm(model, pool, models.prompt(30))
    pool.save(tmp_path / "prompts")
    with monkeypatch.context() as patch:
        patch.setattr(softer, "__defaults__", (None, 0.3))
        with pytest.raises(kvfolio.InvalidArgument, match="engine"):
            hf.Pool.restore(tmp_path / "prompts", own_attention(softer), **BLOCKS)
    type(masking_utils.ALL_MASK_ATTENTION_FUNCTIONS).register("mine", masking_utils.eager_mask)
    with pytest.raises(kvfolio.InvalidArgument, match="engine"):
        hf.Pool.restore(tmp_path / "prompts", own_attention(softer), **BLOCKS)


FILES = {
    "mlp_own.py": "from mlp_base import Base\n\nclass Mlp(Base):\n    pass\n",
    "mlp_base.py": "from transformers.models.llama.modeling_llama import LlamaMLP\nimport mlp_parts.act as act\n\n\n"
                   "class Base(LlamaMLP):\n    def forward(self, x):\n        return act.changed(super().forward(x))\n",
    "mlp_parts/__init__.py": "",
    "mlp_parts/act.py": "from .number import NUMBER\n\n\ndef changed(x):\n    return x * NUMBER\n",
    "mlp_parts/number.py": "NUMBER = 1.25\n",
    "unused.py": "",
}
OWN_CODE = """
import importlib, sys
import torch
sys.path[:0] = sys.argv[1:3]
import models
from kvfolio import hf
from test_durable import compute
with torch.no_grad():
    model = models.make("llama")
    for layer in model.model.layers:
        layer.mlp.__class__ = importlib.import_module("mlp_own").Mlp
    if sys.argv[4] == "save":
        pool = hf.Pool(model, blocks=64, block_size=16, durable=True, weights="w")
        compute(model, pool, models.prompt(40))
        pool.save(sys.argv[3])
    else:
        try:
            print(hf.Pool.restore(sys.argv[3], model, blocks=64, block_size=16, weights="w").restored.records_loaded > 0)
        except Exception as error:
            print("model is" in str(error) and "another model")
"""


def test_code_is_named_with_its_bases_and_with_what_it_imports(tmp_path):
    def run(what):
        ran = subprocess.run([sys.executable, "-c", OWN_CODE, str(tmp_path), str(pathlib.Path(__file__).parent),
                              str(tmp_path / "prompts"), what], capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    (tmp_path / "mlp_parts").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    run("save")
    (tmp_path / "unused.py").write_text("1\n")
    assert run("restore") == "True"
    for name in ("mlp_base.py", "mlp_parts/number.py"):
        (tmp_path / name).write_text(FILES[name] + "# or another number\n")
        assert run("restore") == "another model", name
        (tmp_path / name).write_text(FILES[name])


def test_code_that_may_be_edited_where_it_lies_has_no_version(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, said in (("laid", "{}"), ("edited", '{"dir_info": {"editable": true}}')):
        info = tmp_path / f"kvf_{name}-1.0.dist-info"
        info.mkdir()
        (tmp_path / f"kvf_{name}.py").write_text("")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kvf_{name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"kvf_{name}.py,,\n")
        (info / "direct_url.json").write_text(said)
    assert _code.version_of("kvf_laid") == "1.0"
    assert _code.version_of("kvf_edited") is None
    assert _code.texts_of(["kvf_laid"]) == ["kvf_laid 1.0"]
    assert _code.texts_of(["kvf_edited"])[0].startswith("kvf_edited ")
    with pytest.raises(ValueError, match="no name that lasts"):
        _code.texts_of(["kvf_nowhere"])


def test_numbers_of_modules_are_in_the_name(tmp_path):
    def gemma2():
        torch.manual_seed(0)
        config = transformers.Gemma2Config(**models._COMMON, attn_implementation="eager")
        return transformers.Gemma2ForCausalLM(config).eval()

    ids, model = models.prompt(40), gemma2()
    pool = durable(model)
    missed = compute(model, pool, ids)
    pool.save(tmp_path / "prompts")
    again = gemma2()
    back = hf.Pool.restore(tmp_path / "prompts", again, **BLOCKS)
    assert torch.equal(behind_hit(again, back, ids), missed)
    again.model.layers[1].self_attn.attn_logit_softcapping = 0.5
    with pytest.raises(kvfolio.InvalidArgument, match="model is"):
        hf.Pool.restore(tmp_path / "prompts", again, **BLOCKS)
    assert hits(again, back, ids) == 0  # in the pool that stands, too
    with hf.PagedCache(again, back, prompt_ids=ids) as cache:
        again.model.layers[1].self_attn.attn_logit_softcapping = 50.0
        with pytest.raises(RuntimeError, match="attn_logit_softcapping"):
            again(ids[:, cache.cached_tokens:], past_key_values=cache)


@pytest.mark.parametrize("switch", [lambda: sdpa_kernel(SDPBackend.MATH), lambda: torch.backends.mkldnn.flags(enabled=False)])
def test_the_ways_of_torch_are_in_the_name(tmp_path, switch):
    path, model, ids = saved(tmp_path), made("llama"), models.prompt(30)
    back = hf.Pool.restore(path, model, **BLOCKS)
    with switch():
        with pytest.raises(kvfolio.InvalidArgument, match="engine"):
            hf.Pool.restore(path, model, **BLOCKS)
        assert hits(model, back, ids) == 0
    assert hits(model, back, ids) == ALL


def test_what_the_environment_tells_libraries_is_in_the_name(tmp_path, monkeypatch):
    path = saved(tmp_path)
    monkeypatch.setenv("ONEDNN_VERBOSE", "0")
    hf.Pool.restore(path, made("llama"), **BLOCKS)
    for name, value in (("ONEDNN_MAX_CPU_ISA", "AVX2"), ("MKL_ENABLE_INSTRUCTIONS", "AVX2")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(kvfolio.InvalidArgument, match="engine"):
                hf.Pool.restore(path, made("llama"), **BLOCKS)


def test_a_precision_of_one_backend_is_in_the_name(tmp_path):
    path = saved(tmp_path)
    own = torch.backends.mkldnn.matmul
    before, own.fp32_precision = own.fp32_precision, "bf16"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        with pytest.raises(kvfolio.InvalidArgument, match="engine"):
            hf.Pool.restore(path, made("llama"), **BLOCKS)
        model = made("llama")
        assert hits(model, pool_for(model), models.prompt(30)) == 0
    finally:
        own.fp32_precision = before


def test_weights_that_have_a_revision_are_named_by_it_as_they_were(tmp_path):
    path = saved(tmp_path, weights="revision 7")
    model = made("llama")
    back = hf.Pool.restore(path, model, weights="revision 7", **BLOCKS)
    assert hits(model, back, models.prompt(30)) == ALL
    model.get_decoder().layers[1].mlp.up_proj.weight[3, 5] += 1.0
    assert hits(model, back, models.prompt(30)) == 0  # they are not that revision any more
    back.save(tmp_path / "changed")
    with pytest.raises(kvfolio.InvalidArgument, match="weights"):
        hf.Pool.restore(tmp_path / "changed", made("llama"), weights="revision 7", **BLOCKS)


def test_models_with_equal_weights_share_and_a_changed_one_does_not():
    pool = durable(model := made("llama"))
    ids = models.prompt(30)
    warm(model, pool, ids)
    assert hits(made("llama"), pool, ids) == ALL
    assert hits(copy.deepcopy(model), pool, ids) == ALL
    assert hits(made("llama", seed=1), pool, ids) == 0
    model.get_decoder().norm.weight *= 1.5
    assert hits(model, pool, ids) == 0


def test_namespaces_stay_apart_in_the_file(tmp_path):
    pool = durable(model := made("llama"))
    ids = models.prompt(30)
    with hf.PagedCache(model, pool, prompt_ids=ids, namespace="tenant 7") as cache:
        generate(model, ids, cache, max_new_tokens=1)
    pool.save(tmp_path / "prompts")
    back = hf.Pool.restore(tmp_path / "prompts", model, **BLOCKS)
    assert hits(model, back, ids, namespace="tenant 8") == 0
    assert hits(model, back, ids, namespace="tenant 7") == ALL


def test_a_hook_that_acts_keeps_nothing(tmp_path):
    pool = durable(model := made("llama"))
    ids = models.prompt(30)
    handle = model.get_decoder().layers[1].register_forward_hook(
        lambda module, given, out: (out[0] * 1.5, *out[1:]) if isinstance(out, tuple) else out * 1.5)
    warm(model, pool, ids)
    handle.remove()
    assert pool.save(tmp_path / "prompts").records == 0


def test_no_flipped_byte_is_handed_over(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    model, ids = made("llama"), models.prompt(30)
    expected = {start: in_two_parts(model, ids, start) for start in (0, 16, ALL)}
    refused = 0
    for at in range(3, len(whole), len(whole) // 61):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        try:
            hf.Pool.restore(path, model, **BLOCKS)
        except (kvfolio.Corrupt, kvfolio.InvalidArgument) as error:
            refused += 1
            if "records" in str(error):
                assert str(path) in str(error)
        try:
            back = hf.Pool.restore(path, model, damaged="skip", **BLOCKS)
        except (kvfolio.Corrupt, kvfolio.InvalidArgument):
            continue
        with hf.PagedCache(model, back, prompt_ids=ids) as cache:
            found = cache.cached_tokens
            logits = logits_behind(model, cache, ids, found)
        assert torch.equal(logits, expected.get(found, logits))
        assert found in expected, found
    assert refused > 55


def test_a_file_is_sealed_with_a_key(tmp_path):
    pool = durable(model := made("llama"))
    warm(model, pool, models.prompt(30))
    one, two = bytes(range(32)), bytes(32)
    pool.save(tmp_path / "prompts", key=one)
    back = hf.Pool.restore(tmp_path / "prompts", model, key=two, accepted_key=one, **BLOCKS)
    assert hits(model, back, models.prompt(30)) == ALL
    with pytest.raises(kvfolio.Corrupt, match="another key"):
        hf.Pool.restore(tmp_path / "prompts", model, key=two, **BLOCKS)


def test_what_cannot_be_kept_is_refused(tmp_path):
    model = made("llama")
    with pytest.raises(kvfolio.FailedPrecondition, match="durable=True"):
        pool_for(model).save(tmp_path / "prompts")
    with pytest.raises(ValueError, match="needs the model"):
        durable(model.config)
    with pytest.raises(ValueError, match="durable=True"):
        pool_for(model, weights="r1")
    with pytest.raises(ValueError, match="weights is"):
        durable(model, weights="")
    with pytest.raises(ValueError, match="on a CPU"):
        durable(model, data_plane="torch")
    with pytest.raises(ValueError, match="damaged is"):
        hf.Pool.restore(tmp_path / "prompts", model, damaged="ignore", **BLOCKS)
    with pytest.raises(kvfolio.Error):
        hf.Pool.restore(tmp_path / "none", model, **BLOCKS)
    (tmp_path / "text").write_text("no snapshot, whatever its length is" * 99)
    with pytest.raises(kvfolio.Corrupt):
        hf.Pool.restore(tmp_path / "text", model, **BLOCKS)
    model.get_decoder().layers[0].self_attn.scaling = object()
    with pytest.raises(ValueError, match="layers.0.self_attn.scaling has a object, which has no name that lasts"):
        durable(model)


def test_weights_that_cannot_be_read_need_a_revision():
    model = made("llama")
    part = model.get_decoder().layers[0].mlp.up_proj
    part.weight = torch.nn.Parameter(part.weight.to("meta"), requires_grad=False)
    with pytest.raises(ValueError, match=r"layers.0.mlp.up_proj.weight cannot be read .*weights="):
        durable(model)
    durable(model, weights="revision 7")


def test_a_pool_of_another_size_takes_what_fits(tmp_path):
    path = saved(tmp_path)
    model = made("llama")
    back = hf.Pool.restore(path, model, blocks=1, block_size=16)
    assert back.restored.paths_no_room == 1
    with hf.PagedCache(model, back, prompt_ids=models.prompt(30)) as cache:
        assert cache.cached_tokens == 16


def test_a_save_during_a_forward_is_refused(tmp_path):
    pool = durable(model := made("llama"))
    ids = models.prompt(30)
    seen = []

    def look(*_):
        with pytest.raises(kvfolio.FailedPrecondition):
            pool.save(tmp_path / "prompts")
        seen.append(1)

    handle = model.get_decoder().layers[2].mlp.register_forward_hook(look)
    warm(model, pool, ids)
    handle.remove()
    assert seen
    pool.save(tmp_path / "prompts")


def test_weights_that_were_written_to_unseen_are_not_saved(tmp_path):
    model = made("llama")
    pool = durable(model)
    warm(model, pool, models.prompt(30))
    weight = model.get_decoder().layers[1].mlp.up_proj.weight
    weight.data.view(-1)[1::2].mul_(1.5)  # no version counter, and between the elements that are looked at
    with pytest.raises(RuntimeError, match="leaves no trace"):
        pool.save(tmp_path / "prompts")
    assert not (tmp_path / "prompts").exists()


def test_adapters_are_named_by_what_they_hold(tmp_path):
    peft = pytest.importorskip("peft")

    def adapted():
        torch.manual_seed(5)
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        model = peft.get_peft_model(made("llama"), config).eval()
        model.add_adapter("other", config)
        return model

    ids, model = models.prompt(30), adapted()
    pool = durable(model)
    warm(model, pool, ids)
    model.set_adapter("other")
    assert hits(model, pool, ids) == 0
    model.set_adapter("default")
    pool.save(tmp_path / "prompts")
    again = adapted()
    back = hf.Pool.restore(tmp_path / "prompts", again, **BLOCKS)
    assert hits(again, back, ids) == ALL
    again.set_adapter("other")
    assert hits(again, back, ids) == ALL  # the file has what both computed
    with again.disable_adapter():
        assert hits(again, back, ids) == 0
    with pytest.raises(kvfolio.InvalidArgument):
        hf.Pool.restore(tmp_path / "prompts", made("llama"), **BLOCKS)


# ---- tiers ----


def test_the_next_pool_finds_on_a_disk_what_this_one_computed(tmp_path):
    ids = models.prompt(40)
    for family, run in (("gemma3", 0), ("gemma3", 1), ("llama", 0)):
        model = made(family)
        with tiers.DiskTier(tmp_path / family, bytes=64 << 20) as disk:
            pool = pool_for(model, **BLOCKS, tiers=[disk])
            with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
                found = cache.cached_tokens
                logits = logits_behind(model, cache, ids, found)
                assert found == (32 if run else 0)  # whole blocks
            assert torch.equal(logits, in_two_parts(model, ids, found))
            assert hits(model, pool, ids) == 39
            assert not pool.close()  # nothing is left
            assert hits(model, pool, ids) == 39  # it goes on
            assert pool.close() is None


def test_a_file_fills_a_pool_over_a_disk(tmp_path):
    path = saved(tmp_path)
    model = made("llama")
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        back = hf.Pool.restore(path, model, memory="4MiB", tiers=[disk])
        assert back.bytes_total <= 4 << 20
        assert hits(model, back, models.prompt(30)) == ALL
        assert not back.close()
        assert disk.stats().records > 0


def test_a_tier_that_says_nothing_is_waited_for_until_the_timeout():
    model, ids = made("llama"), models.prompt(40)
    with socket.create_server(("127.0.0.1", 0)) as server:
        deaf = tiers.RedisTier(f"127.0.0.1:{server.getsockname()[1]}", connect_timeout=600, stall_timeout=600)
        pool = pool_for(model, **BLOCKS, tiers=[deaf], tier_timeout=0.1)
        assert hits(model, pool, ids) == 0
        assert pool.offload.counters().requests_timed_out == 1
        pool.close(0.0)
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="tier_timeout"):
            pool_for(model, **BLOCKS, tier_timeout=wrong)


def test_another_model_finds_nothing_on_the_disk(tmp_path):
    ids = models.prompt(40)
    for seed in (0, 1):
        model = made("llama", seed=seed)
        with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
            pool = pool_for(model, **BLOCKS, tiers=[disk])
            assert hits(model, pool, ids) == 0
            pool.close()


def test_a_flipped_byte_on_the_disk_is_computed_again(tmp_path):
    model, ids = made("llama"), models.prompt(40)
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            generate(model, ids, cache, max_new_tokens=1)
            second = cache.layers[1].keys[0, 0, 20].numpy().tobytes()  # a token of the second block
        pool.close()
    flipped = 0
    for path in (tmp_path / "tier").glob("segment-*"):
        data = bytearray(path.read_bytes())
        at = data.find(second)
        if at >= 0:
            data[at + 7] ^= 1
            flipped += 1
            path.write_bytes(data)
    assert flipped == 1
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            assert cache.cached_tokens == 16
            assert torch.equal(logits_behind(model, cache, ids, 16), in_two_parts(model, ids, 16))
        assert pool.offload.tier_counters(0).loads_failed["corrupt"] + pool.offload.counters().tier_corrupt > 0
        pool.close()


def test_a_cleared_pool_finds_nothing_on_its_disk(tmp_path):
    model, ids = made("llama"), models.prompt(40)
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        warm(model, pool, ids)
        pool.clear_prefixes()
        assert hits(model, pool, ids) == 0
        pool.close()


def test_what_was_cleared_stays_so_in_the_next_process(tmp_path):
    model, ids = made("llama"), models.prompt(40)
    epochs = None
    for found in (0, 0, 32):
        with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
            pool = pool_for(model, **BLOCKS, tiers=[disk], epochs=epochs)
            assert hits(model, pool, ids) == found
            if epochs is None:
                pool.clear_prefixes()
            epochs = pool.offload.epochs()
            pool.close()


def test_an_interrupt_while_a_tier_is_waited_for_leaves_no_block_behind(tmp_path):
    model, ids = made("llama"), models.prompt(40)
    for run in range(2):
        with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
            pool = pool_for(model, **BLOCKS, tiers=[disk])
            if run:
                real = pool._offload

                class Interrupted:
                    def __getattr__(self, name):
                        return getattr(real, name)

                    def wait(self):
                        raise KeyboardInterrupt

                pool._offload = Interrupted()
                with pytest.raises(KeyboardInterrupt):
                    hf.PagedCache(model, pool, prompt_ids=ids)
                pool._offload = real
                assert pool.num_held == 0
                assert pool.manager.num_sequences == 0
            assert hits(model, pool, ids) == 32 * run
            pool.close()


def test_caches_in_threads_share_a_disk(tmp_path):
    model = made("llama")
    prompts = [models.prompt(40, seed) for seed in range(4)]
    expected = [compute(model, pool_for(model), ids) for ids in prompts]
    for _ in range(2):
        with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
            pool = pool_for(model, **BLOCKS, tiers=[disk])
            wrong = []

            def work(number):
                twin = copy.deepcopy(model)
                with torch.no_grad():
                    for _ in range(3):
                        with hf.PagedCache(twin, pool, prompt_ids=prompts[number]) as cache:
                            found = cache.cached_tokens
                            if found < 39:
                                twin(prompts[number][:, found:-1], past_key_values=cache)
                            out = twin(prompts[number][:, -1:], past_key_values=cache).logits
                        if not torch.allclose(out, expected[number], atol=1e-4):
                            wrong.append(number)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not wrong
            pool.manager.check_invariants()
            assert not pool.close()


def test_weights_that_were_written_to_unseen_give_a_tier_no_more(tmp_path):
    model, ids = made("llama"), models.prompt(40)
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        model.get_decoder().layers[1].mlp.up_proj.weight.data.view(-1)[1::2].mul_(1.5)
        warm(model, pool, ids)
        with pytest.raises(RuntimeError, match="leaves no trace"):
            pool.close()
        assert pool.offload.closed
        assert disk.stats().stored == 0  # and none before
        assert hits(model, pool, ids) == 0  # nor does the pool itself find it
        assert pool.close() is None


def polled(pool, times=50):
    """As forwards and waiting programs do, without a look at the weights."""
    for _ in range(times):
        with pool.locked():
            pool.offload.poll()


def test_nothing_reaches_a_tier_before_its_weights_were_looked_at_again(tmp_path):
    model, ids = made("llama"), models.prompt(40)
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        warm(model, pool, ids)
        polled(pool)
        assert (disk.stats().stored, pool.offload.counters().stores) == (0, 0)
        pool.poll()
        assert pool.offload.drain(5) == (False, 0, 0, 0) and disk.stats().stored == 2
        warm(model, pool, models.prompt(40, 1))
        polled(pool)
        assert disk.stats().stored == 2
        model.get_decoder().layers[1].mlp.up_proj.weight.data.view(-1)[1::2].mul_(1.5)
        with pytest.raises(RuntimeError, match="leaves no trace"):
            pool.poll()
        assert pool.offload.closed and disk.stats().stored == 2


def test_a_quarter_of_the_blocks_waits_for_no_close(tmp_path):
    """A process that is killed has lost no more, and what is stored has room to wait."""
    model = made("llama")
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        for seed in range(10):  # of three blocks, a partial one with them: the sixth is looked at
            warm(model, pool, models.prompt(40, seed))
        assert pool.offload.drain(60) == (False, 0, 0, 0) and disk.stats().stored == 12
        model.get_decoder().layers[1].mlp.up_proj.weight.data.view(-1)[1::2].mul_(1.5)
        with pytest.raises(RuntimeError, match="leaves no trace"):
            for seed in range(10, 24):
                warm(model, pool, models.prompt(40, seed))
        assert disk.stats().stored == 12 and pool.offload.closed


def test_weights_that_the_caller_names_are_not_waited_for(tmp_path):
    model = made("llama")
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk], weights="revision 7")
        warm(model, pool, models.prompt(40))
        warm(model, pool, models.prompt(40, 1))
        assert pool.offload.drain(60) == (False, 0, 0, 0) and disk.stats().stored >= 2


def test_what_a_changed_model_computed_before_is_not_stored(tmp_path):
    """An earlier write may have left no trace, and it is too late to look."""
    model, ids = made("llama"), models.prompt(40)
    weight = model.get_decoder().layers[1].mlp.up_proj.weight
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        weight.data.view(-1)[1::2].mul_(1.5)  # unseen
        warm(model, pool, ids)
        with torch.no_grad():
            weight.mul_(2)
        warm(model, pool, models.prompt(40, 1))
        assert not pool.close()
        assert disk.stats().stored == 2  # of the model as it is now


def test_each_model_of_a_pool_is_looked_at(tmp_path):
    model, ids = made("llama"), models.prompt(40)
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        twin = copy.deepcopy(model)
        warm(twin, pool, ids)
        twin.get_decoder().layers[1].mlp.up_proj.weight.data.view(-1)[1::2].mul_(1.5)
        del twin  # the pool has it
        gc.collect()
        with pytest.raises(RuntimeError, match="leaves no trace"):
            pool.close()
        assert disk.stats().stored == 0


def up_proj(model) -> torch.nn.Parameter:
    return model.get_decoder().layers[1].mlp.up_proj.weight


def write_unseen(model) -> None:
    up_proj(model).data.view(-1)[1::2].mul_(1.5)


def meanwhile(monkeypatch, act) -> list[torch.nn.Module]:
    """Calls act(model) in each digest of weights from now on. Returns the models of those that ended, a list that grows."""
    real, ended = _durable.weights_digest, []

    def digest(model):
        act(model)
        digest = real(model)
        ended.append(model)
        return digest

    monkeypatch.setattr(_durable, "weights_digest", digest)
    return ended


def test_a_look_at_the_weights_that_was_interrupted_is_taken_again(tmp_path, monkeypatch):
    model = made("llama")
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        write_unseen(model)
        warm(model, pool, models.prompt(40))

        def interrupt(model):
            raise KeyboardInterrupt

        with monkeypatch.context() as during:
            meanwhile(during, interrupt)
            for look in (pool.poll, pool.close):
                with pytest.raises(KeyboardInterrupt):
                    look()
                polled(pool)
        assert not pool.offload.closed
        with pytest.raises(RuntimeError, match="leaves no trace"):
            pool.poll()
        assert disk.stats().stored == 0


def test_an_interrupt_before_lost_prompts_are_forgotten_stores_none_of_them(tmp_path):
    model = made("llama")
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        write_unseen(model)
        warm(model, pool, models.prompt(40))
        up_proj(model).mul_(2)
        real = pool._offload

        class Interrupted:
            def __getattr__(self, name):
                return getattr(real, name)

            def forget(self, root):
                raise KeyboardInterrupt

        pool._offload = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            pool.poll()
        pool._offload = real
        pool.poll()
        assert not pool.close()
        assert disk.stats().stored == 0


def test_what_was_looked_at_stays_when_its_model_changes_under_an_open_cache(tmp_path):
    model, ids = made("llama"), models.prompt(40)
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        with hf.PagedCache(model, pool, prompt_ids=ids) as idle:
            generate(model, ids, idle, max_new_tokens=1)
            pool.poll()
            up_proj(model).mul_(2)
            warm(model, pool, models.prompt(40, 1))
            pool.poll()
            up_proj(model).div_(2)  # the bytes of before
            assert hits(model, pool, ids) == 32
        assert not pool.close()
        again = pool_for(model, **BLOCKS, tiers=[disk])
        assert hits(model, again, ids) == 32
        again.close()


@pytest.mark.parametrize("made_first", [True, False])
def test_what_a_cache_computes_behind_a_look_waits_for_the_next(tmp_path, monkeypatch, made_first):
    """It was made before the look, or by another thread during it."""
    model = made("llama")
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        caches = [hf.PagedCache(model, pool)] if made_first else []
        warm(model, pool, models.prompt(40))
        thread = threading.Thread(target=lambda: caches.append(hf.PagedCache(model, pool)))

        def during(model):
            if not made_first:
                thread.start()
                thread.join(0.5)  # it may wait for the look to end

        with monkeypatch.context() as patched:
            meanwhile(patched, during)
            pool.poll()
        if not made_first:
            thread.join()
        with caches[0] as cache:
            ids = models.prompt(40, 1)
            generate(model, ids, cache, max_new_tokens=1)
            cache.publish(ids)
        assert pool.offload.drain(60) == (False, 0, 0, 0) and disk.stats().stored == 2
        write_unseen(model)
        with pytest.raises(RuntimeError, match="leaves no trace"):
            pool.poll()
        assert disk.stats().stored == 2


@pytest.mark.parametrize("end", ["close", "refused", "closed below"])
def test_a_pool_that_was_closed_keeps_no_model_alive(tmp_path, end):
    model, ids = made("llama"), models.prompt(40)
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            generate(model, ids, cache, max_new_tokens=1)
            if end == "refused":
                write_unseen(model)
                with pytest.raises(RuntimeError, match="leaves no trace"):
                    pool.poll()
            elif end == "closed below":
                pool.offload.close(0.0)
            if end != "refused":
                pool.close()
        gone = weakref.ref(model)
        del model, cache
        gc.collect()
        assert gone() is None and pool.num_held == 0


def test_what_tiers_bring_back_needs_no_look_at_the_weights(tmp_path, monkeypatch):
    """Twelve prompts of two blocks each are more than a quarter of the blocks, and their twelve ends are less."""
    model = made("llama")
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        for seed in range(12):
            warm(model, pool, models.prompt(40, seed))
        assert not pool.close()
        stored = disk.stats().stored
        assert stored == 24
        again = pool_for(model, **BLOCKS, tiers=[disk])
        digests = meanwhile(monkeypatch, lambda model: None)
        for seed in range(12):
            assert hits(model, again, models.prompt(40, seed)) == 32
        assert not digests
        again.poll()
        assert digests == [model]  # of the ends
        assert not again.close() and disk.stats().stored == stored


def test_a_pool_whose_model_is_gone_is_closed(tmp_path):
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(made("llama"), **BLOCKS, tiers=[disk])
        gc.collect()
        assert not pool.close()


def test_a_refused_file_gives_the_tiers_back(tmp_path):
    path = saved(tmp_path)
    kept = []
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        for text in (path.read_bytes(), b"no snapshot, whatever its length is" * 99):
            path.write_bytes(text)
            with pytest.raises((kvfolio.InvalidArgument, kvfolio.Corrupt)) as refused:
                hf.Pool.restore(path, made("llama", seed=1), tiers=[disk], **BLOCKS)
            kept.append(refused)  # with the frames, and the pool in them
        pool = pool_for(made("llama"), **BLOCKS, tiers=[disk])
        pool.close()


def test_what_a_tier_raises_leaves_the_cache_as_it_was(tmp_path):
    model, ids = made("llama"), models.prompt(40)
    with tiers.DiskTier(tmp_path / "tier", bytes=64 << 20) as disk:
        pool = pool_for(model, **BLOCKS, tiers=[disk])
        real, left = pool._offload, 0

        class Interrupted:
            def __getattr__(self, name):
                return getattr(real, name)

            def poll(self):
                nonlocal left
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
                return real.poll()

        pool._offload = Interrupted()
        ends = []
        for left in range(1, 20):
            with hf.PagedCache(model, pool) as cache:
                before, whole = left, True
                try:
                    model(ids[:, :8], past_key_values=cache)
                except KeyboardInterrupt:
                    whole = False
                ends.append(whole)
                at = cache.get_seq_length()
                assert at == (8 if whole else 0)  # who is told of an interrupt finds nothing done
                assert len(cache.token_ids[0] if at else ()) == at
                left = 0
                logits = logits_behind(model, cache, ids, at)
                assert torch.equal(logits, in_two_parts(model, ids, at))
            left = before
        left = 0
        assert ends.count(False) >= 2  # in front of each change of a forward
        assert pool.num_held == 0
        pool.close()
