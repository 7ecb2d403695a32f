# SPDX-License-Identifier: Apache-2.0
"""Every way of generating gives the stock cache's tokens, with and without a prefix found."""

from __future__ import annotations

import functools

import flows
import models
import pytest
import torch
import transformers

from kvfolio import hf

SINCE_5 = not transformers.__version__.startswith("4.")
PLANES = {
    # attention of the model, data plane of the pool
    "torch": (None, "torch"),
    "gather": (None, "auto"),
    "paged": ("kvfolio", "auto"),
}
#: Flows in which the library feeds all of the text onto the cache again: the hit is of no use, and is none.
FED_AGAIN = {"prompt_lookup", "assistant"} if SINCE_5 else {"chunked"}
hf.register()


@functools.lru_cache(maxsize=None)
def stock(family: str, dtype: torch.dtype, flow: str) -> flows.Result:
    return flows.reference(flow, models.shared(family, dtype), models.shared(family, dtype, seed=3))


def pool_for(model, plane: str, **arguments) -> hf.Pool:
    return hf.Pool(model, blocks=256, block_size=16, data_plane=PLANES[plane][1], **arguments)


def warm(model, pool: hf.Pool) -> None:
    """Leaves the beginning of every prompt of the flows in the pool."""
    prompts = [models.prompt(flows.LENGTH), flows._repetitive()]
    prompts += [row[None, pads:] for lengths in ([17, flows.LENGTH, 9], [21, flows.LENGTH])
                for row, pads in _rows(*models.padded(lengths))]
    for ids in prompts:
        begin = ids[:, : max(1, 2 * ids.shape[1] // 3)]
        with hf.PagedCache(model, pool, prompt_ids=begin) as cache:
            model.generate(begin, attention_mask=torch.ones_like(begin), max_new_tokens=1,
                           past_key_values=cache)


def _rows(ids, mask):
    return [(row, int((1 - m).sum())) for row, m in zip(ids, mask)]


@pytest.mark.parametrize("prefix", ["cold", "hit"])
@pytest.mark.parametrize("flow", flows.FLOWS)
@pytest.mark.parametrize("family", models.FAMILIES)
@pytest.mark.parametrize("plane", PLANES)
def test_tokens_equal_the_stock_caches(plane, family, flow, prefix):
    model = models.shared(family, attention=PLANES[plane][0])
    expected = stock(family, torch.float32, flow)
    pool = pool_for(model, plane)
    if prefix == "hit":
        warm(model, pool)
    caches = []

    def make_cache(ids, mask):
        caches.append(hf.PagedCache(model, pool, prompt_ids=ids, attention_mask=mask))
        return caches[-1]

    result = flows.FLOWS[flow](model, models.shared(family, seed=3), make_cache)
    assert torch.equal(result.tokens, expected.tokens)
    if prefix == "hit" and flow not in FED_AGAIN:
        assert result.hits >= 6
    else:
        assert result.hits == 0
    if expected.logits is not None and result.logits is not None:
        worst = (result.logits - expected.logits).abs().nan_to_num(0.0).max().item()
        assert worst <= 2e-5 * max(1.0, expected.logits.abs().max().item()), worst
        if plane != "paged" and prefix == "cold" and flow in ("greedy", "sampling", "padded", "second_turn"):
            assert torch.equal(result.logits, expected.logits)  # the same tensors went to the same attention
    for cache in caches:
        cache.close()
    assert pool.num_held == 0
    pool.manager.check_invariants()
