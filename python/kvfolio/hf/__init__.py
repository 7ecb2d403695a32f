# SPDX-License-Identifier: Apache-2.0
"""Prefix reuse, forks and fast CPU decode for Hugging Face transformers.

>>> from kvfolio import hf                                            # doctest: +SKIP
>>> pool = hf.Pool(model, memory="2GiB")                              # doctest: +SKIP
>>> cache = hf.PagedCache(model, pool, prompt_ids=ids)                # doctest: +SKIP
>>> out = model.generate(ids, past_key_values=cache)                  # doctest: +SKIP

Run with transformers 4.57.6, 5.23.0 and 5.24.0. docs/huggingface.md says what is shared and when, and what
is refused.
"""

from ._attention import register
from ._cache import PagedCache
from ._layers import UnsupportedModel
from ._pool import Pool

__all__ = ["PagedCache", "Pool", "UnsupportedModel", "register"]
