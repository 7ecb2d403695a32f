# SPDX-License-Identifier: Apache-2.0
"""The lines of the README, "with Hugging Face", with a small random Llama in place of yours."""

import torch
import transformers


def small_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


def main(model, system, question):
    # readme: begin
    from kvfolio import hf

    hf.register()
    model.set_attn_implementation("kvfolio")  # on a CPU; "sdpa" and others work too
    pool = hf.Pool(model, memory="64MiB")
    for ids in (torch.cat([system, question], 1), torch.cat([system, question + 1], 1)):
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            out = model.generate(ids, past_key_values=cache, max_new_tokens=8, num_beams=4)
            cache.publish(out)
            print(f"{cache.cached_tokens} of {ids.shape[1]} prompt tokens were found")
    # readme: end
    return pool


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(small_llama(), torch.arange(100, 200)[None], torch.arange(5, 12)[None])
