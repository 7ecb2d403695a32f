# SPDX-License-Identifier: Apache-2.0
"""Scores of several answers behind one prompt, with a small random Llama in place of yours."""

import torch
import transformers
from readme_hf import small_llama

from kvfolio import hf


# readme: begin
@torch.no_grad()
def score(model, pool, prompt, answer):
    """The sum of the log probabilities of the answer's tokens behind the prompt."""
    ids = torch.cat([prompt, answer], 1)
    with hf.PagedCache(model, pool, prompt_ids=prompt) as cache:
        logits = model(ids[:, cache.cached_tokens :], past_key_values=cache).logits
    steps = logits[:, -answer.shape[1] - 1 : -1].log_softmax(-1)
    return steps.gather(-1, answer[..., None]).sum()
# readme: end


@torch.no_grad()
def main(model, prompt, answers):
    pool = hf.Pool(model, blocks=64)
    for answer in answers:
        ids = torch.cat([prompt, answer], 1)
        alone = model(ids).logits[:, prompt.shape[1] - 1 : -1].log_softmax(-1)
        alone = alone.gather(-1, answer[..., None]).sum()
        close = torch.allclose(score(model, pool, prompt, answer), alone, atol=1e-4)
        print("as without a cache" if close else "different")
    with hf.PagedCache(model, pool, prompt_ids=prompt) as cache:
        print(f"{cache.cached_tokens} of {prompt.shape[1]} prompt tokens are found")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(small_llama(), torch.arange(100, 200)[None], [torch.arange(5, 12)[None], torch.arange(7, 11)[None]])
