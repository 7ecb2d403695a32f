# SPDX-License-Identifier: Apache-2.0
"""Several threads generate over one pool."""

from __future__ import annotations

import dataclasses
import os
import threading

import models
import pytest
import torch
from fed import before

import kvfolio
from kvfolio import hf
from kvfolio.hf import _core

ROUNDS = int(os.environ.get("KVFOLIO_HF_ROUNDS", "200"))


@pytest.mark.parametrize("attention", ["sdpa", "kvfolio"])
def test_two_threads_with_a_shared_prompt_generate_as_if_alone(attention):
    hf.register()
    model = models.shared("llama", attention=attention)
    pool = hf.Pool(model, blocks=24, block_size=16)  # too small to keep every prompt
    shared = models.prompt(37)
    tails = [models.prompt(3, seed=seed) for seed in range(6)]
    prompts = [torch.cat([shared, tail], dim=1) for tail in tails]
    alone = [model.generate(ids, max_new_tokens=4, do_sample=False) for ids in prompts]
    wrong, hits = [], [0, 0]
    meet = threading.Barrier(2)

    def run(number: int) -> None:
        with torch.no_grad():
            meet.wait()
            for turn in range(ROUNDS):
                if turn % 10 == number:
                    pool.clear_prefixes()  # so that both compute the shared part at the same time again
                index = (turn * (number + 1)) % len(prompts)
                with hf.PagedCache(model, pool, prompt_ids=prompts[index]) as cache:
                    out = model.generate(prompts[index], max_new_tokens=4, do_sample=False,
                                         past_key_values=cache)
                    hits[number] += cache.cached_tokens > 0
                if not torch.equal(out, alone[index]):
                    wrong.append((number, turn))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert min(hits) > ROUNDS // 4
    assert pool.num_held == 0
    pool.manager.check_invariants()


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_prompt_is_not_found_before_its_last_layer_is_written(family):
    assert _found_in_the_middle(models.shared(family)) == 0


def test_names_in_stream_order_would_be_found_too_early(monkeypatch):
    """The mutant of the test above: it sees what it is there for."""
    make, take = kvfolio.Manager, _core.Core._take_step

    def take_and_name(core, rows, now):
        take(core, rows, now)
        core._name_prompt(dataclasses.replace(rows, length=now.end))

    monkeypatch.setattr(kvfolio, "Manager", lambda groups, **options: make(groups, **(options | IN_ORDER)))
    monkeypatch.setattr(_core.Core, "_take_step", take_and_name)
    assert _found_in_the_middle(models.shared("llama")) > 0


IN_ORDER = dict(order="in_order")


def _found_in_the_middle(model) -> int:
    """Tokens that another cache finds while a forward stands in front of its last layer."""
    pool = hf.Pool(model, blocks=64)
    ids = models.prompt(40)
    found = []

    def look(*_) -> None:
        if not found:
            found.append(-1)
            with hf.PagedCache(model, pool, prompt_ids=ids) as other:
                found.append(other.cached_tokens)

    with before(model.get_decoder().layers[3], look), hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        model.generate(ids, max_new_tokens=1, do_sample=False, past_key_values=cache)
    with hf.PagedCache(model, pool, prompt_ids=ids) as later:
        assert later.cached_tokens == 39
    return found[1]
