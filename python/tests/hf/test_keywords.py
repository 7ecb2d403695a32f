# SPDX-License-Identifier: Apache-2.0
"""The arguments that each release of transformers has, read from its code, and what kvfolio.hf makes of them."""

from __future__ import annotations

import pathlib

import arguments
import models
import pytest
import torch
import transformers
from caches import hits, pool_for

from kvfolio import hf
from kvfolio.hf import _keywords

TABLE = [line.split("\t") for line in (pathlib.Path(__file__).parent / "arguments.tsv").read_text().splitlines()
         if not line.startswith("#")]
KINDS = {name: kind for name, kind, _ in TABLE}
RELEASES = {release for _, _, releases in TABLE for release in releases.split()}


def test_each_argument_of_this_release_is_in_the_table():
    new = sorted(arguments.names() - KINDS.keys())
    assert not new, f"does one of these leave keys as they are? {new}"
    if transformers.__version__ in RELEASES:
        known = {name for name, _, releases in TABLE if transformers.__version__ in releases.split()}
        assert known == arguments.names()


def test_the_table_is_what_is_done():
    for name, kind in KINDS.items():
        assert (name in _keywords.COMPARED) == (kind == "compared")
        assert (name in _keywords.OUTPUT_ONLY) == (kind == "output")
        assert (name == _keywords.EAGER_OUTPUT) == (kind == "eager")
        assert (_keywords.changing({name: 7}, {}) is not None) == (kind in ("refused", "eager"))
    assert _keywords.COMPARED | _keywords.OUTPUT_ONLY <= KINDS.keys()


def named(model: str, attention: str):
    if model in models.FAMILIES:
        return models.shared(model, attention=attention)
    return models.other(model, attention)


#: Falcon, and in 4.57 Qwen2Moe, leave sdpa when weights of attention are asked for.
MODELS = [("llama", "eager"), ("gpt_oss", "eager"), ("Falcon", "eager"), ("Qwen2Moe", "eager"),
          ("llama", "sdpa"), ("Falcon", "sdpa"), ("Qwen2Moe", "sdpa")]


@pytest.mark.parametrize("name", sorted(_keywords.OUTPUT_ONLY | {_keywords.EAGER_OUTPUT}))
@pytest.mark.parametrize("family, attention", MODELS)
def test_what_is_taken_for_output_changes_no_bit_of_a_key(family, attention, name):
    model, ids = named(family, attention), models.prompt(20)
    value = {"labels": ids, "num_items_in_batch": 3, "logits_to_keep": 1}.get(name, True)
    if _keywords.changing({name: value}, {}, model.config) is not None:
        assert name == _keywords.EAGER_OUTPUT and attention == "sdpa"
        return
    keys = []
    for given in ({}, {name: value}):
        with hf.PagedCache(model.config, pool_for(model), namespace="bits") as cache:
            try:
                model.get_decoder()(ids, past_key_values=cache, **given)
            except TypeError as error:  # labels are the head's, and 4.57 knows no others here
                assert given and "unexpected keyword" in str(error)
                return
            keys.append(torch.stack([torch.stack([layer.keys, layer.values]) for layer in cache.layers[1::2]]))
    assert torch.equal(*keys)


@pytest.mark.parametrize("family, attention", MODELS)
def test_weights_of_attention_are_refused_where_attention_would_be_another_one(family, attention):
    model, ids = named(family, attention), models.prompt(20)
    pool, given = pool_for(model), {_keywords.EAGER_OUTPUT: True}
    if attention == "eager":
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            model(ids, past_key_values=cache, **given)
        assert hits(model, pool, ids) == 19
        return
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        with pytest.raises(ValueError, match='fed output_attentions=True, .* choose attn_implementation="eager"'):
            model.get_decoder()(ids, past_key_values=cache, **given)
    with hf.PagedCache(model, pool) as cache:
        model.get_decoder()(ids, past_key_values=cache, **given)
        with pytest.raises(RuntimeError, match="cannot publish: a forward was fed output_attentions=True"):
            cache.publish(ids)
    assert hits(model, pool, ids) == 0
    with hf.PagedCache(model, pool, prompt_ids=models.prompt(20, seed=3)) as cache:
        model(models.prompt(20, seed=3), past_key_values=cache, output_attentions=False)
    assert hits(model, pool, models.prompt(20, seed=3)) == 19


@pytest.mark.parametrize("name", models.OTHERS)
def test_what_generate_itself_gives_to_a_decoder_is_not_refused(name):
    model, ids = models.other(name), models.prompt(20)
    pool = pool_for(model)
    assert [hits(model, pool, ids), hits(model, pool, ids)] == [0, 19]


def test_an_argument_at_its_default_was_not_given():
    defaults = {"a_flag": True, "a_number": 0.5, "nothing": None}
    for given in ({"a_flag": True}, {"a_number": 0.5}, {"nothing": None}, {"unheard_of": None}):
        assert _keywords.changing(given, defaults) is None
    for given, text in (({"a_flag": False}, "a_flag=False"), ({"a_flag": 1}, "a_flag=1"),
                        ({"a_number": 0.25}, "a_number=0.25"), ({"nothing": 0}, "nothing=0"),
                        ({"x": torch.ones(2, 3)}, "x=<Tensor of [2, 3]>"), ({"x": "y" * 99}, "x=<str>")):
        assert _keywords.changing(given, defaults) == text
