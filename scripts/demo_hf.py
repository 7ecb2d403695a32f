# SPDX-License-Identifier: Apache-2.0
"""scripts/demo --python: transformers with and without a pool of blocks, on a small random Llama.

Six questions behind one system prompt, then 8 samples and 4 beams; every token is compared with the
stock cache's.
"""

from __future__ import annotations

import statistics
import time

import torch
import transformers

import kvfolio
from kvfolio import hf

SYSTEM, QUESTION, NEW = 1000, 24, 24


def make_model():
    config = transformers.LlamaConfig(
        vocab_size=4096, hidden_size=512, intermediate_size=1408, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=2, head_dim=64, max_position_embeddings=4096,
        eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:  # wider than fresh weights, so that texts differ
            parameter.normal_(std=1.5 * parameter.shape[1] ** -0.5)
    return model


def generate(model, ids, cache, **arguments):
    torch.manual_seed(1)
    return model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache,
                          **(dict(do_sample=False, max_new_tokens=NEW) | arguments))


def first_token(model, ids, make_cache):
    """Seconds to the first token."""
    start = time.perf_counter()
    cache = make_cache()
    generate(model, ids, cache, max_new_tokens=1)
    return time.perf_counter() - start, cache


def stock_bytes(cache) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def questions(model, pool, system) -> None:
    computed = {"stock": 0, "pool": 0}
    seconds: dict[str, list[float]] = {"stock": [], "pool": []}
    for number in range(6):
        ids = torch.cat([system, torch.randint(1, 4096, (1, QUESTION))], dim=1)
        taken, _ = first_token(model, ids, transformers.DynamicCache)
        seconds["stock"].append(taken)
        computed["stock"] += ids.shape[1]
        taken, cache = first_token(model, ids, lambda: hf.PagedCache(model, pool, prompt_ids=ids))
        seconds["pool"].append(taken)
        computed["pool"] += ids.shape[1] - cache.cached_tokens
        cache.close()
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            assert torch.equal(generate(model, ids, cache), generate(model, ids, None))
        print(f"  question {number + 1}: first token after {seconds['stock'][-1] * 1e3:6.0f} ms with the stock "
              f"cache, {taken * 1e3:6.0f} ms with the pool")
    print(f"prompt tokens computed ... stock {computed['stock']}, pool {computed['pool']}")
    print(f"first token .............. stock {statistics.median(seconds['stock']) * 1e3:.0f} ms, pool "
          f"{statistics.median(seconds['pool'][1:]) * 1e3:.0f} ms (median, the first question apart)")


def memory(model, pool, system) -> None:
    for name, arguments in (
        ("8 samples", dict(do_sample=True, num_return_sequences=8)),
        ("4 beams", dict(num_beams=4)),
    ):
        stock = transformers.DynamicCache()
        expected = generate(model, system, stock, **arguments)
        cache = hf.PagedCache(model, pool, prompt_ids=system)
        assert torch.equal(generate(model, system, cache, **arguments), expected)
        print(f"keys and values of {name} {'.' * (12 - len(name))} stock {stock_bytes(stock) / 2**20:.1f} MiB, "
              f"pool {pool.bytes_held / 2**20:.1f} MiB")
        if name == "4 beams":
            print("\n" + pool.block_map() + "\n")
        cache.close()


def main() -> None:
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, "
          f"{torch.get_num_threads()} threads, kernel {kvfolio.kernel_targets()[-1]}")
    model = make_model()
    pool = hf.Pool(model, memory="64MiB")
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"a random Llama of {count / 1e6:.0f} M parameters, a system prompt of {SYSTEM} tokens\n")
    system = torch.randint(1, 4096, (1, SYSTEM))
    questions(model, pool, system)
    memory(model, pool, system)
    print(f"all tokens are equal to the stock cache's; {pool}")


if __name__ == "__main__":
    main()
