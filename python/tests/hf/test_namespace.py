# SPDX-License-Identifier: Apache-2.0
"""In what a prompt is found: the model as it is now, and nothing else."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import types
import weakref
from typing import Any, Callable, Iterator

import models
import pytest
import torch
import transformers
from caches import generate, hits, pool_for

import kvfolio
from kvfolio import _core, hf
from kvfolio.hf import _namespace

ALL = 29  # tokens of a prompt of 30 that can be found


# ---- weights, adapters and settings ----


def test_models_with_other_weights_share_nothing():
    pool = None
    ids = models.prompt(30)
    for seed in (0, 1):
        model = models.make("llama", seed=seed)
        pool = pool or pool_for(model)
        assert hits(model, pool, ids) == 0
        assert hits(model, pool, ids) == 29
    assert hits(models.make("llama"), pool, ids) == 0  # equal weights, another object


@pytest.mark.parametrize("change", ["in place", "through .data", "replaced", "dtype and back", "attention",
                                    "training", "rope"])
def test_a_changed_model_finds_nothing(change):
    model = models.make("llama")
    pool = pool_for(model)
    ids = models.prompt(30)
    assert hits(model, pool, ids) == 0
    assert hits(model, pool, ids) == 29
    weight = model.get_decoder().layers[1].mlp.up_proj.weight
    if change == "in place":
        weight[3, 5] += 1.0
    elif change == "through .data":
        weight.data *= 1.5
    elif change == "replaced":
        model.get_decoder().layers[1].mlp.up_proj.weight = torch.nn.Parameter(weight.clone())
    elif change == "dtype and back":
        model.to(torch.bfloat16).to(torch.float32)
    elif change == "attention":
        model.set_attn_implementation("eager")
    elif change == "training":
        model.train()
    elif change == "rope":
        model.get_decoder().rotary_emb.inv_freq.mul_(0.5)
    assert hits(model, pool, ids) == 0
    assert hits(model, pool, ids) == 29
    if change == "attention":
        model.set_attn_implementation("sdpa")
        assert hits(model, pool, ids) == 29  # what it was


def test_an_adapter_that_is_switched_finds_only_its_own():
    peft = pytest.importorskip("peft")
    base = models.make("llama")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(base, config).eval()
    pool = pool_for(base)
    ids = models.prompt(30)
    assert hits(model, pool, ids) == 0
    assert hits(model, pool, ids) == 29
    with model.disable_adapter():
        assert hits(model, pool, ids) == 0
        assert hits(model, pool, ids) == 29
    assert hits(model, pool, ids) == 29
    model.merge_adapter()
    assert hits(model, pool, ids) == 0


def test_weights_that_change_between_cache_and_forward_are_refused():
    model = models.make("llama")
    ids = models.prompt(30)
    cache = hf.PagedCache(model, pool_for(model), prompt_ids=ids)
    model.get_decoder().layers[0].mlp.up_proj.weight.mul_(1.1)
    with pytest.raises(RuntimeError, match="the model changed"):
        generate(model, ids, cache)


def test_a_namespace_separates_tenants():
    model = models.shared("llama")
    pool = pool_for(model)
    ids = models.prompt(30)
    assert hits(model, pool, ids, namespace="a") == 0
    assert hits(model, pool, ids, namespace="b") == 0
    assert hits(model, pool, ids) == 0
    assert hits(model, pool, ids, namespace="a") == 29
    pool.clear_prefixes()
    assert hits(model, pool, ids, namespace="a") == 0


# ---- changes that touch no parameter and no buffer ----
#
# Each is a context: the model is another one inside, and the same as before behind it.


def layer_of(model: Any) -> Any:
    return model.get_decoder().layers[1]


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    known = name in vars(owner) or name == "__class__"
    before = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if known or isinstance(before, torch.nn.Module):
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def entry(table: Any, key: Any, value: Any) -> Iterator[None]:
    before = table.get(key)
    table[key] = value
    try:
        yield
    finally:
        if before is None:
            del table[key]
        else:
            table[key] = before


@contextlib.contextmanager
def swapped(first: Any, second: Any) -> Iterator[None]:
    layers = [first[0], first[second]]
    first[0], first[second] = reversed(layers)
    yield
    first[0], first[second] = layers


@contextlib.contextmanager
def training(part: Any) -> Iterator[None]:
    part.train()
    yield
    part.eval()


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


class OtherNorm(torch.nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * self.weight


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: 2 * function(*arguments, **options)


class Doubled:
    """A method that is no function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return 2 * self.function(*arguments, **options)

    def __get__(self, module: Any, owner: Any) -> Any:
        return self if module is None else types.MethodType(self, module)


def other_attention(model: Any) -> Any:
    known = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    sdpa = known["sdpa"]
    return entry(known._global_mapping, "sdpa",
                 lambda *arguments, scaling=None, **options: sdpa(*arguments, scaling=0.1, **options))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a norm's epsilon": lambda m: replaced(layer_of(m).input_layernorm, "variance_epsilon", 0.5),
    "an activation": lambda m: replaced(layer_of(m).mlp, "act_fn", torch.nn.ReLU()),
    "a factor of the rotary embedding": lambda m: replaced(
        m.get_decoder().rotary_emb, "attention_scaling", 1.5),
    "a scale of attention": lambda m: replaced(layer_of(m).self_attn, "scaling", 0.1),
    "a value of the configuration": lambda m: replaced(m.config, "rms_norm_eps", 0.5),
    "a submodule": lambda m: replaced(layer_of(m), "mlp", torch.nn.Identity()),
    "the order of layers": lambda m: swapped(m.get_decoder().layers, 2),
    "a class of a module": lambda m: replaced(layer_of(m).input_layernorm, "__class__", OtherNorm),
    "training of one part": lambda m: training(layer_of(m).mlp),
    "a registered attention": other_attention,
    "a default type": lambda m: default_dtype(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_touches_no_weight_finds_nothing(change):
    model = models.make("llama")
    pool = pool_for(model)
    ids = models.prompt(30)
    assert (hits(model, pool, ids), hits(model, pool, ids)) == (0, ALL)
    with CHANGES[change](model):
        assert (hits(model, pool, ids), hits(model, pool, ids)) == (0, ALL)
    assert hits(model, pool, ids) == ALL  # it is what it was


def test_what_no_key_depends_on_is_no_change():
    model = models.make("llama")
    pool = pool_for(model)
    ids = models.prompt(30)
    assert hits(model, pool, ids) == 0
    model.config.eos_token_id = model.generation_config.eos_token_id = models.EOS
    model.config.output_hidden_states = True
    layer_of(model).notes = [object()]
    assert hits(model, pool, ids) == ALL


REPLACED: dict[str, Callable[[Any], Any]] = {
    "of an instance": lambda m: replaced(layer_of(m).mlp, "forward", doubled(layer_of(m).mlp.forward)),
    "bound again": lambda m: replaced(
        layer_of(m).input_layernorm, "forward",
        types.MethodType(OtherNorm.forward, layer_of(m).input_layernorm)),
    "of a class": lambda m: replaced(
        type(layer_of(m).mlp), "forward", doubled(type(layer_of(m).mlp).forward)),
    "of another module": lambda m: replaced(
        layer_of(m).input_layernorm, "forward", layer_of(m).post_attention_layernorm.forward),
    "a partial with another module": lambda m: replaced(
        layer_of(m).mlp, "forward", functools.partial(type(layer_of(m).mlp).forward, m.get_decoder().layers[0].mlp)),
    "a partial with a keyword": lambda m: replaced(
        layer_of(m).self_attn, "forward",
        functools.partial(type(layer_of(m).self_attn).forward, layer_of(m).self_attn, is_causal=False)),
    "an object in a class": lambda m: replaced(
        type(layer_of(m).mlp), "forward", Doubled(type(layer_of(m).mlp).forward)),
    "decorated by torch": lambda m: replaced(
        type(layer_of(m).mlp), "forward", torch.no_grad()(doubled(type(layer_of(m).mlp).forward))),
    "of torch": lambda m: replaced(torch.nn.Linear, "forward", doubled(torch.nn.Linear.forward)),
}


@pytest.mark.parametrize("change", REPLACED)
def test_a_replaced_forward_finds_and_publishes_nothing_without_a_namespace(change):
    model = models.make("llama")
    pool = pool_for(model)
    ids = models.prompt(30)
    assert (hits(model, pool, ids), hits(model, pool, ids)) == (0, ALL)
    with REPLACED[change](model):
        for _ in range(2):
            with pytest.warns(UserWarning, match="forward was replaced, .*nothing is found"):
                cache = hf.PagedCache(model, pool, prompt_ids=ids)
            out = generate(model, ids, cache)
            assert torch.equal(out, generate(model, ids, None))
            assert cache.cached_tokens == 0 and "forward was replaced" in cache.unshared
            assert cache.publish(out) == [0]
            cache.close()
        assert hits(model, pool, ids, namespace="doubled") == 0
        assert hits(model, pool, ids, namespace="doubled") == ALL
    assert hits(model, pool, ids) == ALL


def test_a_forward_that_is_replaced_behind_a_hit_raises_and_without_one_publishes_nothing():
    model = models.make("llama")
    pool = pool_for(model)
    ids, other = models.prompt(30), models.prompt(30, seed=4)
    assert hits(model, pool, ids) == 0
    found, cold = hf.PagedCache(model, pool, prompt_ids=ids), hf.PagedCache(model, pool, prompt_ids=other)
    with REPLACED["of an instance"](model):
        with pytest.raises(RuntimeError, match="mlp.forward was replaced, .* 29 tokens of the prompt were found"):
            generate(model, ids, found)
        assert torch.equal(generate(model, other, cold), generate(model, other, None))
    cold.close()
    found.close()
    assert hits(model, pool, other) == 0
    assert hits(model, pool, ids) == ALL


def test_a_class_of_ones_own_is_no_replaced_forward():
    class Scaled(torch.nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return 0.5 * self.inner(hidden)

    model = models.make("llama")
    layer_of(model).mlp = Scaled(layer_of(model).mlp)
    pool = pool_for(model)
    ids = models.prompt(30)
    assert (hits(model, pool, ids), hits(model, pool, ids)) == (0, ALL)


def test_dropout_at_work_is_refused():
    model = models.make("llama")
    layer_of(model).self_attn.attention_dropout = 0.1
    pool = pool_for(model)
    ids = models.prompt(30)
    assert (hits(model, pool, ids), hits(model, pool, ids)) == (0, ALL)
    model.train()
    with pytest.raises(hf.UnsupportedModel, match="layers.1.self_attn is in training mode .* = 0.1"):
        hf.PagedCache(model, pool, prompt_ids=ids)
    layer_of(model).self_attn.attention_dropout = 0.0
    layer_of(model).drop = torch.nn.Dropout(0.25)
    with pytest.raises(hf.UnsupportedModel, match="layers.1.drop is in training mode with p = 0.25"):
        hf.PagedCache(model, pool, prompt_ids=ids)


def test_a_change_that_was_undone_before_publish_is_remembered():
    model = models.make("llama")
    pool = pool_for(model)
    ids = models.prompt(30)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        first = generate(model, ids, cache, max_new_tokens=2)
        with CHANGES["a norm's epsilon"](model):
            out = generate(model, first, cache)
        with pytest.raises(RuntimeError, match="fed to a model that had changed .*variance_epsilon"):
            cache.publish(out)
    with hf.PagedCache(model, pool, prompt_ids=out) as later:
        assert later.cached_tokens <= ids.shape[1]


def test_the_exception_names_what_changed():
    model = models.make("llama")
    ids = models.prompt(30)
    with hf.PagedCache(model, pool_for(model), prompt_ids=ids) as cache:
        layer_of(model).mlp.act_fn = torch.nn.ReLU()
        with pytest.raises(RuntimeError, match=r"the model changed .*model.layers.1.mlp.act_fn"):
            generate(model, ids, cache)


# ---- what a model carries ----


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_model_that_stays_is_looked_at_once(family, monkeypatch):
    model = models.make(family)
    looks = []

    class Counted(_namespace.Known):
        def __init__(self, model: Any, lasting: bool) -> None:
            looks.append(model)
            super().__init__(model, lasting)

    monkeypatch.setattr(_namespace, "Known", Counted)
    pool = pool_for(model)
    for length in (30, 20, 30, 30):
        hits(model, pool, models.prompt(length))
    assert len(looks) == 1


def test_a_copy_of_a_model_is_another_model_and_can_be_stored():
    model = models.make("llama")
    pool = pool_for(model)
    ids = models.prompt(30)
    assert hits(model, pool, ids) == 0
    twin = copy.deepcopy(model)
    assert hits(twin, pool, ids) == 0
    assert hits(model, pool, ids) == ALL
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert hits(torch.load(file, weights_only=False), pool, ids) == 0


@pytest.mark.parametrize("patched", [False, True])
def test_a_model_is_gone_with_its_last_reference(patched):
    model = models.make("llama")
    if patched:
        model.forward = types.MethodType(type(model).forward, model)
    hits(model, pool_for(model), models.prompt(30))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_what_a_model_has_dropped_is_not_held():
    model = models.make("llama")
    hits(model, pool_for(model), models.prompt(30))
    weight, part = (weakref.ref(model.get_decoder().layers[2].mlp.up_proj.weight),
                    weakref.ref(model.get_decoder().layers[2].mlp))
    model.get_decoder().layers[2].mlp = torch.nn.Identity()
    gc.collect()
    assert weight() is None and part() is None


def test_a_tensor_that_is_gone_or_has_other_memory_is_not_looked_into() -> None:
    tensor = torch.arange(8.0)
    watch = _core.TensorWatch([weakref.ref(tensor)], torch.Tensor.data_ptr, [0, 2, 16, 4])
    assert watch.samples() == tensor[::4].numpy().tobytes()
    before = watch.states()
    tensor.add_(1)
    assert watch.states() != before and watch.samples() == tensor[::4].numpy().tobytes()
    tensor.data = torch.zeros(1)
    assert watch.samples() == b""
    del tensor
    assert watch.states() == watch.samples() == b""


@pytest.mark.parametrize(("references", "spots"), [([], [0, 1, 4, 4]), ([3], []), ([], [1, 2]), (None, [])])
def test_a_watch_of_tensors_refuses_what_is_none(references: Any, spots: Any) -> None:
    with pytest.raises((kvfolio.Error, TypeError, ValueError)):
        _core.TensorWatch(references, torch.Tensor.data_ptr, spots)
