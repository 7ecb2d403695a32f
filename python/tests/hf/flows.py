# SPDX-License-Identifier: Apache-2.0
"""Ways of generating, each with the stock cache or with one of ours.

A flow is a function of (model, assistant, make_cache): make_cache(ids, mask) returns the cache of a
run, or None for the library's default. It returns tokens, and logits where the library gives them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import models
import torch
import transformers

LENGTH = 29
NEW = 12
MakeCache = Callable[..., Any]


@dataclasses.dataclass
class Result:
    tokens: torch.Tensor
    logits: torch.Tensor | None = None
    hits: int = 0


def _generate(model: Any, ids: torch.Tensor, cache: Any, mask: torch.Tensor | None = None,
              seed: int = 7, **arguments: Any) -> Result:
    torch.manual_seed(seed)
    arguments = dict(max_new_tokens=NEW, do_sample=False) | arguments
    if mask is None:
        mask = torch.ones_like(ids)
    out = model.generate(
        ids,
        attention_mask=mask,
        past_key_values=cache,
        return_dict_in_generate=True,
        output_logits=True,
        **arguments,
    )
    logits = torch.stack(out.logits) if out.logits else None
    return Result(out.sequences, logits, getattr(cache, "cached_tokens", 0))


def greedy(model: Any, assistant: Any, make_cache: MakeCache) -> Result:
    ids = models.prompt(LENGTH)
    return _generate(model, ids, make_cache(ids, None))


def padded(model: Any, assistant: Any, make_cache: MakeCache) -> Result:
    ids, mask = models.padded([17, LENGTH, 9])
    return _generate(model, ids, make_cache(ids, mask), mask)


def sampling(model: Any, assistant: Any, make_cache: MakeCache) -> Result:
    ids = models.prompt(LENGTH)
    return _generate(model, ids, make_cache(ids, None), do_sample=True, temperature=1.5)


def return_sequences(model: Any, assistant: Any, make_cache: MakeCache) -> Result:
    ids, mask = models.padded([21, LENGTH])
    return _generate(model, ids, make_cache(ids, mask), mask, do_sample=True, temperature=1.5,
                     num_return_sequences=3)


def beams(model: Any, assistant: Any, make_cache: MakeCache) -> Result:
    ids = models.prompt(LENGTH)
    return _generate(model, ids, make_cache(ids, None), num_beams=3, num_return_sequences=2)


def padded_beams(model: Any, assistant: Any, make_cache: MakeCache) -> Result:
    ids, mask = models.padded([21, LENGTH])
    return _generate(model, ids, make_cache(ids, mask), mask, num_beams=3)


def _repetitive() -> torch.Tensor:
    return torch.cat([models.prompt(9)] * 3, dim=1)


def prompt_lookup(model: Any, assistant: Any, make_cache: MakeCache) -> Result:
    ids = _repetitive()
    return _generate(model, ids, make_cache(ids, None), prompt_lookup_num_tokens=4,
                     eos_token_id=models.EOS)  # 4.57 needs one here


def assistant(model: Any, assistant: Any, make_cache: MakeCache) -> Result:
    ids = models.prompt(LENGTH)
    return _generate(model, ids, make_cache(ids, None), assistant_model=assistant)


def chunked(model: Any, assistant: Any, make_cache: MakeCache) -> Result:
    ids = models.prompt(LENGTH)
    return _generate(model, ids, make_cache(ids, None), prefill_chunk_size=5)


def second_turn(model: Any, assistant: Any, make_cache: MakeCache) -> Result:
    ids = models.prompt(LENGTH)
    cache = make_cache(ids, None) or transformers.DynamicCache(config=model.config)
    first = _generate(model, ids, cache)
    ids = torch.cat([first.tokens, models.prompt(11, seed=5)], dim=1)
    second = _generate(model, ids, cache)
    return Result(second.tokens, second.logits, first.hits)


FLOWS = {
    flow.__name__: flow
    for flow in (greedy, padded, sampling, return_sequences, beams, padded_beams, prompt_lookup,
                 assistant, chunked, second_turn)
}

#: Flows whose text is the greedy one: where the library fails on its own cache, this is right.
GREEDY = {"prompt_lookup", "assistant", "chunked"}


def reference(name: str, model: Any, assistant: Any) -> Result:
    """What the stock cache gives; the plain greedy text where the library refuses its own."""
    try:
        return FLOWS[name](model, assistant, lambda ids, mask: None)
    except (ValueError, RuntimeError):
        if name not in GREEDY:
            raise
        ids = _repetitive() if name == "prompt_lookup" else models.prompt(LENGTH)
        result = _generate(model, ids, None)
        return dataclasses.replace(result, logits=None)
