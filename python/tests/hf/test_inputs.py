# SPDX-License-Identifier: Apache-2.0
"""What a forward is given beside its tokens: refused, or never found by others.

Each test ends with the request that would read what went wrong: it has the model's own text.
"""

from __future__ import annotations

import copy
import inspect

import models
import pytest
import torch
import transformers
from caches import NEW, generate, hits, pool_for, warm

from kvfolio import hf

SINCE_5 = not transformers.__version__.startswith("4.")
LENGTH = 20
hf.register()


def llama(attention: str | None = None):
    return models.shared("llama", attention=attention)


def cold(model, pool, ids) -> bool:
    """Nothing of this prompt is found, and its text is right."""
    return hits(model, pool, ids) == 0


# ---- another model ----


@pytest.mark.parametrize("way", ["forward", "generate", "fork", "second half", "after the prompt"])
def test_a_cache_in_a_forward_of_another_model_is_refused(way):
    model, other = llama(), models.make("llama", seed=5)
    hf.PagedCache(other, pool_for(other)).close()  # it had a cache once, so it is watched
    pool, ids = pool_for(model), models.prompt(LENGTH)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        if way in ("second half", "after the prompt"):
            model(ids[:, : 12 if way == "second half" else LENGTH], past_key_values=cache)
        held = cache.get_seq_length()
        used = copy.deepcopy(cache) if way == "fork" else cache
        with used, pytest.raises(ValueError, match="made for another model than the LlamaModel that runs"):
            if way == "generate":
                generate(other, ids, used)
            else:
                other(ids[:, held:] if held < LENGTH else ids[:, :1], past_key_values=used)
        if not used._core.closed:
            assert used.get_seq_length() == held
    assert hits(model, pool, ids) <= held


def test_a_model_that_never_had_a_cache_publishes_nothing_in_that_of_another():
    model, other = llama(), models.make("llama", seed=6)
    pool, ids = pool_for(model), models.prompt(LENGTH)
    text = torch.cat([ids, models.prompt(9, seed=2)], dim=1)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        with pytest.raises(RuntimeError, match="another model"):
            other(ids, past_key_values=cache)
        model(ids, past_key_values=cache)
        other(text[:, LENGTH:], past_key_values=cache)
        assert cache.publish(text) == [LENGTH]
    assert hits(model, pool, text) == LENGTH


def test_a_copy_of_a_model_is_another_model():
    model = models.make("llama")
    twin = copy.deepcopy(model)
    with hf.PagedCache(model, pool_for(model), prompt_ids=models.prompt(9)) as cache:
        with pytest.raises(ValueError, match="made for another model"):
            generate(copy.deepcopy(model), models.prompt(9), cache)
    assert hits(twin, pool_for(twin), models.prompt(9)) == 0


# ---- arguments by place ----


def by_place(decoder, *values):
    """Its arguments, the cache under the name that this release has."""
    names = list(inspect.signature(decoder.forward).parameters)
    assert names[:3] == ["input_ids", "attention_mask", "position_ids"]
    return decoder(*values)


def test_a_mask_given_by_place_is_read():
    model, ids = llama(), models.prompt(LENGTH)
    pool, mask = pool_for(model), torch.ones(1, LENGTH, dtype=torch.long)
    mask[0, :5] = 0
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        with pytest.raises(ValueError, match="padding that was not offered"):
            by_place(model.get_decoder(), ids, mask, None, cache)
    with hf.PagedCache(model, pool) as cache:
        by_place(model.get_decoder(), ids, mask, None, cache)
        with pytest.raises(RuntimeError, match="padding that was not offered"):
            cache.publish(ids)
    assert cold(model, pool, ids)


def test_positions_given_by_place_are_read():
    model, ids = llama(), models.prompt(LENGTH)
    pool, positions = pool_for(model), torch.arange(LENGTH)[None] + 7
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        with pytest.raises(ValueError, match="positions from 7 on, where the cache holds 0"):
            by_place(model.get_decoder(), ids, None, positions, cache)
    with hf.PagedCache(model, pool) as cache:
        by_place(model.get_decoder(), ids, None, positions, cache)
        with pytest.raises(RuntimeError, match="positions from 7 on"):
            cache.publish(ids)
    assert cold(model, pool, ids)


def test_embeddings_given_by_place_are_read():
    model, ids = llama(), models.prompt(LENGTH)
    pool, embeddings = pool_for(model), model.get_input_embeddings()(models.prompt(LENGTH, seed=3))
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        with pytest.raises(ValueError, match="embeddings"):
            by_place(model.get_decoder(), None, None, None, cache, embeddings)
    assert cold(model, pool, ids)


def test_everything_right_by_place_is_found():
    model, ids = llama(), models.prompt(LENGTH)
    pool = pool_for(model)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        by_place(model.get_decoder(), ids, torch.ones_like(ids), torch.arange(LENGTH)[None], cache)
    assert hits(model, pool, ids) == LENGTH - 1


# ---- masks ----


@pytest.mark.parametrize("offered", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "eager", "kvfolio"])
def test_a_mask_with_fewer_columns_than_there_are_keys_is_refused(attention, offered):
    model, ids = llama(attention), models.prompt(LENGTH)
    pool = pool_for(model)
    with hf.PagedCache(model, pool, prompt_ids=ids if offered else None) as cache:
        model(ids[:, :12], past_key_values=cache)
        with pytest.raises(ValueError, match=r"attention_mask is \[1, 8\] for 1 rows of 20 tokens, 12 held and 8"):
            model(ids[:, 12:], past_key_values=cache, attention_mask=torch.ones(1, 8, dtype=torch.long))
        model(ids[:, 12:], past_key_values=cache, attention_mask=torch.ones(1, LENGTH, dtype=torch.long))
    assert hits(model, pool, ids) == (LENGTH - 1 if offered else 0)


def test_a_mask_of_other_rows_is_refused():
    model, ids = llama(), models.prompt(LENGTH, batch=2)
    with hf.PagedCache(model, pool_for(model), prompt_ids=ids) as cache:
        with pytest.raises(ValueError, match=r"attention_mask is \[1, 20\] for 2 rows"):
            model(ids, past_key_values=cache, attention_mask=torch.ones(1, LENGTH, dtype=torch.long))


@pytest.mark.skipif(SINCE_5, reason="transformers 5 has no cache_position")
def test_a_cache_position_that_is_not_the_next_is_refused():
    model, ids = llama(), models.prompt(LENGTH)
    pool, positions = pool_for(model), torch.arange(LENGTH)[None]
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        with pytest.raises(ValueError, match="a cache_position from 0 on, where the cache holds 0"):
            model(ids, past_key_values=cache, position_ids=positions, cache_position=positions[0] * 2)
    assert cold(model, pool, ids)


# ---- keywords ----

CHANGING = {
    "is_causal": False,
    "softcap": 5.0,
    "s_aux": torch.full((4,), 3.0),
    "scaling": 0.1,
    "sliding_window": 4,
    "token_type_ids": torch.ones(1, LENGTH, dtype=torch.long),
    "cu_seq_lens_q": torch.tensor([0, 7, LENGTH], dtype=torch.int32),
    "position_bias": torch.ones(1, 4, LENGTH, LENGTH),
    "unheard_of": 1,
    "a_flag": False,
}


@pytest.mark.parametrize("attention", ["sdpa", "kvfolio"])
@pytest.mark.parametrize("keyword", CHANGING)
def test_a_keyword_that_may_change_keys_is_refused_by_its_name(keyword, attention):
    model, ids = llama(attention), models.prompt(LENGTH)
    pool = pool_for(model)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        with pytest.raises(ValueError, match=f"the decoder is fed {keyword}="):
            model(ids, past_key_values=cache, **{keyword: CHANGING[keyword]})
        assert cache.get_seq_length() == 0
    with hf.PagedCache(model, pool) as cache:
        try:
            model(ids, past_key_values=cache, **{keyword: CHANGING[keyword]})
        except (ValueError, TypeError, RuntimeError):
            pass  # attention itself does not take it
        with pytest.raises(RuntimeError, match=f"cannot publish: a forward was fed {keyword}="):
            cache.publish(ids)
    assert cold(model, pool, ids)


def test_a_keyword_in_one_forward_of_many_is_remembered():
    model, ids = llama(), models.prompt(LENGTH)
    pool = pool_for(model)
    with hf.PagedCache(model, pool) as cache:
        model(ids[:, :8], past_key_values=cache)
        model(ids[:, 8:14], past_key_values=cache, is_causal=False)
        model(ids[:, 14:], past_key_values=cache)
        with pytest.raises(RuntimeError, match="is_causal=False"):
            cache.publish(ids)
    assert cold(model, pool, ids)


@pytest.mark.parametrize("attention", ["eager", "sdpa", "kvfolio"])
def test_keywords_of_what_comes_out_are_taken(attention):
    """test_keywords.py compares the bits of the keys."""
    model, ids = llama(attention), models.prompt(LENGTH)
    pool = pool_for(model)
    outputs = dict(output_hidden_states=True, output_attentions=attention == "eager")
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        model(ids, past_key_values=cache, use_cache=True, return_dict=True, is_causal=None,
              num_items_in_batch=1, **outputs)
    assert hits(model, pool, ids) == LENGTH - 1


@pytest.mark.parametrize("keyword", ["is_causal", "position_bias", "cu_seq_lens_q", "unheard_of"])
def test_kvfolios_attention_refuses_what_it_does_not_do(keyword):
    model, ids = llama("kvfolio"), models.prompt(LENGTH)
    for cache in (None, transformers.DynamicCache()):
        with pytest.raises(ValueError, match=f"kvfolio's attention does not take {keyword}="):
            model(ids, past_key_values=cache, **{keyword: CHANGING[keyword]})


@pytest.mark.parametrize("sign", ["configuration", "module"])
def test_a_model_whose_tokens_read_later_ones_shares_no_prompt(sign):
    if sign == "configuration":
        config = copy.deepcopy(models.shared("gemma3").config)
        config.use_bidirectional_attention = True
        with pytest.raises(hf.UnsupportedModel, match="use_bidirectional_attention is True"):
            hf.Pool(config, blocks=8)
        return
    model = models.make("llama")
    pool, ids = pool_for(model), models.prompt(LENGTH)
    warm(model, pool, ids)
    for layer in model.get_decoder().layers:
        layer.self_attn.is_causal = False
    with pytest.raises(hf.UnsupportedModel, match="layers.0.self_attn is not causal"):
        hf.PagedCache(model, pool, prompt_ids=ids)


# ---- one cache for another text ----


@pytest.mark.parametrize("length", [LENGTH - 5, LENGTH, LENGTH + NEW - 1, LENGTH + NEW, 40])
@pytest.mark.parametrize("offered", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_cache_is_not_used_for_another_question(family, offered, length):
    model, ids = models.shared(family), models.prompt(LENGTH)
    pool = pool_for(model)
    other = models.prompt(length, seed=9)
    with hf.PagedCache(model, pool, prompt_ids=ids if offered else None) as cache:
        text = generate(model, ids, cache)
        held = cache.token_ids
        with pytest.raises(ValueError, match=f"holds {LENGTH + NEW - 1} tokens of another text: row 0 is given"):
            generate(model, other, cache)
        assert torch.equal(cache.token_ids, held)
        more = torch.cat([text, models.prompt(3, seed=4)], dim=1)
        assert torch.equal(generate(model, more, cache), generate(model, more, None))
    assert hits(model, pool, other) == 0


def test_what_a_hit_covers_is_compared_with_what_generate_gets():
    model, ids = llama(), models.prompt(40)
    pool, other = pool_for(model), models.prompt(40)
    warm(model, pool, ids)
    other[0, 3] = 1 + other[0, 3] % 90
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        assert cache.cached_tokens == 39
        with pytest.raises(ValueError, match="another text: row 0 is given token .* at position 3"):
            generate(model, other, cache)
        assert torch.equal(generate(model, ids, cache), generate(model, ids, None))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_positions_below_the_length_with_other_tokens_are_refused(family):
    model, ids = models.shared(family), models.prompt(LENGTH)
    pool = pool_for(model)
    with hf.PagedCache(model, pool) as cache:
        model(ids, past_key_values=cache)
        for start in (0, 15):
            again = models.prompt(9, seed=3)
            with pytest.raises(ValueError, match=f"row 0 is given token .* at position {start}, where it has"):
                model(again, past_key_values=cache, position_ids=start + torch.arange(9)[None])
        assert torch.equal(cache.token_ids, ids)
        assert cache.publish(ids) == [LENGTH]
    assert hits(model, pool, ids) > 0


def test_the_same_tokens_at_their_positions_are_computed_again():
    model, ids = llama(), models.prompt(LENGTH)
    longer = torch.cat([ids, models.prompt(5, seed=2)], dim=1)
    for start in (0, 6, LENGTH - 1):
        with hf.PagedCache(model, pool_for(model)) as cache:
            model(ids, past_key_values=cache)
            positions = torch.arange(start, longer.shape[1])[None]
            logits = model(longer[:, start:], past_key_values=cache, position_ids=positions).logits[:, -1]
            assert torch.equal(cache.token_ids, longer)
        expected = model(longer).logits[:, -1]
        assert (logits - expected).abs().max() <= 2e-5 * expected.abs().max()


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("new", [1, NEW])
def test_the_same_question_again_is_answered_or_refused(family, new):
    """The cache holds the question, and more: 5.x feeds a part of it, at positions below the length. A window
    may have moved past what that reads, and 4.57 fails with its own cache too."""
    model, ids = models.shared(family), models.prompt(LENGTH)
    pool = pool_for(model)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        generate(model, ids, cache, max_new_tokens=new)
        try:
            out = generate(model, ids, cache)
        except (RuntimeError, IndexError):
            assert not SINCE_5 or (family == "gemma3" and new == NEW)
        else:
            assert torch.equal(out, generate(model, ids, None))
    assert hits(model, pool, ids) >= 8


def test_a_padded_batch_is_not_used_for_another_question():
    model = llama()
    ids, mask = models.padded([9, 21])
    other, other_mask = models.padded([12, 40], seed=5)
    with hf.PagedCache(model, pool_for(model), prompt_ids=ids, attention_mask=mask) as cache:
        model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=4, do_sample=False)
        with pytest.raises(ValueError, match="another text"):
            model.generate(other, attention_mask=other_mask, past_key_values=cache, max_new_tokens=4)
