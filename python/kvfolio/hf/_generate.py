# SPDX-License-Identifier: Apache-2.0
"""generate(): a cache for one call, from its prompt to its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.generation import utils

from ._cache import PagedCache
from ._pool import Pool
from ._prompt import matrix, prompts_of, split

#: Releases from 5.24 on warn at the older name.
_CACHE = "cache" if "cache" in utils.ALL_CACHE_NAMES else "past_key_values"


def generate(model: Any, pool: Pool, inputs: Any, *, attention_mask: Any = None,
             namespace: str | bytes | None = None, **options: Any) -> Any:
    """model.generate(inputs, **options) with a cache of the pool: what the pool has of the prompts is not
    computed again, and the text is findable afterwards. ``inputs``: ids [rows, tokens], or what a tokenizer
    returned, of which all goes to model.generate(). Returns what that returns.

    A way of generating whose keys belong to no plain prompt (positions of one's own) publishes no text. Raises as
    PagedCache() and model.generate() do, and TypeError for an argument that makes another cache.
    """
    if isinstance(inputs, Mapping) and "input_ids" in inputs:
        inputs, more = split(inputs)
        twice = sorted(more.keys() & options.keys())
        if twice:
            raise TypeError(f"{', '.join(twice)} is given by name and with the inputs: give it once")
        options = more | options
    for name in ("past_key_values", "cache", "inputs_embeds"):
        if name in options:
            raise TypeError(f"{name} is not for hf.generate(), which makes the cache for ids: call model.generate()")
    ids, mask = prompts_of(None, inputs, attention_mask, None)
    ids = matrix(ids)
    with PagedCache(model, pool, prompt_ids=ids, attention_mask=mask, namespace=namespace) as cache:
        if mask is not None:
            options["attention_mask"] = matrix(mask).to(model.device)
        out = model.generate(ids.to(model.device), **{_CACHE: cache}, **options)
        if cache.unpublishable is None:
            cache.publish(out)
        return out
