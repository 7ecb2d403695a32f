# SPDX-License-Identifier: Apache-2.0
"""Prefix reuse, forks and fast CPU decode for Hugging Face transformers.

>>> from kvfolio import hf                                            # doctest: +SKIP
>>> pool = hf.Pool(model, memory="2GiB")                              # doctest: +SKIP
>>> out = hf.generate(model, pool, tokenizer(text))                   # doctest: +SKIP

or, to see and to choose what is found and published:

>>> with hf.PagedCache(model, pool, prompt_ids=ids) as cache:         # doctest: +SKIP
...     out = model.generate(ids, past_key_values=cache)
...     cache.publish(out)

Run with transformers 4.57.6, 5.23.0 and 5.24.0. docs/huggingface.md says what is shared and when, and what
is refused.
"""

import importlib.util

for _needed in ("torch", "transformers"):
    if importlib.util.find_spec(_needed) is None:
        raise ModuleNotFoundError(
            f"kvfolio.hf needs {_needed}, which is not installed here: pip install torch 'transformers>=4.57,<5.25'",
            name=_needed,
        )

from ._attention import register
from ._cache import PagedCache
from ._generate import generate
from ._layers import UnsupportedModel
from ._pool import Pool

__all__ = ["PagedCache", "Pool", "UnsupportedModel", "generate", "register"]
