# SPDX-License-Identifier: Apache-2.0
"""A hook is an observer until it is seen acting; docs/huggingface.md has the table."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import unittest.mock
from typing import Any, Callable, Iterator

import models
import pytest
import torch
import transformers
from caches import NEW, generate, hits, pool_for, warm

from kvfolio import hf

ALL = 29  # tokens of a prompt of 30 that can be found
IDS = models.prompt(30)


def mlp_of(model: Any) -> Any:
    return model.get_decoder().layers[1].mlp


@contextlib.contextmanager
def registered(register: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[None]:
    handle = register(*arguments, **options)
    try:
        yield
    finally:
        handle.remove()


# ---- observers ----

SEEN: list[Any] = []


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, module: Any, *given: Any) -> None:
        self.calls += 1
        module.calls = self.calls


def watched_output(module: Any, given: Any, out: Any) -> Any:
    return (*out,) if isinstance(out, tuple) else out  # another tuple of the same tensors


OBSERVERS: dict[str, Callable[[Any], Any]] = {
    "recording": lambda m: registered(mlp_of(m).register_forward_hook, lambda part, given, out: SEEN.append(out)),
    "recording what comes in": lambda m: registered(
        m.get_decoder().layers[2].register_forward_pre_hook,
        lambda part, given, named: SEEN.append(given[0].clone()), with_kwargs=True),
    "counting": lambda m: registered(mlp_of(m).register_forward_hook, Counter()),
    "counting in front of the decoder": lambda m: registered(
        m.get_decoder().register_forward_pre_hook, Counter()),
    "of the attention, same tensors": lambda m: registered(
        m.get_decoder().layers[1].self_attn.register_forward_hook, watched_output),
    "of all modules": lambda m: registered(
        torch.nn.modules.module.register_module_forward_hook, lambda part, given, out: None),
    "a mock": lambda m: registered(mlp_of(m).register_forward_hook, unittest.mock.Mock(return_value=None)),
    "on the logits": lambda m: registered(m.lm_head.register_forward_hook, lambda part, given, out: out * 2),
    "behind the last keys": lambda m: registered(
        m.get_decoder().layers[3].mlp.register_forward_hook, lambda part, given, out: out * 1.1),
    "torch.profiler": lambda m: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("observer", OBSERVERS)
def test_an_observer_finds_what_is_found_without_it(observer, mode):
    model = models.make("llama")
    pool = pool_for(model)
    with mode(), OBSERVERS[observer](model):
        assert hits(model, pool, IDS) == 0
        assert hits(model, pool, IDS) == ALL
        cache = hf.PagedCache(model, pool, prompt_ids=IDS)
        out = generate(model, IDS, cache)
        assert cache.publish(out) == [30 + NEW - 1] and cache.unshared is None
    with mode():
        assert hits(model, pool, IDS) == ALL


@pytest.mark.parametrize("observer", OBSERVERS)
def test_an_observer_that_comes_between_cache_and_forward_changes_nothing(observer):
    model = models.make("llama")
    pool = pool_for(model)
    warm(model, pool, IDS)
    cache = hf.PagedCache(model, pool, prompt_ids=IDS)
    with OBSERVERS[observer](model):
        out = generate(model, IDS, cache)
        assert torch.equal(out, generate(model, IDS, None))
    assert (cache.cached_tokens, cache.publish(out)) == (ALL, [30 + NEW - 1])


def test_hidden_states_are_recorded_beside_a_hit():
    model = models.make("llama")
    pool = pool_for(model)
    warm(model, pool, IDS)
    with hf.PagedCache(model, pool, prompt_ids=IDS) as cache:
        out = generate(model, IDS, cache, output_hidden_states=True, return_dict_in_generate=True)
        assert len(out.hidden_states) == NEW and cache.cached_tokens == ALL
        assert cache.publish(out) == [30 + NEW - 1]
    assert hits(model, pool, IDS) == ALL


# ---- hooks that act ----

COEFFICIENT = 1.0


def steering(part: Any, given: Any, out: Any) -> Any:
    return out + COEFFICIENT


def steering_in_place(part: Any, given: Any, out: Any) -> None:
    out.add_(COEFFICIENT)


def steering_the_stream(part: Any, given: Any, out: Any) -> None:
    given[0].mul_(1.1)


def other_arguments(part: Any, given: Any, named: Any) -> Any:
    return ((given[0] * 1.1, *given[1:]), named)


def arguments_in_place(part: Any, given: Any) -> None:
    given[0].mul_(1.1)


class Ablation:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def hook(self, part: Any, given: Any, out: Any) -> Any:
        return out * self.factor


ACTING: dict[str, Callable[[Any], Any]] = {
    "another output": lambda m: registered(mlp_of(m).register_forward_hook, steering),
    "the output in place": lambda m: registered(mlp_of(m).register_forward_hook, steering_in_place),
    "what came in, in place": lambda m: registered(mlp_of(m).register_forward_hook, steering_the_stream),
    "other arguments": lambda m: registered(
        m.get_decoder().layers[1].register_forward_pre_hook, other_arguments, with_kwargs=True),
    "arguments in place": lambda m: registered(mlp_of(m).register_forward_pre_hook, arguments_in_place),
    "a method": lambda m: registered(mlp_of(m).register_forward_hook, Ablation(0.5).hook),
    "a partial": lambda m: registered(
        mlp_of(m).register_forward_hook, functools.partial(lambda part, given, out, by: out * by, by=0.5)),
    "a mock": lambda m: registered(
        mlp_of(m).register_forward_hook, unittest.mock.Mock(side_effect=lambda part, given, out: out * 1.1)),
    "of all modules": lambda m: registered(
        torch.nn.modules.module.register_module_forward_hook,
        lambda part, given, out: out * 1.1 if part is mlp_of(m) else None),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("hook", ACTING)
def test_a_hook_that_acts_finds_and_publishes_nothing(hook, mode):
    model = models.make("llama")
    pool = pool_for(model)
    with mode():
        assert hits(model, pool, IDS) == 0
        with ACTING[hook](model):
            with hf.PagedCache(model, pool, prompt_ids=IDS) as cache:
                assert cache.cached_tokens == ALL  # it may be an observer
                with pytest.raises(RuntimeError, match="changes what the model computes, and 29 tokens"):
                    generate(model, IDS, cache)
            with pytest.warns(UserWarning, match="the hook .* of .* changes what the model computes"):
                again = hf.PagedCache(model, pool, prompt_ids=IDS)
            out = generate(model, IDS, again)
            assert torch.equal(out, generate(model, IDS, None))
            assert (again.cached_tokens, again.publish(out)) == (0, [0])
            assert "changes what the model computes" in again.unshared
            again.close()
            assert hits(model, pool, IDS, namespace="mine") == 0
            assert hits(model, pool, IDS, namespace="mine") == ALL
        assert hits(model, pool, IDS) == ALL
        assert pool.num_held == 0
        pool.manager.check_invariants()


@pytest.mark.parametrize("hook", ACTING)
def test_the_first_forward_of_a_hook_that_acts_publishes_nothing(hook):
    model = models.make("llama")
    pool = pool_for(model)
    with ACTING[hook](model):
        with hf.PagedCache(model, pool, prompt_ids=IDS) as cache:
            out = generate(model, IDS, cache)
            assert torch.equal(out, generate(model, IDS, None))
            assert cache.publish(out) == [0] and cache.unshared is not None
    assert hits(model, pool, IDS) == 0


def test_a_coefficient_that_changes_is_never_served_from_the_pool():
    global COEFFICIENT
    model = models.make("llama")
    pool = pool_for(model)
    with registered(mlp_of(model).register_forward_hook, steering):
        for COEFFICIENT in (1.0, 3.0, 0.0):
            with hf.PagedCache(model, pool, prompt_ids=IDS) as cache:
                out = generate(model, IDS, cache)
                assert torch.equal(out, generate(model, IDS, None)) and cache.cached_tokens == 0
    COEFFICIENT = 1.0


def test_a_hook_that_is_registered_anew_is_known_by_its_code():
    """As steering libraries do it: a new closure for each request."""

    def steered(factor: float) -> Any:
        return registered(mlp_of(model).register_forward_hook, lambda part, given, out: out * factor)

    model = models.make("llama")
    pool = pool_for(model)
    warm(model, pool, IDS)
    with steered(0.5), hf.PagedCache(model, pool, prompt_ids=IDS) as cache, pytest.raises(RuntimeError):
        generate(model, IDS, cache)
    for factor in (0.5, 2.0):
        with steered(factor), hf.PagedCache(model, pool, prompt_ids=IDS) as cache:
            assert torch.equal(generate(model, IDS, cache), generate(model, IDS, None))
            assert cache.cached_tokens == 0
    assert hits(model, pool, IDS) == ALL
    other = pool_for(model)
    warm(model, other, IDS)
    with steered(0.5), hf.PagedCache(model, other, prompt_ids=IDS) as cache:
        assert cache.cached_tokens == ALL  # each pool sees for itself


def test_a_hook_that_acts_later_leaves_the_prompt_findable_and_its_text_not():
    model = models.make("llama")
    pool = pool_for(model)
    cache = hf.PagedCache(model, pool, prompt_ids=IDS)
    first = generate(model, IDS, cache, max_new_tokens=2)
    with registered(mlp_of(model).register_forward_hook, steering):
        out = generate(model, first, cache)
    assert cache.publish(out) == [30]
    cache.close()
    with hf.PagedCache(model, pool, prompt_ids=out) as later:
        assert later.cached_tokens == 30


def test_a_hook_behind_ours_on_a_decoder_that_is_called_itself_asks_for_another_call():
    model = models.make("llama")
    decoder = model.get_decoder()
    pool = pool_for(model)
    with hf.PagedCache(model, pool, prompt_ids=IDS) as cache:
        with registered(decoder.register_forward_pre_hook, Counter()):
            with pytest.raises(RuntimeError, match="the hook Counter was registered .*: call the model again"):
                decoder(IDS, past_key_values=cache)
            decoder(IDS, past_key_values=cache)
    assert hits(model, pool, IDS) == ALL


def died(model: Any, cache: Any) -> None:
    """A forward with this cache, up to its third layer."""

    def die(*given: Any) -> None:
        raise ZeroDivisionError

    with registered(model.get_decoder().layers[2].mlp.register_forward_hook, die):
        with pytest.raises(ZeroDivisionError):
            generate(model, IDS, cache)


def test_a_hook_that_acts_behind_a_forward_that_died_is_not_taken_for_one_of_it():
    model = models.make("llama")
    pool = pool_for(model)
    cache = hf.PagedCache(model, pool, prompt_ids=IDS)
    died(model, cache)
    with registered(mlp_of(model).register_forward_hook, steering):
        generate(model, IDS, None)
    assert not pool.acting
    out = generate(model, IDS, cache)
    assert cache.publish(out) == [30 + NEW - 1] and cache.unshared is None
    assert hits(model, pool, IDS) == ALL


def test_a_hook_of_all_modules_that_acts_in_another_model_is_none_of_a_forward_that_died():
    model, other = models.make("llama"), models.make("llama", seed=5)
    pool = pool_for(model)
    acts = []
    with registered(torch.nn.modules.module.register_module_forward_hook,
                    lambda part, given, out: out * 2 if part in acts else None):
        cache = hf.PagedCache(model, pool, prompt_ids=IDS)
        died(model, cache)
        acts.append(mlp_of(other))
        generate(other, IDS, None)  # it never had a cache of ours
        assert not pool.acting
        with hf.PagedCache(model, pool, prompt_ids=IDS) as next_one:
            out = generate(model, IDS, next_one)
            assert next_one.publish(out) == [30 + NEW - 1]


def test_a_forward_inside_of_a_hook_ends_no_watch():
    """The hook runs a model with a cache of its own, and one behind it acts."""
    model, other = models.make("llama"), models.make("llama", seed=5)
    pool, own = pool_for(model), pool_for(other)

    def consult(*given: Any) -> None:
        warm(other, own, IDS)

    with registered(model.get_decoder().layers[0].mlp.register_forward_hook, consult):
        with registered(mlp_of(model).register_forward_hook, steering):
            with hf.PagedCache(model, pool, prompt_ids=IDS) as cache:
                generate(model, IDS, cache, max_new_tokens=1)
                assert cache.unshared is not None and "steering" in cache.unshared
    assert not own.acting and hits(model, pool, IDS) == 0


def scaled_until_the_end(model: Any, places: Any) -> Any:
    """Hooks that set the scaling of an attention at one place, and take it back at the other."""
    attention = model.get_decoder().layers[2].self_attn
    first, last = places(model)
    known = attention.scaling

    def set_it(*given: Any) -> None:
        attention.scaling = 0.5

    def take_it_back(*given: Any) -> None:
        attention.scaling = known

    stack = contextlib.ExitStack()
    stack.enter_context(registered(first.register_forward_pre_hook, set_it))
    stack.enter_context(registered(last.register_forward_hook, take_it_back))
    return stack


PLACES: dict[str, Callable[[Any], Any]] = {
    "around the layers": lambda m: (m.get_decoder().layers[0], m.get_decoder().norm),
    "around its own module": lambda m: (m.get_decoder().layers[2].self_attn,) * 2,
}


@pytest.mark.parametrize("places", PLACES)
def test_a_hook_that_changes_the_model_and_takes_it_back_publishes_nothing(places):
    model = models.make("llama")
    pool = pool_for(model)
    other = models.prompt(30, seed=7)
    warm(model, pool, other)
    attention = model.get_decoder().layers[2].self_attn
    known = attention.scaling
    with scaled_until_the_end(model, PLACES[places]):
        with hf.PagedCache(model, pool, prompt_ids=other) as cache:
            assert cache.cached_tokens == ALL
            with pytest.raises(RuntimeError, match="29 tokens of the prompt were found"):
                generate(model, other, cache)
        attention.scaling = known  # the exception came before that was done
        with hf.PagedCache(model, pool, prompt_ids=IDS) as cache:
            out = generate(model, IDS, cache)
            assert torch.equal(out, generate(model, IDS, None))
            assert cache.publish(out) == [0] and cache.unshared is not None
    assert hits(model, pool, IDS) == 0
    assert hits(model, pool, other) == ALL


def test_hooks_stay_what_they_are_for_those_who_look_at_them():
    model = models.make("llama")
    counter = Counter()
    handle = mlp_of(model).register_forward_hook(counter)
    warm(model, pool_for(model), IDS)
    (found,) = mlp_of(model)._forward_hooks.values()
    assert found == counter and found.calls == counter.calls > 0
    twin = copy.deepcopy(model)
    (copied,) = mlp_of(twin)._forward_hooks.values()
    assert copied.calls == counter.calls and copied != counter
    file = io.BytesIO()
    torch.save(model, file)
    handle.remove()
    assert not mlp_of(model)._forward_hooks


# ---- the hooks of libraries ----


def test_hooks_of_accelerate_find_what_is_found_without_them():
    hooks = pytest.importorskip("accelerate.hooks")
    model = models.make("llama")
    pool = pool_for(model)
    assert hits(model, pool, IDS) == 0
    hook = hooks.AlignDevicesHook(execution_device="cpu", io_same_device=True)
    hooks.add_hook_to_module(model, hook)
    hooks.add_hook_to_module(mlp_of(model), hooks.AlignDevicesHook(execution_device="cpu"))
    # Moving a parameter to the device where it is makes another object of it.
    assert hits(model, pool, IDS) in (0, ALL)
    assert hits(model, pool, IDS) == ALL
    hooks.remove_hook_from_module(model, recurse=True)
    assert hits(model, pool, IDS) == ALL


def test_weights_that_accelerate_offloads_find_their_prompts():
    accelerate = pytest.importorskip("accelerate")
    model = models.make("llama")
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert mlp_of(model).up_proj.weight.is_meta
    pool = pool_for(model)
    assert hits(model, pool, IDS) == 0
    assert hits(model, pool, IDS) == ALL
    model._hf_hook.weights_map if hasattr(model, "_hf_hook") else None
    table = mlp_of(model).up_proj._hf_hook.weights_map.dataset
    name = next(name for name in table if name.endswith("layers.1.mlp.up_proj.weight"))
    table[name].mul_(1.5)
    assert hits(model, pool, IDS) == 0


def test_a_hook_of_ones_own_in_accelerates_clothes_is_a_replaced_forward():
    hooks = pytest.importorskip("accelerate.hooks")

    class Scaling(hooks.ModelHook):
        def post_forward(self, module: Any, output: Any) -> Any:
            return output * 0.5

    model = models.make("llama")
    hooks.add_hook_to_module(mlp_of(model), Scaling())
    with pytest.warns(UserWarning, match="layers.1.mlp.forward was replaced"):
        hf.PagedCache(model, pool_for(model), prompt_ids=IDS)


def test_adapters_that_are_switched_find_their_own_prompts():
    peft = pytest.importorskip("peft")
    base = models.make("llama")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(base, config, adapter_name="a").eval()
    model.add_adapter("b", config)
    pool = pool_for(base)
    for name in ("a", "b"):
        model.set_adapter(name)
        assert (hits(model, pool, IDS), hits(model, pool, IDS)) == (0, ALL)
    for name in ("a", "b"):
        model.set_adapter(name)
        assert hits(model, pool, IDS) == ALL
    scaling = base.get_decoder().layers[0].self_attn.q_proj.scaling
    scaling["b"] *= 2
    assert (hits(model, pool, IDS), hits(model, pool, IDS)) == (0, ALL)
    scaling["b"] /= 2
    assert hits(model, pool, IDS) == ALL


def test_adapters_chosen_by_row_are_seen_acting():
    peft = pytest.importorskip("peft")
    base = models.make("llama")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(base, config, adapter_name="a").eval()
    pool = pool_for(base)
    with hf.PagedCache(model, pool, prompt_ids=IDS) as cache:
        try:
            model(input_ids=IDS, past_key_values=cache, adapter_names=["__base__"])
        except (ValueError, TypeError) as refused:
            pytest.skip(f"this peft or our own check refuses it: {refused}")
        assert "changes what the model computes" in cache.unshared
    with hf.PagedCache(model, pool, prompt_ids=IDS) as later:
        assert later.cached_tokens == 0
