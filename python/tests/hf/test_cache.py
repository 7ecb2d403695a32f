# SPDX-License-Identifier: Apache-2.0
"""What a cache shares, forks, refuses and gives back."""

from __future__ import annotations

import copy
import gc
import weakref

import flows
import models
import pytest
import torch
import transformers
from caches import NEW, generate, pool_for, warm
from fed import Fed, before

import kvfolio
from kvfolio import hf

SINCE_5 = not transformers.__version__.startswith("4.")


# ---- hits ----


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_hit_is_not_computed_again_and_is_exact_to_the_token(family):
    model = models.shared(family)
    pool = pool_for(model)
    shared, tail = models.prompt(45), models.prompt(7, seed=2)
    warm(model, pool, shared)
    ids = torch.cat([shared[:, :39], tail], dim=1)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache, Fed(model) as fed:
        out = generate(model, ids, cache)
    assert torch.equal(out, generate(model, ids, None))
    if family in ("llama", "deepseek_v3"):
        assert cache.cached_tokens == 39
    else:  # a window may have let go of the block that this token reads
        assert cache.cached_tokens >= 32
    assert fed.tokens == ids.shape[1] - cache.cached_tokens + NEW - 1


def test_a_prompt_found_whole_computes_its_last_token_alone():
    model = models.shared("llama")
    pool = pool_for(model)
    ids = models.prompt(33)
    warm(model, pool, ids)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache, Fed(model) as fed:
        out = generate(model, ids, cache)
    assert (cache.cached_tokens, fed.tokens) == (32, NEW)
    assert torch.equal(out, generate(model, ids, None))


def test_a_batch_uses_the_shortest_hit_of_its_rows():
    model = models.shared("llama")
    pool = pool_for(model)
    ids, mask = models.padded([20, 31])
    warm(model, pool, ids[:1, 11:27])  # 16 of the first row's 20 tokens; it has 11 pads
    warm(model, pool, ids[1:, :19])
    with hf.PagedCache(model, pool, prompt_ids=ids, attention_mask=mask) as cache, Fed(model) as fed:
        out = model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=NEW,
                             do_sample=False)
    assert cache.cached_tokens == min(11 + 16, 19)
    assert fed.tokens == 2 * (31 - 19) + 2 * (NEW - 1)
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
@pytest.mark.parametrize("shared", [4, 11, 20])
def test_a_batch_whose_windows_have_moved_on_starts_anew_or_shorter(family, shared):
    model = models.shared(family)
    pool = pool_for(model)
    ids = models.prompt(33, seed=3, batch=2)
    ids[1, :shared] = ids[0, :shared]
    warm(model, pool, ids[:1])
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        out = generate(model, ids, cache)
    assert cache.cached_tokens <= shared
    assert torch.equal(out, generate(model, ids, None))
    assert pool.num_held == 0


@pytest.mark.parametrize("wrong", [lambda ids: ids.float(), lambda ids: ids + 2**40, lambda ids: -ids,
                                   lambda ids: ids > 3])
def test_offered_ids_are_never_converted(wrong):
    model = models.shared("llama")
    pool = pool_for(model)
    with pytest.raises((TypeError, ValueError), match="ids"):
        hf.PagedCache(model, pool, prompt_ids=wrong(models.prompt(9) + 1))
    assert pool.num_held == 0


def test_generated_text_is_found_after_publish_and_not_before():
    model = models.shared("llama")
    pool = pool_for(model)
    ids = models.prompt(21)
    cache = hf.PagedCache(model, pool, prompt_ids=ids)
    out = generate(model, ids, cache)
    follow = torch.cat([out, models.prompt(3, seed=8)], dim=1)
    with hf.PagedCache(model, pool, prompt_ids=follow) as early:
        assert early.cached_tokens <= 21
    assert cache.publish(out) == [21 + NEW - 1]  # the last token was never fed
    cache.close()
    with hf.PagedCache(model, pool, prompt_ids=follow) as late:
        assert late.cached_tokens == 21 + NEW - 1
        assert torch.equal(generate(model, follow, late), generate(model, follow, None))


def test_publish_finds_the_row_of_each_beam():
    model = models.shared("llama")
    pool = pool_for(model)
    ids = models.prompt(21)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        out = generate(model, ids, cache, num_beams=4, num_return_sequences=4)
        lengths = cache.publish(out)
    assert all(length > 21 for length in lengths)
    for row, length in zip(out, lengths):
        with hf.PagedCache(model, pool, prompt_ids=row) as again:
            assert again.cached_tokens >= length


def test_publish_refuses_what_the_model_was_not_fed():
    model = models.shared("llama")
    ids = models.prompt(21)
    with hf.PagedCache(model, pool_for(model), prompt_ids=ids) as cache:
        out = generate(model, ids, cache)
        assert cache.publish(torch.cat([out[:, :23], models.prompt(9, seed=4)], dim=1))[0] < 26
        with pytest.raises(ValueError, match="begins like no row"):
            cache.publish(models.prompt(30, seed=9))


def test_a_second_turn_computes_only_what_is_new():
    model = models.shared("gemma3")
    cache = hf.PagedCache(model, pool_for(model))
    ids = models.prompt(21)
    first = generate(model, ids, cache)
    ids = torch.cat([first, models.prompt(6, seed=3)], dim=1)
    with Fed(model) as fed:
        second = generate(model, ids, cache)
    assert fed.tokens == 1 + 6 + NEW - 1
    assert torch.equal(second, generate(model, ids, None))


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_second_turn_with_prompt_lookup_is_right(family):
    """The library feeds the whole text onto the filled cache here."""
    model = models.shared(family)
    ids = torch.cat([models.prompt(9)] * 3, dim=1)
    cache = hf.PagedCache(model, pool_for(model), prompt_ids=ids)
    first = generate(model, ids, cache)
    ids = torch.cat([first, models.prompt(9)], dim=1)
    out = generate(model, ids, cache, prompt_lookup_num_tokens=3, eos_token_id=models.EOS)
    assert torch.equal(out, generate(model, ids, None))


def test_a_deepcopy_is_a_fork():
    model = models.shared("mistral")
    pool = pool_for(model)
    ids = models.prompt(30)
    cache = hf.PagedCache(model, pool)
    generate(model, ids, cache, max_new_tokens=1)
    held, copied = pool.num_held, pool.manager.counters.block_copies
    twin = copy.deepcopy(cache)
    assert pool.num_held <= held and pool.manager.counters.block_copies == copied
    longer = [torch.cat([ids, models.prompt(5, seed=s)], dim=1) for s in (1, 2)]
    for each, text in zip((cache, twin), longer):
        assert torch.equal(generate(model, text, each), generate(model, text, None))
    cache.close()
    twin.close()
    assert pool.num_held == 0


def test_beams_copy_no_more_than_their_tail_blocks():
    model = models.shared("llama")
    pool = pool_for(model)
    ids = models.prompt(200)
    new = 64
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        out = generate(model, ids, cache, num_beams=4, max_new_tokens=new)
        assert pool.manager.counters.block_copies <= 4 * new
        held = pool.num_held
    assert torch.equal(out, generate(model, ids, None, num_beams=4, max_new_tokens=new))
    alone = -(-(200 + new) // 16)
    assert held <= 200 // 16 + 4 * (alone - 200 // 16) < 4 * alone


def test_samples_of_one_prompt_hold_it_once():
    model = models.shared("llama")
    pool = pool_for(model)
    ids = models.prompt(200)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        generate(model, ids, cache, do_sample=True, num_return_sequences=8)
        assert pool.num_held <= 200 // 16 + 8


def test_layers_show_their_keys_as_the_stock_cache_does():
    model = models.shared("gemma3")
    ids = models.prompt(21)
    mine, stock = hf.PagedCache(model, pool_for(model)), transformers.DynamicCache(config=model.config)
    for cache in (mine, stock):
        model(ids, past_key_values=cache)
        model(models.prompt(1, seed=3), past_key_values=cache)
    for own, other in zip(mine.layers, stock.layers):
        assert torch.equal(own.keys[:, :, -7:], other.keys[:, :, -7:])
        assert torch.equal(own.values[:, :, -7:], other.values[:, :, -7:])
        assert own.get_mask_sizes(3 if SINCE_5 else torch.arange(3)) == other.get_mask_sizes(
            3 if SINCE_5 else torch.arange(3)
        )
        assert own.get_seq_length() == other.get_seq_length() == 22


# ---- what is refused ----


def test_a_bare_configuration_needs_a_namespace():
    model = models.shared("llama")
    pool = pool_for(model)
    with pytest.raises(ValueError, match="says nothing of weights"):
        hf.PagedCache(model.config, pool, prompt_ids=models.prompt(9))
    ids = models.prompt(21)
    for hits in (0, 20):
        with hf.PagedCache(model.config, pool, prompt_ids=ids, namespace="weights of May") as cache:
            assert cache.cached_tokens == hits
            assert torch.equal(generate(model, ids, cache), generate(model, ids, None))
    with hf.PagedCache(model.config, pool, prompt_ids=ids, namespace="weights of June") as cache:
        assert cache.cached_tokens == 0


def test_a_prompt_that_is_not_the_one_fed_is_refused():
    model = models.shared("llama")
    pool = pool_for(model)
    ids, other = models.prompt(21), models.prompt(21)
    other[0, 17] = 1 + other[0, 17] % 90
    cache = hf.PagedCache(model, pool, prompt_ids=ids)
    with pytest.raises(ValueError, match="at position 17, where prompt_ids has"):
        generate(model, other, cache)
    cache.close()
    with hf.PagedCache(model, pool, prompt_ids=other) as again:
        assert again.cached_tokens == 0
    assert pool.num_held == 0


def test_the_whole_prompt_behind_a_hit_is_refused_with_its_cure():
    model, ids = models.shared("llama"), models.prompt(21)
    pool = pool_for(model)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        model(ids, past_key_values=cache)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        assert cache.cached_tokens == 20
        with pytest.raises(ValueError, match=r"21 tokens are fed behind the 20 of 21 .* feed ids\[:, cache.cached_tokens:\]"):
            model(ids, past_key_values=cache)
        model(ids[:, cache.cached_tokens :], past_key_values=cache)
        assert cache.get_seq_length() == 21


def test_a_pool_and_a_cache_say_what_they_hold():
    model = models.shared("llama")
    pool, ids = pool_for(model), models.prompt(20)
    blocks = pool.num_blocks
    assert repr(pool) == f"Pool(0 of {blocks} blocks held, 0 cached, {blocks} free)"
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        model(ids, past_key_values=cache)
        held = pool.num_held
        assert held > 0 and repr(pool) == f"Pool({held} of {blocks} blocks held, 0 cached, {blocks - held} free)"
        assert repr(cache) == "PagedCache(1 row of 20 tokens)"
    assert repr(pool) == f"Pool(0 of {blocks} blocks held, {held} cached, {blocks - held} free)"


def test_embeddings_cannot_be_offered_as_a_prompt():
    model = models.shared("llama")
    ids = models.prompt(21)
    with hf.PagedCache(model, pool_for(model), prompt_ids=ids) as cache:
        with pytest.raises(ValueError, match="embeddings"):
            model(inputs_embeds=model.get_input_embeddings()(ids), past_key_values=cache)


def test_another_model_than_the_caches_own_is_refused():
    model, other = models.shared("llama"), models.shared("llama", seed=5)
    ids = models.prompt(21)
    with hf.PagedCache(model, pool_for(model), prompt_ids=ids) as cache:
        with pytest.raises((RuntimeError, ValueError), match="another model"):
            generate(other, ids, cache)


def test_padding_that_was_not_offered_is_right_and_never_findable():
    model = models.shared("llama")
    pool = pool_for(model)
    ids, mask = models.padded([9, 21])
    cache = hf.PagedCache(model, pool)
    out = model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(out, expected)
    with pytest.raises(RuntimeError, match="padding that was not offered"):
        cache.publish(out)


def test_pads_offered_without_a_mask_are_refused_with_what_to_give():
    model = models.shared("llama")
    ids, _ = models.padded([9, 21])
    with hf.PagedCache(model, pool_for(model), prompt_ids=ids) as cache:
        with pytest.raises(ValueError, match="padding that was not offered .* makes one that hides all pad tokens"):
            model.generate(ids, past_key_values=cache, max_new_tokens=2)


def test_another_mask_than_the_offered_one_is_refused():
    model = models.shared("llama")
    ids, mask = models.padded([9, 21])
    cache = hf.PagedCache(model, pool_for(model), prompt_ids=ids, attention_mask=mask)
    with pytest.raises(ValueError, match="attention_mask|positions"):
        model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=2)
    with pytest.raises(ValueError, match="row 0 is not padded on the left alone: .* 0 at position 9"):
        hf.PagedCache(model, pool_for(model), prompt_ids=ids, attention_mask=mask.flip(1))


def test_a_row_that_ended_early_is_published_as_it_was_fed_and_its_pads_cannot_be_masked_later():
    model = models.shared("llama")
    pool = pool_for(model)
    ids, mask = models.padded([9, 12])
    probe = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
    cache = hf.PagedCache(model, pool, prompt_ids=ids, attention_mask=mask)
    out = model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=6,
                         do_sample=False, eos_token_id=int(probe[0, 13]))
    assert out[0, 14:].tolist() == [0] * 4
    assert torch.equal(cache.token_ids, out[:, :-1])
    assert cache.publish(out) == [17, 17]
    longer = torch.cat([out, models.prompt(3, seed=7, batch=2)], dim=1)
    real = torch.cat([mask, torch.ones(2, 9, dtype=torch.long)], dim=1)
    real[0, 14:18] = 0
    with pytest.raises(ValueError, match="masks position 14 of row 0, where the cache got 3 pads on the left"):
        model.generate(longer, attention_mask=real, past_key_values=cache, max_new_tokens=2)
    with pytest.raises(ValueError, match="row 0 is not padded .* 0 at position 14. Take away"):
        hf.PagedCache(model, pool, prompt_ids=longer, attention_mask=real)
    cache.close()
    row = longer[:1, 3:14]  # alone, from where its text ends
    with hf.PagedCache(model, pool, prompt_ids=row) as alone:
        assert alone.cached_tokens == 10
        assert torch.equal(generate(model, row, alone), generate(model, row, None))


def test_recurrent_and_chunked_layers_are_refused_by_name():
    tiny = dict(vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=1)
    lfm = transformers.Lfm2Config(**tiny, layer_types=["conv", "full_attention"])
    with pytest.raises(hf.UnsupportedModel, match="layer 0 of lfm2 is 'conv'"):
        hf.Pool(lfm, blocks=8)
    qwen = transformers.Qwen3NextConfig(**tiny, layer_types=["linear_attention", "full_attention"])
    with pytest.raises(hf.UnsupportedModel, match="layer 0 of qwen3_next is 'linear_attention'"):
        hf.Pool(qwen, blocks=8)
    llama4 = transformers.Llama4TextConfig(**tiny, layer_types=["chunked_attention", "full_attention"])
    with pytest.raises(hf.UnsupportedModel, match="'chunked_attention'"):
        hf.Pool(llama4, blocks=8)
    model = models.shared("llama")
    mamba = transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=97, hidden_size=32,
                                                                   num_hidden_layers=2))
    with pytest.raises(hf.UnsupportedModel):
        hf.PagedCache(mamba, pool_for(model))
    with pytest.raises(hf.UnsupportedModel, match="encoder"):
        hf.Pool(transformers.T5Config(vocab_size=97), blocks=8)


def test_rope_that_depends_on_the_length_shares_no_prompt():
    config = copy.deepcopy(models.shared("llama").config)
    rope = dict(rope_type="dynamic", factor=2.0, rope_theta=10000.0)
    if SINCE_5:
        config.rope_parameters = rope
    else:
        config.rope_scaling = rope
    model = transformers.LlamaForCausalLM(config).eval()
    with pytest.raises(hf.UnsupportedModel, match="'dynamic'"):
        hf.PagedCache(model, pool_for(model), prompt_ids=models.prompt(9))
    with hf.PagedCache(model, pool_for(model)) as cache:
        generate(model, models.prompt(9), cache)


def test_shapes_of_another_model_are_refused_with_numbers():
    model = models.shared("llama")
    pool = pool_for(model)
    warm(model, pool, models.prompt(9))
    config = copy.deepcopy(model.config)
    config.head_dim, config.num_key_value_heads = 8, 4
    other = transformers.LlamaForCausalLM(config).eval()
    with pytest.raises(ValueError, match="4 heads of 8 and 8 elements; the pool has 2 heads of 16"):
        generate(other, models.prompt(9), hf.PagedCache(other, pool))
    gc.collect()
    assert pool.num_held == 0
    with pytest.raises(ValueError, match="window of 8"):
        hf.PagedCache(models.shared("mistral"), pool)


def test_rows_that_do_not_fit_are_refused():
    model = models.shared("llama")
    cache = hf.PagedCache(model, pool_for(model))
    model(models.prompt(9, batch=2), past_key_values=cache)
    for batch in (1, 3):
        with pytest.raises(ValueError, match=f"{batch} rows on a cache of 2"):
            model(models.prompt(1, batch=batch), past_key_values=cache)
    model(models.prompt(1, batch=4), past_key_values=cache)  # each row goes on twice
    assert cache.layers[0].batch_size == 4


def test_a_closed_cache_and_a_copied_layer_are_refused():
    model = models.shared("llama")
    cache = hf.PagedCache(model, pool_for(model))
    with pytest.raises(TypeError, match="not a layer"):
        copy.deepcopy(cache.layers[0])
    with pytest.raises(TypeError, match="pickled"):
        cache.__reduce__()
    cache.close()
    cache.close()
    generated = hf.PagedCache(model, pool_for(model))
    generate(model, models.prompt(9), generated)
    generated.close()
    for closed in (cache, generated):
        for call in (
            lambda: model(models.prompt(9), past_key_values=closed),
            lambda: generate(model, models.prompt(9), closed),
            lambda: closed.layers[0].keys,
            lambda: closed.token_ids,
            closed.get_seq_length,
        ):
            with pytest.raises(RuntimeError, match="this cache is closed: make a new PagedCache"):
                call()


def test_layers_change_together():
    model = models.shared("llama")
    cache = hf.PagedCache(model, pool_for(model))
    model(models.prompt(9), past_key_values=cache)
    cache.layers[0].crop(-2 if SINCE_5 else 7)
    with pytest.raises(RuntimeError, match="layers of one cache change together"):
        cache.layers[1].crop(-3 if SINCE_5 else 6)
    with pytest.raises(RuntimeError, match="crop was called on some layers and not on 3 others"):
        model(models.prompt(1), past_key_values=cache)


def test_crop_is_that_of_the_release():
    model = models.shared("llama")
    cache = hf.PagedCache(model, pool_for(model))
    model(models.prompt(9), past_key_values=cache)
    cache.crop(-2)
    assert cache.get_seq_length() == 7
    if SINCE_5:
        with pytest.raises(ValueError, match="negative"):
            cache.crop(3)
        cache.reset()
    cache2 = hf.PagedCache(model, pool_for(model))
    model(models.prompt(9), past_key_values=cache2)
    cache2.crop(0)
    assert cache2.get_seq_length() == (9 if SINCE_5 else 0)
    if not SINCE_5:
        model(models.prompt(9), past_key_values=cache2)
        cache2.crop(5)
        assert cache2.get_seq_length() == 5


# ---- failures leave the pool whole ----


def test_a_pool_too_small_says_how_many_blocks_it_lacks():
    model = models.shared("llama")
    pool = pool_for(model, blocks=4)
    cache = hf.PagedCache(model, pool)
    ids = models.prompt(50)
    with pytest.raises(kvfolio.OutOfBlocks) as caught:
        generate(model, ids, cache, max_new_tokens=40)
    assert (caught.value.needed, caught.value.free) == (1, 0)
    assert cache.get_seq_length() == 64
    pool.manager.check_invariants()
    cache.close()
    assert pool.num_free == 4
    assert torch.equal(generate(model, ids, hf.PagedCache(model, pool)), generate(model, ids, None))


def test_a_pool_too_small_for_a_fork_gives_all_of_it_back():
    model = models.shared("llama")
    pool = pool_for(model, blocks=6)
    ids = models.prompt(60)
    cache = hf.PagedCache(model, pool, prompt_ids=ids)
    with pytest.raises(kvfolio.OutOfBlocks):
        generate(model, ids, cache, do_sample=True, num_return_sequences=4)
    pool.manager.check_invariants()
    cache.close()
    assert pool.num_free == 6


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_forward_that_died_midway_is_rolled_back_and_never_found(family):
    model = models.make(family)
    pool = pool_for(model)
    ids = models.prompt(40)
    cache = hf.PagedCache(model, pool, prompt_ids=ids)

    def die(*_):
        raise KeyboardInterrupt

    with before(model.get_decoder().layers[2], die), pytest.raises(KeyboardInterrupt):
        generate(model, ids, cache)
    with pytest.raises(RuntimeError, match="crop after a forward that stopped midway"):
        cache.crop(-1)
    cache.close()
    assert pool.num_held == 0
    pool.manager.check_invariants()
    with hf.PagedCache(model, pool, prompt_ids=ids) as again:
        assert again.cached_tokens == 0
        assert torch.equal(generate(model, ids, again), generate(model, ids, None))


def test_a_cache_goes_on_after_a_forward_that_died():
    model = models.make("gemma3")
    pool = pool_for(model)
    ids = models.prompt(40)
    cache = hf.PagedCache(model, pool)
    first = generate(model, ids, cache)
    more = torch.cat([first, models.prompt(9, seed=4)], dim=1)
    with before(model.get_decoder().layers[2], lambda *_: 1 / 0), pytest.raises(ZeroDivisionError):
        generate(model, more, cache)
    assert torch.equal(generate(model, more, cache), generate(model, more, None))


def test_a_cache_that_is_dropped_gives_its_blocks_back():
    model = models.shared("llama")
    pool = pool_for(model)
    cache = hf.PagedCache(model, pool)
    generate(model, models.prompt(40), cache)
    assert pool.num_held > 0
    del cache
    gc.collect()
    assert pool.num_held == 0
    assert pool.manager.num_sequences == 0


# ---- pools ----


@pytest.mark.parametrize("closed", [True, False])
def test_a_pool_is_gone_with_its_last_reference(closed):
    model = models.shared("llama")
    pool = pool_for(model)
    cache = hf.PagedCache(model, pool, prompt_ids=models.prompt(30))
    generate(model, models.prompt(30), cache)
    if closed:
        cache.close()
    alive = weakref.ref(pool)
    gc.collect()
    gc.disable()  # gigabytes must not wait for a collector that sees a few objects
    try:
        del cache, pool
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_budget_of_bytes_holds_for_what_the_model_hands_over(family):
    model = models.shared(family)
    pool = hf.Pool(model, memory="1MiB")
    with hf.PagedCache(model, pool) as cache:
        generate(model, models.prompt(20), cache)
        total = sum(group.num_blocks * store.shape.bytes_per_block
                    for own, group in enumerate(pool.groups) for store in pool.stores_of(own))
        assert pool.bytes_total == total + pool.manager.metadata_bytes
        assert (1 << 20) * 0.8 < pool.bytes_total <= 1 << 20
        assert 0 < pool.bytes_held < total


@pytest.mark.parametrize("memory", ["16MiB", "64MiB"])
def test_the_bookkeeping_is_part_of_the_budget(memory):
    model = models.shared("llama")
    pool = hf.Pool(model, memory=memory)
    assert pool.manager.metadata_bytes > 1 << 20
    assert 0.9 < pool.bytes_total / kvfolio._capacity.parse_bytes(memory) <= 1


@pytest.mark.parametrize("memory", ["1MiB", "4MiB", "8MiB"])
def test_small_blocks_and_more_memory_give_more_of_them(memory):
    model = models.shared("llama")
    wide, narrow = (hf.Pool(model, memory=memory, dtype=dtype) for dtype in ("f32", "bf16"))
    half = hf.Pool(model, memory=kvfolio._capacity.parse_bytes(memory) // 2, dtype="f32")
    assert narrow.num_blocks > wide.num_blocks > half.num_blocks


def test_a_budget_that_the_bookkeeping_alone_exceeds_is_refused_with_the_numbers():
    model = models.shared("llama")
    with pytest.raises(ValueError, match="memory is 1048576 bytes, of which the bookkeeping of 64 forwards .* of up to "
                                         r"1024 rows .* takes \d{8}, and one block of each group \d+"):
        hf.Pool(model, memory="1MiB", max_sequences=1024, max_forwards=64)


# ---- what layers handed over ----


def kept(cache) -> int:
    return len(cache._core._handed)


def test_the_cache_that_ran_last_alone_keeps_what_its_layers_handed_over():
    model = models.shared("llama")
    pool = pool_for(model)
    prompts = [models.prompt(20 + seed, seed=seed) for seed in range(2)]
    caches = [hf.PagedCache(model, pool, prompt_ids=ids) for ids in prompts]
    texts = prompts
    for _ in range(3):  # in turn
        for number, cache in enumerate(caches):
            texts[number] = generate(model, texts[number], cache, max_new_tokens=3)
            assert (kept(cache), kept(caches[1 - number])) == (4, 0)
    for cache, ids, text in zip(caches, prompts, texts):
        assert torch.equal(text, generate(model, text[:, :-9], None, max_new_tokens=9))
    caches[1].close()
    assert kept(caches[1]) == 0


def test_what_layers_handed_over_is_not_taken_for_the_keys_of_a_later_text_of_that_length():
    """After a crop to nothing, a whole prompt comes back from the first forward as it is."""
    model = models.shared("llama")
    with hf.PagedCache(model, pool_for(model)) as cache:
        first, second = models.prompt(21, seed=1), models.prompt(21, seed=2)
        model(first[:, :20], past_key_values=cache)
        model(first[:, 20:], past_key_values=cache)
        assert kept(cache) == 4
        cache.crop(-21)
        stock = transformers.DynamicCache()
        for part in (second, second[:, :1]):
            ours, theirs = (model(part, past_key_values=each).logits for each in (cache, stock))
            assert torch.equal(ours, theirs)
        length = cache.get_seq_length()
        for each in (cache, stock):
            each.crop(-2)
        ours, theirs = (model(first[:, :1], past_key_values=each).logits for each in (cache, stock))
        assert torch.equal(ours, theirs) and cache.get_seq_length() == length - 1


def test_a_pool_has_as_many_forwards_under_way_as_it_was_told():
    model = models.shared("llama")
    pool = pool_for(model, max_forwards=1)
    first, second = (hf.PagedCache(model.config, pool, namespace="forwards") for _ in range(2))
    keys = torch.zeros(1, 2, 3, 16)
    first.update(keys, keys, 0)
    with pytest.raises(kvfolio.FailedPrecondition):
        second.update(keys, keys, 0)
    for layer in range(1, 4):
        first.update(keys, keys, layer)
    second.update(keys, keys, 0)


def test_a_plan_of_a_narrower_type_than_the_models_is_refused():
    model = models.shared("llama")
    plan = kvfolio.plan(model.config, "1MiB", dtype="bf16")
    with pytest.raises(ValueError, match="4096 bytes a block, where 2048 were counted"):
        generate(model, models.prompt(9), hf.PagedCache(model, hf.Pool(plan)))
    with hf.PagedCache(model, hf.Pool(plan, dtype="bf16")) as cache:
        generate(model, models.prompt(9), cache)


def test_pools_refuse_unknown_arguments():
    model = models.shared("llama")
    for arguments, message in (
        (dict(), "memory="),
        (dict(memory="1MiB", blocks=4), "memory="),
        (dict(blocks=4, dtype="fp8"), "'fp8'"),
        (dict(blocks=4, data_plane="cuda"), "'cuda'"),
        (dict(memory=2e9), 'memory is 2000000000.0: an int of bytes, or words such as "2GiB"'),
        (dict(memory=4096), "4096|bytes"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            hf.Pool(model, **arguments)
