# SPDX-License-Identifier: Apache-2.0
"""How to go on after a pool was short of blocks, with a small random Llama in place of yours."""

import torch
import transformers
from readme_hf import small_llama

import kvfolio
from kvfolio import hf

NEW = 60


def main(model, prompt):
    pool = hf.Pool(model, blocks=12, block_size=16)
    another = hf.PagedCache(model, pool)
    model.generate(prompt + 1, past_key_values=another, max_new_tokens=NEW, do_sample=False)
    ids = prompt
    cache = hf.PagedCache(model, pool, prompt_ids=ids)
    model.generation_config.do_sample = False
    # readme: begin
    try:
        out = model.generate(ids, past_key_values=cache, max_new_tokens=NEW)
    except kvfolio.OutOfBlocks as short:
        print(f"{short.needed} block more was needed, {short.free} were free")
        ids = cache.token_ids  # the prompt, and the text so far
        cache.publish(ids)
        cache.close()
        another.close()  # or wait until another request ends
        cache = hf.PagedCache(model, pool, prompt_ids=ids)
        rest = prompt.shape[1] + NEW - ids.shape[1]
        out = model.generate(ids, past_key_values=cache, max_new_tokens=rest)
    # readme: end
    print(f"{cache.cached_tokens} of {ids.shape[1]} tokens were found")
    print("equal" if torch.equal(out, model.generate(prompt, max_new_tokens=NEW)) else "different")
    cache.close()


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(small_llama(), torch.arange(100, 160)[None])
