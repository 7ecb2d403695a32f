# SPDX-License-Identifier: Apache-2.0
"""kvfolio.hf beside transformers' own cache, alternating in one run.

    scripts/bench-hf [--case decode|prefix|bytes|questions] [--rounds N] [--json]

decode: a Llama of about 200 M parameters in bf16, 8 query heads for each KV head, random weights. The
caches are filled with the same random keys and values through update(), then decode 32 tokens, or as
many as fit 8 seconds. The table gives the seconds of cache update and attention, and of whole steps, as stock / ours.
prefix: time to the first token of a prompt of 4,096 tokens of which 3,584 are found, over that of a
cold one. questions: processor time of 50 questions of 10 tokens behind 400, 16 tokens each and scores alone, on a
small Llama in f32 with one thread: without a cache, with copies of a DynamicCache, and with ours, as a ratio to the
copies of the same round, median, least and most; how long a cache takes to make, for that model and for one of 30
layers, and the first look at a model. bytes: keys and values of 8 samples and of 4 beams of a prompt of 4,096 tokens.
Every case checks that both caches give the same tokens, where the types are the same, or outputs close
to each other.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
import sys
import time
from typing import Any, Callable, Iterator

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import kvfolio
from kvfolio import hf
from kvfolio.hf import _attention

LAYERS, HEADS, KV_HEADS, DIM = 16, 16, 2, 64
STEPS = 32
SECONDS = 8.0
PROMPT, HIT = 4096, 3584
SPENT = {"attention": 0.0}


def timed(inner: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            SPENT["attention"] += time.perf_counter() - start

    return call


def make_model(layers: int = LAYERS) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=HEADS * DIM,
        intermediate_size=3072,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=DIM,
        max_position_embeddings=1 << 17,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
    return model


def free_gb() -> float:
    with open("/proc/meminfo") as lines:
        known = dict(line.split(":") for line in lines)
    return int(known["MemAvailable"].split()[0]) / 1e6


# ---- decode ----


def random_states(batch: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    size = (batch, KV_HEADS, context, DIM)
    return torch.empty(size, dtype=torch.bfloat16).normal_(), torch.empty(size, dtype=torch.bfloat16).normal_()


def decode(model: Any, cache: Any, attention: str, batch: int) -> tuple[float, float, torch.Tensor]:
    """Seconds of update and attention and of all, for each step; the first step's logits. Of a cache
    that is slow as many steps as fit SECONDS, at least 2."""
    model.set_attn_implementation(attention)
    cache.update = timed(cache.update)
    token = torch.arange(1, batch + 1)[:, None]
    SPENT["attention"] = 0.0
    start = time.perf_counter()
    for step in range(STEPS):
        logits = model(token + step, past_key_values=cache).logits[:, -1]
        if step == 0:
            first = logits.float()
        taken = time.perf_counter() - start
        if step and taken > SECONDS:
            break
    return SPENT["attention"] / (step + 1), taken / (step + 1), first


def make_cache(model: Any, kind: str, batch: int, context: int) -> tuple[Any, str, Any]:
    if kind == "stock":
        return transformers.DynamicCache(), "timed_sdpa", None
    blocks = batch * (context + STEPS + 16) // 16 + batch
    pool = hf.Pool(model, blocks=blocks, dtype=kind)
    model.set_attn_implementation("timed_kvfolio")
    cache = hf.PagedCache(model, pool)
    cache._core.paged = True  # under the name that is timed
    return cache, "timed_kvfolio", pool


def case_decode(rounds: int, contexts: tuple[int, ...] = (8192, 32768)) -> Iterator[dict[str, Any]]:
    AttentionInterface.register("timed_sdpa", timed(sdpa_attention_forward))
    AttentionMaskInterface.register("timed_sdpa", masking_utils.sdpa_mask)
    AttentionInterface.register("timed_kvfolio", timed(_attention.attention))
    AttentionMaskInterface.register("timed_kvfolio", _attention.mask)
    model = make_model()
    model(torch.ones(1, 8, dtype=torch.long))  # the first forward makes the weights' other layout
    for context in contexts:
        for batch in (1, 8):
            need = 10.0 if context * batch > 1 << 17 else 4.0
            if free_gb() < need:
                print(f"skipped: {context} x {batch} needs {need:.0f} GB, {free_gb():.0f} are free",
                      file=sys.stderr)
                continue
            yield _decode_row(model, context, batch, rounds)


def _decode_row(model: Any, context: int, batch: int, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[tuple[float, float]]] = {"stock": [], "bf16": [], "int8": []}
    last: dict[str, torch.Tensor] = {}
    states = random_states(batch, context)  # every layer of every cache holds the same
    for _ in range(rounds):
        for kind, found in seconds.items():
            cache, attention, pool = make_cache(model, kind, batch, context)
            for layer in range(LAYERS):
                cache.update(*states, layer)
            own, whole, last[kind] = decode(model, cache, attention, batch)
            found.append((own, whole))
            del cache, pool
    row: dict[str, Any] = {"case": "decode", "context": context, "batch": batch}
    for kind, found in seconds.items():
        row[f"{kind}_ms"] = statistics.median(own for own, _ in found) * 1e3
        row[f"{kind}_step_ms"] = statistics.median(whole for _, whole in found) * 1e3
    for kind in ("bf16", "int8"):
        row[f"{kind}_gain"] = row["stock_ms"] / row[f"{kind}_ms"]
        row[f"{kind}_step_gain"] = row["stock_step_ms"] / row[f"{kind}_step_ms"]
        error = ((last[kind] - last["stock"]).norm() / last["stock"].norm()).item()
        row[f"{kind}_error"] = error
        assert error < 0.1, f"{kind}: logits differ by {error}"
    return row


# ---- a prefix that is found ----


def case_prefix(rounds: int) -> list[dict[str, Any]]:
    hf.register()
    model = make_model()
    seconds: dict[str, list[float]] = {"stock": [], "cold": [], "hit": []}
    shared = torch.randint(1, 4096, (1, HIT))
    model(shared[:, :512])  # the first forward makes the weights' other layout
    for _ in range(rounds):
        model.set_attn_implementation("sdpa")
        pool = hf.Pool(model, blocks=2 * PROMPT // 16)
        tails = [torch.randint(1, 4096, (1, PROMPT - HIT)) for _ in range(2)]
        cold, hit = (torch.cat([shared, tail], dim=1) for tail in tails)
        seconds["stock"].append(_first_token(model, hit, lambda: transformers.DynamicCache())[0])
        for name, ids in (("cold", cold), ("hit", hit)):
            taken, token, cache = _first_token(
                model, ids, lambda ids=ids: hf.PagedCache(model, pool, prompt_ids=ids)
            )
            assert cache.cached_tokens == (0 if name == "cold" else HIT)
            cache.close()
            seconds[name].append(taken)
    median = {name: statistics.median(found) for name, found in seconds.items()}
    return [{"case": "prefix", **{f"{name}_s": value for name, value in median.items()},
             "hit_over_cold": median["hit"] / median["cold"]}]


def _first_token(model: Any, ids: torch.Tensor, make: Callable[[], Any]) -> tuple[float, torch.Tensor, Any]:
    start = time.perf_counter()
    cache = make()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache,
                         max_new_tokens=1, do_sample=False)
    return time.perf_counter() - start, out[0, -1], cache


# ---- many questions behind one prompt ----


def case_questions(rounds: int) -> list[dict[str, Any]]:
    hf.register()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = small_model(8)
    models = {"sdpa": model, "kvfolio": copy.deepcopy(model)}
    models["kvfolio"].set_attn_implementation("kvfolio")
    system = torch.randint(1, 1000, (1, 400))
    prompts = [torch.cat([system, torch.randint(1, 1000, (1, 10))], dim=1) for _ in range(50)]
    Answer = Callable[[Any, torch.Tensor, Any], torch.Tensor]

    def generated(model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        return model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=16,
                              do_sample=False)

    def scored(model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        return model(ids[:, cache.get_seq_length() :], past_key_values=cache).logits.argmax(-1)[:, -10:]

    def copies(answer: Answer) -> list[torch.Tensor]:
        base = transformers.DynamicCache()
        model(system, past_key_values=base)
        return [answer(model, ids, copy.deepcopy(base)) for ids in prompts]

    def ours(answer: Answer, model: Any) -> list[torch.Tensor]:
        pool, found = hf.Pool(model, blocks=512), []
        for ids in prompts:
            with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
                found.append(answer(model, ids, cache))
        return found

    ways: dict[str, Callable[[], list[torch.Tensor]]] = {
        "none": lambda: [generated(model, ids, None) for ids in prompts],
        "copies": lambda: copies(generated),
        **{name: functools.partial(ours, generated, each) for name, each in models.items()},
        "scores_copies": lambda: copies(scored),
        **{f"scores_{name}": functools.partial(ours, scored, each) for name, each in models.items()},
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    texts: dict[str, list[torch.Tensor]] = {}
    for number in range(rounds + 1):  # the first one warms up
        for name in list(ways)[:: 1 if number % 2 else -1]:
            start = time.process_time()
            texts[name] = ways[name]()
            seconds[name].append(time.process_time() - start)
    for name in ("copies", *models):
        assert all(map(torch.equal, texts[name], texts["none"])), name
    row: dict[str, Any] = {"case": "questions"}
    for name, found in seconds.items():
        row[f"{name}_s"] = statistics.median(found[1:])
    for name in ("none", *models, *(f"scores_{each}" for each in models)):
        of = "scores_copies" if name.startswith("scores") else "copies"
        ratios = [a / b for a, b in zip(seconds[name][1:], seconds[of][1:])]
        row |= {f"{name}_ratio": statistics.median(ratios), f"{name}_least": min(ratios), f"{name}_most": max(ratios)}
    for layers in (8, 30):
        row |= {f"{name}_ms_{layers}": value * 1e3 for name, value in _time_to_make(layers, prompts).items()}
    torch.set_num_threads(threads)
    return [row]


def small_model(layers: int) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


def _time_to_make(layers: int, prompts: list[torch.Tensor]) -> dict[str, float]:
    """Processor time to make a cache and to close it; of the first one also the look at the model."""
    model = small_model(layers)
    pool = hf.Pool(model, blocks=512)
    times = []
    for ids in prompts * 2:
        start = time.process_time()
        hf.PagedCache(model, pool, prompt_ids=ids).close()
        times.append(time.process_time() - start)
    return {"first": times[0], "make": statistics.median(times[1:])}


# ---- bytes ----


def case_bytes(rounds: int) -> list[dict[str, Any]]:
    model = make_model(layers=2)  # the ratio does not depend on the layers
    ids = torch.randint(1, 4096, (1, PROMPT))
    rows = []
    for name, rows_of, arguments in (
        ("8 samples", 8, dict(do_sample=True, num_return_sequences=8)),
        ("4 beams", 4, dict(do_sample=False, num_beams=4)),
    ):
        stock = transformers.DynamicCache()
        pool = hf.Pool(model, blocks=2 * 8 * PROMPT // 16)
        ours = hf.PagedCache(model, pool, prompt_ids=ids)
        held = {}
        for cache in (stock, ours):
            torch.manual_seed(3)
            model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache,
                           max_new_tokens=64, **arguments)
        held["stock"] = sum(layer.keys.nbytes + layer.values.nbytes for layer in stock.layers)
        held["ours"] = pool.bytes_held
        rows.append({"case": "bytes", "what": name, "stock_MB": held["stock"] / 1e6,
                     "ours_MB": held["ours"] / 1e6, "ratio": held["ours"] / held["stock"],
                     "blocks_copied": pool.manager.counters.block_copies})
        ours.close()
        assert pool.num_held == 0
    return rows


CASES = {"decode": case_decode, "prefix": case_prefix, "questions": case_questions, "bytes": case_bytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    target = kvfolio.kernel_targets()[-1]
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {options.threads} threads, "
          f"kernel {target}", file=sys.stderr)
    for name in options.case or CASES:
        start = time.perf_counter()
        for row in CASES[name](options.rounds):
            print(json.dumps(row) if options.json else "  ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                for key, value in row.items()), flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
