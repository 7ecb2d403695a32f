# SPDX-License-Identifier: Apache-2.0
"""generate(): a cache for one call, from its prompt to its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._cache import PagedCache
from ._pool import Pool
from ._prompt import matrix, prompts_of


def generate(model: Any, pool: Pool, inputs: Any, *, attention_mask: Any = None,
             namespace: str | bytes | None = None, **options: Any) -> Any:
    """model.generate(inputs, **options) with a cache of the pool: what the pool has of the prompts is not
    computed again, and the text is findable afterwards. ``inputs``: ids [rows, tokens], or what a tokenizer
    returned. Returns what model.generate() returns.

    A way of generating whose keys belong to no plain prompt (positions of one's own) publishes no text.
    """
    for name in ("past_key_values", "inputs_embeds"):
        if name in options:
            raise TypeError(f"{name} is not for hf.generate(), which makes the cache for ids: call model.generate()")
    given = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
    types = given.pop("token_type_ids", None)
    ids, mask = prompts_of(None, given, attention_mask, types)
    ids = matrix(ids)
    with PagedCache(model, pool, prompt_ids=ids, attention_mask=mask, namespace=namespace) as cache:
        if mask is not None:
            options["attention_mask"] = matrix(mask).to(model.device)
        out = model.generate(ids.to(model.device), past_key_values=cache, **options)
        if cache.unpublishable is None:
            cache.publish(out)
        return out
