# SPDX-License-Identifier: Apache-2.0
"""Prefix reuse and beams on a random Mistral and a random Gemma 3, checked against the stock cache.

    pip install '.[hf]'    # in the root of the repository: no index has kvfolio yet
    python examples/python/huggingface.py

A service answers questions behind one long system prompt. The first question computes it, the others
find it; each is answered with four beams, which share the prompt's blocks and copy only their own last
ones. Then one answer becomes the beginning of a second turn.
"""

from __future__ import annotations

import torch
import transformers

from kvfolio import hf

SIZES = dict(
    vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=2, head_dim=16, sliding_window=64, eos_token_id=None, bos_token_id=None,
    pad_token_id=0,
)
NEW = 16


def make_models() -> list[transformers.PreTrainedModel]:
    torch.manual_seed(0)
    mistral = transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES))
    gemma = transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**SIZES, layer_types=["sliding_attention", "full_attention"] * 2)
    )
    return [mistral.eval(), gemma.eval()]


def generate(model, ids, cache=None, **arguments):
    return model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, do_sample=False,
                          max_new_tokens=NEW, **arguments)


def serve(model) -> None:
    name = type(model).__name__
    pool = hf.Pool(model, memory="16MiB")
    system = torch.randint(1, 512, (1, 300))
    for number in range(3):
        ids = torch.cat([system, torch.randint(1, 512, (1, 12))], dim=1)
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            out = generate(model, ids, cache, num_beams=4)
            held = pool.bytes_held
            published = cache.publish(out)[0]
        assert torch.equal(out, generate(model, ids, num_beams=4)), "other tokens than the stock cache's"
        print(f"{name}, question {number}: {cache.cached_tokens} of {ids.shape[1]} prompt tokens found, "
              f"4 beams held {held / 1024:.0f} KiB, {published} tokens findable")
    ids = torch.cat([out, torch.randint(1, 512, (1, 9))], dim=1)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        again = generate(model, ids, cache)
    assert torch.equal(again, generate(model, ids))
    print(f"{name}, second turn: {cache.cached_tokens} of {ids.shape[1]} tokens found; {pool}")


def main() -> None:
    transformers.logging.set_verbosity_error()
    hf.register()
    for model in make_models():
        for attention in ("sdpa", "kvfolio"):
            model.set_attn_implementation(attention)
            serve(model)


if __name__ == "__main__":
    main()
