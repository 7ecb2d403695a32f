# SPDX-License-Identifier: Apache-2.0
"""A disk below a pool, with a small random Llama in place of yours."""

import tempfile

import torch
import transformers
from readme_hf import small_llama

from kvfolio import hf


def main(model, ids, folder):
    # readme: begin
    from kvfolio import tiers

    with tiers.DiskTier(folder, bytes=1 << 30) as disk:
        pool = hf.Pool(model, memory="64MiB", tiers=[disk])
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            model.generate(ids, past_key_values=cache, max_new_tokens=4)
            print(f"{cache.cached_tokens} of {ids.shape[1]} prompt tokens were found")
        pool.close()  # gives the disk what it does not have yet
    # readme: end


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):  # two processes, say
            main(small_llama(), torch.arange(100, 200)[None], folder)
