# SPDX-License-Identifier: Apache-2.0
"""Attention over blocks: narrow caches, padding, sinks, and what goes around the kernels."""

from __future__ import annotations

import contextlib

import flows
import models
import numpy as np
import pytest
import torch
import transformers

from kvfolio import hf
from kvfolio.hf import _attention

hf.register()
NEW = 8

#: docs/kernels.md: relative L2 error of a call against float64 over what the cache holds. Rounding of
#: the output to the model's type comes on top.
BOUNDS = {"f32": 2e-6, "f16": 2e-6, "bf16": 5e-3, "int8": 1.5e-2}
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def generate(model, ids, cache, mask=None, **arguments):
    mask = torch.ones_like(ids) if mask is None else mask
    return model.generate(ids, attention_mask=mask, past_key_values=cache,
                          **(dict(max_new_tokens=NEW, do_sample=False) | arguments))


def _float64(place, query, scale, sinks) -> torch.Tensor:
    """The same attention in float64, over what the cache holds now."""
    now = place.now
    keys, values = place.store.gather(now.spans(place.group, place.window), torch.float64)
    repeat = query.shape[1] // keys.shape[1]
    keys, values = (part.repeat_interleave(repeat, dim=1) for part in (keys, values))
    scores = query.double() @ keys.transpose(2, 3) * scale
    first = now.first_kept(place.window)
    at = torch.arange(first, now.end)[None, :]
    asks = torch.arange(now.start, now.end)[:, None]
    seen = (at <= asks) & (at > asks - (place.window or now.end + 1))
    seen = seen[None] & (at[None] >= torch.from_numpy(now.pads)[:, None, None])
    scores = scores.masked_fill(~seen[:, None], float("-inf"))
    if sinks is not None:
        column = sinks.double().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)[..., : keys.shape[2]]
    return (weights @ values).transpose(1, 2)


@contextlib.contextmanager
def errors_of_attention(monkeypatch):
    """Yields a list that gets the relative error of each call of the kernels."""
    found: list[float] = []
    inner = _attention.Place.attend

    def attend(place, query, scale, sinks, pads):
        out = inner(place, query, scale, sinks, pads)
        exact = _float64(place, query, scale, sinks)
        found.append(((out.double() - exact).norm() / exact.norm()).item())
        return out

    with monkeypatch.context() as patch:
        patch.setattr(_attention.Place, "attend", attend)
        yield found


def _logits(model, ids, cache, prompt: int) -> torch.Tensor:
    """Teacher forcing: the prompt at once, then token by token."""
    parts = [model(ids[:, :prompt], past_key_values=cache).logits[:, -1]]
    for place in range(prompt, ids.shape[1]):
        parts.append(model(ids[:, place : place + 1], past_key_values=cache).logits[:, -1])
    return torch.stack(parts, dim=1).float()


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("cache_dtype", ["f32", "bf16", "f16", "int8"])
def test_a_narrow_cache_stays_within_the_kernels_bounds(cache_dtype, family, monkeypatch):
    model = models.shared(family, attention="kvfolio", width=1.0)
    stock = models.shared(family, width=1.0)
    pool = hf.Pool(model, blocks=64, dtype=cache_dtype)
    ids = models.prompt(70)
    with hf.PagedCache(model, pool) as cache, errors_of_attention(monkeypatch) as errors:
        logits = _logits(model, ids, cache, prompt=23)
    assert len(errors) == 4 * (70 - 23 + 1)
    assert max(errors) <= BOUNDS[cache_dtype]
    expected = _logits(stock, ids, transformers.DynamicCache(config=stock.config), prompt=23)
    _compare_tokens(logits, expected)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_model_stays_within_the_kernels_bounds(dtype, family, monkeypatch):
    model = models.shared(family, dtype, attention="kvfolio", width=1.0)
    stock = models.shared(family, dtype, width=1.0)
    pool = hf.Pool(model, blocks=64)
    ids = models.prompt(70)
    with hf.PagedCache(model, pool) as cache, errors_of_attention(monkeypatch) as errors:
        logits = _logits(model, ids, cache, prompt=23)
    name = {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
    assert max(errors) <= BOUNDS[name] + ROUNDING[dtype]
    expected = _logits(stock, ids, transformers.DynamicCache(config=stock.config), prompt=23)
    _compare_tokens(logits, expected)


def _compare_tokens(logits: torch.Tensor, expected: torch.Tensor) -> None:
    """The token is equal wherever the two best logits of the stock cache differ by more than 2 %."""
    best = expected.topk(2, dim=-1)
    clear = (best.values[..., 0] - best.values[..., 1]) > 0.02 * best.values[..., 0].abs()
    print(f"{int(clear.sum())} of {clear.numel()} steps compared")
    assert 2 * int(clear.sum()) >= clear.numel()
    assert torch.equal(logits.argmax(-1)[clear], expected.argmax(-1)[clear])


@pytest.mark.parametrize("flow", flows.FLOWS)
def test_bf16_in_gather_mode_gives_the_stock_caches_tokens(flow):
    model, helper = models.shared("llama", torch.bfloat16), models.shared("llama", torch.bfloat16, seed=3)
    expected = flows.reference(flow, model, helper)
    pool = hf.Pool(model, blocks=256)

    def make_cache(ids, mask):
        return hf.PagedCache(model, pool, prompt_ids=ids, attention_mask=mask)

    assert torch.equal(flows.FLOWS[flow](model, helper, make_cache).tokens, expected.tokens)


def test_int8_in_gather_mode_reads_what_paged_mode_reads():
    ids = models.prompt(40)
    stored = []
    for attention, plane in (("sdpa", "auto"), ("sdpa", "torch"), ("kvfolio", "auto")):
        model = models.shared("llama", attention=attention, width=1.0)
        cache = hf.PagedCache(model, hf.Pool(model, blocks=16, dtype="int8", data_plane=plane))
        model(ids, past_key_values=cache)
        stored.append(cache.layers[0].keys)
    assert torch.equal(stored[0], stored[1]) and torch.equal(stored[0], stored[2])


def test_a_padded_batch_needs_no_offered_mask():
    model, stock = models.shared("gemma3", attention="kvfolio"), models.shared("gemma3")
    ids, mask = models.padded([9, 31, 17])
    cache = hf.PagedCache(model, hf.Pool(model, blocks=64))
    assert torch.equal(generate(model, ids, cache, mask), generate(stock, ids, None, mask))


def test_holes_in_a_mask_go_around_the_kernels():
    model, stock = models.shared("llama", attention="kvfolio"), models.shared("llama")
    ids = models.prompt(21)
    mask = torch.ones_like(ids)
    mask[0, 5:9] = 0
    cache = hf.PagedCache(model, hf.Pool(model, blocks=64))
    assert torch.equal(generate(model, ids, cache, mask), generate(stock, ids, None, mask))


def test_a_mask_of_four_dimensions_goes_around_the_kernels():
    model, stock = models.shared("llama", attention="kvfolio"), models.shared("llama")
    ids = models.prompt(12)
    full = torch.ones(1, 1, 12, 12, dtype=torch.bool).tril()
    full[..., 3] = False
    full[:, :, 3, 3] = True
    cache = hf.PagedCache(model, hf.Pool(model, blocks=64))
    mine = model(ids, attention_mask=full, past_key_values=cache).logits
    theirs = stock(ids, attention_mask=full, past_key_values=transformers.DynamicCache()).logits
    assert (mine - theirs).abs().max() <= 2e-5 * theirs.abs().max()


def test_a_soft_cap_goes_around_the_kernels():
    config = models.gemma2()
    torch.manual_seed(0)
    model = transformers.Gemma2ForCausalLM(config).eval()
    ids = models.prompt(21)
    model.set_attn_implementation("eager")
    expected = generate(model, ids, None)
    model.set_attn_implementation("kvfolio")
    with hf.PagedCache(model, hf.Pool(model, blocks=64), prompt_ids=ids) as cache:
        assert torch.equal(generate(model, ids, cache), expected)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_the_attention_is_right_with_other_caches_and_without_one(family):
    model, stock = models.shared(family, attention="kvfolio"), models.shared(family)
    ids, mask = models.padded([9, 31])
    expected = generate(stock, ids, None, mask)
    assert torch.equal(generate(model, ids, None, mask), expected)
    assert torch.equal(generate(model, ids, transformers.DynamicCache(), mask), expected)
    assert torch.equal(generate(model, ids, None, mask, use_cache=False), expected)


def test_two_threads_of_the_kernels_change_no_bit():
    model = models.shared("llama", attention="kvfolio")
    ids = models.prompt(300, batch=2)
    logits = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            cache = hf.PagedCache(model, hf.Pool(model, blocks=64))
            with pytest.MonkeyPatch.context() as patch:
                outs = []
                inner = _attention.Place.attend
                patch.setattr(_attention.Place, "attend",
                              lambda *a: outs.append(inner(*a).clone()) or outs[-1])
                model(ids, past_key_values=cache)
            logits.append(outs[0])
        finally:
            torch.set_num_threads(1)
    assert torch.equal(logits[0], logits[1])


def test_another_attention_over_paged_keys_is_refused():
    model = models.make("llama", attention="kvfolio")
    cache = hf.PagedCache(model, hf.Pool(model, blocks=64))
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="layer 0 was not attended to by kvfolio's attention"):
        model(models.prompt(9), past_key_values=cache)


def test_dropout_and_biases_are_refused():
    q = torch.zeros(1, 2, 1, 8)
    with pytest.raises(ValueError, match="dropout 0.1"):
        _attention.attention(torch.nn.Module(), q, q, q, None, dropout=0.1)
    with pytest.raises(ValueError, match="does not take position_bias="):
        _attention.attention(torch.nn.Module(), q, q, q, None, position_bias=q)


def test_the_torch_plane_attends_too():
    model, stock = models.shared("gpt_oss", attention="kvfolio"), models.shared("gpt_oss")
    ids, mask = models.padded([9, 31])
    pool = hf.Pool(model, blocks=64, data_plane="torch")
    with hf.PagedCache(model, pool, prompt_ids=ids, attention_mask=mask) as cache:
        assert torch.equal(generate(model, ids, cache, mask), generate(stock, ids, None, mask))


def test_sinks_are_merged_as_one_more_key():
    """s_aux through the kernels against the same in float64."""
    model = models.shared("gpt_oss", attention="kvfolio", width=1.0)
    layer = model.get_decoder().layers[1].self_attn
    assert layer.sinks.abs().max() > 0
    ids = models.prompt(40)
    cache = hf.PagedCache(model, hf.Pool(model, blocks=64))
    with pytest.MonkeyPatch.context() as patch, errors_of_attention(patch) as errors:
        model(ids, past_key_values=cache)
    assert len(errors) == 4 and max(errors) < 2e-6
    assert np.isfinite(errors).all()


@pytest.mark.parametrize("name", ["GPT2", "GPTBigCode"])
def test_a_module_may_say_itself_that_its_mask_decides_causality(name):
    model, ids = models.other(name), models.prompt(20)
    expected = generate(model, ids, None)
    model.set_attn_implementation("kvfolio")
    pool = hf.Pool(model, blocks=64)
    for found in (0, 19):
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            assert torch.equal(generate(model, ids, cache), expected)
            assert cache.cached_tokens == found


@pytest.mark.skipif(transformers.__version__.startswith("4."), reason="DiffLlama has attentions of its own in 4.57")
def test_a_model_that_changes_values_behind_the_cache_is_refused():
    model, ids = models.other("DiffLlama"), models.prompt(20)
    expected = generate(model, ids, None)
    with hf.PagedCache(model, hf.Pool(model, blocks=64), prompt_ids=ids) as cache:
        assert torch.equal(generate(model, ids, cache), expected)
    model.set_attn_implementation("kvfolio")
    pool = hf.Pool(model, blocks=64)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        with pytest.raises(ValueError, match='changes its keys or values behind the cache.*choose attn_impl'):
            generate(model, ids, cache)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        assert cache.cached_tokens == 0


# ---- layers that share keys ----

needs_gemma4 = pytest.mark.skipif("gemma4" not in models.FAMILIES, reason="this release has no Gemma 4")


@needs_gemma4
def test_the_last_query_alone_reads_blocks_in_layers_that_share_keys(monkeypatch):
    model = models.shared("gemma4", attention="kvfolio")
    found = []
    inner = _attention.Place.attend

    def attend(place, query, *rest):
        found.append((query.shape[2], place.now.count, place.store.shape.dim_k))
        return inner(place, query, *rest)

    monkeypatch.setattr(_attention.Place, "attend", attend)
    ids, mask = models.padded([9, 31])
    cache = hf.PagedCache(model, hf.Pool(model, blocks=64), prompt_ids=ids, attention_mask=mask)
    out = generate(model, ids, cache, mask, max_new_tokens=2)
    assert found == [(31, 31, 16), (31, 31, 32), (1, 31, 16), (1, 31, 32)] + [(1, 1, 16), (1, 1, 32)] * 2
    stock = models.shared("gemma4")
    assert torch.equal(out, generate(stock, ids, None, mask, max_new_tokens=2))


@pytest.mark.parametrize("attention", ["sdpa", "kvfolio"])
def test_gemma_3n_shares_keys_in_each_release(attention):
    config = models.gemma3n()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = models.prompt(29)
    expected = generate(model, ids, None)
    model.set_attn_implementation(attention)
    pool = hf.Pool(model, blocks=64)
    for found in (0, 28):
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            assert torch.equal(generate(model, ids, cache), expected)
            assert cache.cached_tokens == found


@needs_gemma4
def test_keys_are_not_handed_out_where_a_layer_has_the_new_ones_alone():
    ids = models.prompt(9)
    for attention in ("kvfolio", "sdpa"):
        model = models.shared("gemma4", attention=attention)
        with hf.PagedCache(model, hf.Pool(model, blocks=64), prompt_ids=ids) as cache:
            model(ids[:, :5], past_key_values=cache)
            if attention == "kvfolio":
                with pytest.raises(ValueError, match="return_shared_kv_states=True asks for the keys"):
                    model(ids[:, 5:], past_key_values=cache, return_shared_kv_states=True)
                continue
            shared = model(ids[:, 5:], past_key_values=cache, return_shared_kv_states=True).shared_kv_states
            assert shared["full_attention"][0].shape == (1, 2, 9, 32)


# ---- masks ----


def lazy(mask: torch.Tensor | None = None, queries: int = 4, keys: int = 9, **arguments) -> torch.Tensor:
    """What the mask function gives for the last queries of these keys."""
    if transformers.__version__.startswith("4."):
        places: dict = dict(cache_position=torch.arange(keys - queries, keys))
    else:
        places = dict(q_length=queries, q_offset=keys - queries)
    return _attention.mask(batch_size=2, kv_length=keys, kv_offset=0, attention_mask=mask, **places, **arguments)


def test_a_mask_is_what_it_would_be_to_all_who_read_it():
    padding = torch.ones(2, 9, dtype=torch.bool)
    padding[1, :6] = False
    made = lazy(padding)
    full = torch.ones(4, 9, dtype=torch.bool).tril(5)[None, None] & padding[:, None, None]
    assert isinstance(made, _attention.LazyMask)
    assert (made.shape, made.ndim, made.dtype, made.size(2)) == ((2, 1, 4, 9), 4, torch.bool, 4)
    assert torch.equal(made | False, full) and torch.equal(~made, ~full)
    assert torch.equal(torch.where(made, 1.0, 0.0), full.float())
    assert torch.equal(made[:, :, -1:, :] | False, full[:, :, -1:])
    assert torch.equal(made[:, :, 1:][:, :, 2:] | False, full[:, :, 3:])
    assert torch.equal(made[..., :3], full[..., :3]) and torch.equal(made[:, :, :2], full[:, :, :2])
    assert torch.equal(made[:, :, ::2], full[:, :, ::2]) and torch.equal(made[1:], full[1:])
    assert made.tolist() == full.tolist()


def test_a_mask_keeps_what_it_was_asked_for_only_while_the_last_queries_are_left():
    made = lazy()
    for kept, dropped in ((made, 0), (made[:, :, -1:, :], 3), (made[:, :, 1:], 1), (made[:, :, 0:, :], 0)):
        assert isinstance(kept, _attention.LazyMask) and kept._kvfolio.dropped == dropped
        assert kept.shape[2] == 4 - dropped
    for other in (made[:, :, :1], made[:1], made[..., 2:], made[:, :, [0]], made.clone(), made & made):
        assert not isinstance(other, _attention.LazyMask)


def test_backward_says_that_the_kernels_compute_no_gradients():
    model, ids = models.shared("llama", attention="kvfolio"), models.prompt(12)
    pool = hf.Pool(model, memory="8MiB", block_size=4)
    with torch.enable_grad(), hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        loss = model(ids, past_key_values=cache, labels=ids).loss
        assert torch.isfinite(loss)
        with pytest.raises(RuntimeError, match="computes no gradients: choose attn_implementation"):
            loss.backward()
