# SPDX-License-Identifier: Apache-2.0
"""Pools and runs that several files of tests need."""

from __future__ import annotations

import torch

from kvfolio import hf

NEW = 8


def pool_for(model, **arguments) -> hf.Pool:
    return hf.Pool(model, **(dict(blocks=256, block_size=16) | arguments))


def generate(model, ids, cache, **arguments):
    return model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache,
                          **(dict(max_new_tokens=NEW, do_sample=False) | arguments))


def warm(model, pool, ids) -> None:
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        generate(model, ids, cache, max_new_tokens=1)


def hits(model, pool, ids, **arguments) -> int:
    """Tokens of the prompt that were found. What comes out is what the model itself says."""
    with hf.PagedCache(model, pool, prompt_ids=ids, **arguments) as cache:
        assert torch.equal(generate(model, ids, cache), generate(model, ids, None))
        return cache.cached_tokens
