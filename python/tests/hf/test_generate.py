# SPDX-License-Identifier: Apache-2.0
"""hf.generate(), and what its prompts and texts may come as."""

from __future__ import annotations

import threading

import models
import numpy as np
import pytest
import torch
import transformers
from caches import NEW, generate, hits, pool_for
from fed import Fed, before

from kvfolio import hf


def options(**more):
    return dict(max_new_tokens=NEW, do_sample=False) | more


def test_generate_makes_publishes_and_closes_a_cache():
    model = models.shared("llama")
    pool = pool_for(model)
    ids = models.prompt(30)
    expected = generate(model, ids, None)
    assert torch.equal(hf.generate(model, pool, ids, **options()), expected)
    assert pool.num_held == 0
    with Fed(model) as fed:
        assert torch.equal(hf.generate(model, pool, ids, **options()), expected)
    assert fed.tokens == NEW
    follow = torch.cat([expected, models.prompt(3, seed=8)], dim=1)
    with hf.PagedCache(model, pool, prompt_ids=follow) as cache:
        assert cache.cached_tokens == 30 + NEW - 1


@pytest.mark.parametrize("way", [dict(num_beams=3), dict(do_sample=True, num_return_sequences=3),
                                 dict(return_dict_in_generate=True, output_logits=True)])
def test_generate_returns_what_the_model_returns(way):
    model = models.shared("llama")
    pool = pool_for(model)
    ids, mask = models.padded([9, 21])
    for _ in range(2):
        torch.manual_seed(1)
        mine = hf.generate(model, pool, dict(input_ids=ids, attention_mask=mask), **options(**way))
        torch.manual_seed(1)
        theirs = model.generate(ids, attention_mask=mask, **options(**way))
        if isinstance(theirs, torch.Tensor):
            assert torch.equal(mine, theirs)
        else:
            assert type(mine) is type(theirs) and torch.equal(mine.sequences, theirs.sequences)
    assert pool.num_held == 0


def test_generate_gives_all_that_comes_with_the_ids_to_the_model():
    model = models.shared("llama")
    pool, ids = pool_for(model), models.prompt(9)
    given = dict(input_ids=ids, attention_mask=torch.ones_like(ids), cross=None)
    assert torch.equal(hf.generate(model, pool, given, **options()), generate(model, ids, None))
    with pytest.raises(ValueError, match="pixel_values"):  # of transformers: this model has none
        hf.generate(model, pool, given | dict(pixel_values=torch.ones(1, 3, 4, 4)), **options())
    with pytest.raises(ValueError, match="positions from 7 on, where the cache holds 0"):
        hf.generate(model, pool_for(model), given | dict(position_ids=torch.arange(9)[None] + 7), **options())
    with pytest.raises(TypeError, match="max_new_tokens is given by name and with the inputs"):
        hf.generate(model, pool, given | dict(max_new_tokens=3), **options())
    for name in ("past_key_values", "inputs_embeds"):
        with pytest.raises(TypeError, match=f"{name} is not for hf.generate"):
            hf.generate(model, pool, given | {name: 1}, **options())


def test_generate_takes_no_cache_of_others():
    model = models.shared("llama")
    with pytest.raises(TypeError, match="past_key_values is not for hf.generate"):
        hf.generate(model, pool_for(model), models.prompt(9), past_key_values=transformers.DynamicCache())


@pytest.mark.parametrize("as_given", [
    lambda ids: ids, lambda ids: ids.int(), lambda ids: ids.numpy(), lambda ids: ids.tolist(), lambda ids: ids[0],
    lambda ids: ids[0].tolist(), lambda ids: np.array(ids[0], np.int32), lambda ids: [ids[0]],
    lambda ids: np.asfortranarray(ids.numpy()), lambda ids: dict(input_ids=ids),
    lambda ids: transformers.BatchEncoding(dict(input_ids=ids.tolist(), attention_mask=[[1] * 30])),
    lambda ids: transformers.BatchEncoding(dict(input_ids=ids[0].tolist(), token_type_ids=[0] * 30)),
])
def test_prompts_come_as_tokenizers_and_arrays_have_them(as_given):
    model = models.shared("llama")
    pool = pool_for(model)
    ids = models.prompt(30)
    for found in (0, 29):
        with hf.PagedCache(model, pool, prompt_ids=as_given(ids)) as cache:
            assert cache.cached_tokens == found
            generate(model, ids, cache)


def test_a_tokenizers_output_is_unpacked_into_a_cache():
    model = models.shared("llama")
    pool = pool_for(model)
    ids, mask = models.padded([9, 21])
    given = transformers.BatchEncoding(dict(input_ids=ids, attention_mask=mask))
    for found in (0, 20):
        with hf.PagedCache(model, pool, **given) as cache:
            assert cache.cached_tokens == found
            out = model.generate(**given, past_key_values=cache, return_dict_in_generate=True, **options())
            assert cache.publish(out) == [21 + NEW - 1] * 2


@pytest.mark.parametrize("wrong, message", [
    ("what is a cache?", "the ids are text, 'what is a cache.': tokens are needed, as of tokenizer"),
    (["what", "is"], "the ids are text"),
    (dict(ids=[1]), "a dict with ids; input_ids is needed"),
    ([[1, 2], [3]], "rows of ids have several lengths: pad them on the left"),
    ([1.5], "ids are torch.float64; integers are needed"),
    ([[]], r"ids of shape \(1, 0\)"),
    ([None], "ids are made of NoneType; integers are needed"),
    (dict(input_ids=[1, 2], position_ids=[3, 4], pixel_values=[1.0]), "come with position_ids, pixel_values, which"),
    (dict(input_ids=[1, 2], token_type_ids=[0, 1]), "token_type_ids are not all 0"),
])
def test_prompts_that_are_none_are_refused_by_what_they_are(wrong, message):
    model = models.shared("llama")
    with pytest.raises((TypeError, ValueError), match=message):
        hf.PagedCache(model, pool_for(model), prompt_ids=wrong)


def test_the_output_of_a_forward_is_no_text():
    model = models.shared("llama")
    ids = models.prompt(9)
    with hf.PagedCache(model, pool_for(model), prompt_ids=ids) as cache:
        out = model(ids, past_key_values=cache)
        with pytest.raises(TypeError, match="CausalLMOutputWithPast without sequences: publish"):
            cache.publish(out)
        with pytest.raises(ValueError, match="two names of one argument"):
            hf.PagedCache(model, pool_for(model), prompt_ids=ids, input_ids=ids)


def test_a_prompt_that_is_fed_again_is_no_hit():
    model, helper = models.shared("llama"), models.shared("llama", seed=3)
    pool = pool_for(model)
    ids = models.prompt(30)
    assert hits(model, pool, ids) == 0
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache, Fed(model) as fed:
        assert cache.cached_tokens == 29
        out = generate(model, ids, cache, assistant_model=helper)
    assert torch.equal(out, generate(model, ids, None))
    assert cache.cached_tokens == (0 if fed.tokens > 30 else 29)


def test_one_cache_in_two_threads_is_an_error_that_says_so():
    model = models.make("llama")
    cache = hf.PagedCache(model, pool_for(model))
    ids = models.prompt(9)

    def other(*_) -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    def run() -> None:
        with torch.no_grad():
            generate(model, ids, cache)

    with before(model.get_decoder().layers[2], other), pytest.raises(RuntimeError, match="another thread used this"):
        generate(model, ids, cache)
    cache.close()
