# SPDX-License-Identifier: Apache-2.0
"""A few-shot prompt that survives the process, with a small random Llama in place of yours."""

import os
import tempfile

import torch
import transformers
from readme_hf import small_llama

from kvfolio import hf


def main(model, shots, questions, path):
    # readme: begin
    if os.path.exists(path):
        pool = hf.Pool.restore(path, model, memory="64MiB")  # of this model, or an exception that names the field
    else:
        pool = hf.Pool(model, memory="64MiB", durable=True)
    for question in questions:
        ids = torch.cat([shots, question], 1)
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            model.generate(ids, past_key_values=cache, max_new_tokens=4)
            print(f"{cache.cached_tokens} of {ids.shape[1]} prompt tokens were found")
    pool.save(path)
    # readme: end


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        for first in (5, 50):  # two processes, say
            main(small_llama(), torch.arange(100, 200)[None], [torch.arange(first, first + 7)[None]],
                 os.path.join(folder, "prompts"))
