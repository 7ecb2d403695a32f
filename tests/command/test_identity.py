# SPDX-License-Identifier: Apache-2.0
"""Outputs and logits depend on nothing but the request: not on pool, block size, chunk, threads,
format or prefix cache. Preempted or not, alone or in a batch, over blocks or contiguous."""

import functools

import numpy as np
import pytest
from engine import checkpoint, generate, prompts, run

NEW = 12


def load():
    """Greedy and sampled requests with a common beginning, forks among them."""
    requests = []
    for i, prompt in enumerate(prompts(7, shared=37, own=11)):
        request = {"id": f"q{i}", "prompt_ids": prompt[: len(prompt) - i], "max_new_tokens": NEW}
        if i % 2:
            request |= {"temperature": 0.9, "top_p": 0.95, "seed": 100 + i}
        if i == 3:
            request["samples"] = 3
        requests.append(request)
    requests.append(requests[0] | {"id": "again"})
    return requests


def smallest_pool(requests, block):
    return max(-(-(len(r["prompt_ids"]) + NEW - 1) // block) for r in requests)


@functools.cache
def smallest_window_pool(model, block, longest, chunk):
    """A window gives blocks back, so it needs few: the least pool that takes the longest prompt."""
    request = [{"id": "q", "prompt_ids": [1] * longest, "max_new_tokens": NEW}]
    for pool in range(1, longest + NEW + 1):
        done = run(model, "--block-size", block, "--max-batch-tokens", chunk,
                   "--num-blocks", pool, requests=request)
        if done.returncode == 0:
            return pool
        assert done.returncode == 1, done.stderr.decode()
    raise AssertionError("no pool is large enough")


class Rows:
    """Tokens and logits of a run; equal only if every bit is."""

    def __init__(self, model, requests, path, *options):
        self.result = generate(model, requests, "--logits", path, *options)
        logits = np.load(path)
        assert logits.dtype == np.float32
        assert logits.shape[0] == self.result.summary["generated_tokens"]
        self.logits = logits.tobytes()

    def __eq__(self, other):
        return self.result.tokens == other.result.tokens and self.logits == other.logits


@pytest.mark.parametrize("variant", ["tied-f32", "mistral-window", "untied-bf16"])
def test_pools_blocks_chunks_threads_and_hits_change_no_bit(variant, tmp_path):
    model, requests, path = checkpoint(variant), load(), tmp_path / "logits.npy"
    expected = Rows(model, requests, path, "--contiguous")
    preemptions = 0
    longest = max(len(r["prompt_ids"]) for r in requests)
    for n, block in enumerate([1, 2, 8, 16, 32]):
        for size in ("least", "twice", "unlimited"):
            for chunk in (1, 7, 64, 4096):
                n += 1
                if chunk == 1 and size != "least":
                    continue
                least = (smallest_window_pool(model, block, longest, chunk)
                         if variant == "mistral-window" else smallest_pool(requests, block))
                pool = {"least": least, "twice": 2 * least, "unlimited": None}[size]
                options = ["--block-size", block, "--max-batch-tokens", chunk,
                           "--threads", (1, 2, 4)[n % 3], "--max-seqs", (4, 16)[n % 2]]
                options += ["--num-blocks", pool] if pool else []
                options += ["--no-prefix-cache"] if n % 4 == 0 else []
                options += ["--format", "nhd"] if n % 5 == 0 else []
                options += ["--format", "granule"] if n % 5 > 2 and block % 16 == 0 else []
                actual = Rows(model, requests, path, *options)
                assert actual == expected, options
                if size == "least":
                    preemptions += actual.result.summary["preemptions"]
    assert preemptions > 0


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "int8", "e4m3"])
def test_each_cache_type_agrees_with_its_twin(dtype, tmp_path):
    model, requests, path = checkpoint("llama3"), load(), tmp_path / "logits.npy"
    expected = Rows(model, requests, path, "--contiguous", "--cache-dtype", dtype)
    for block, format in ((1, "hnd"), (16, "nhd"), (16, "granule"), (48, "granule")):
        if dtype in ("f64", "e4m3") and format == "granule":
            continue
        least = smallest_pool(requests, block)
        options = ["--cache-dtype", dtype, "--block-size", block, "--num-blocks", least,
                   "--format", format, "--max-batch-tokens", 23]
        assert Rows(model, requests, path, *options) == expected


def test_alone_equals_beside_others():
    model, requests = checkpoint("tied-f32"), load()
    together = generate(model, requests).tokens
    for request in requests:
        alone = generate(model, [request]).tokens
        assert all(together[key] == tokens for key, tokens in alone.items())


def test_two_runs_write_the_same_lines():
    model, requests = checkpoint("tied-f32"), load()
    first, second = (generate(model, requests, "--num-blocks", 12) for _ in range(2))
    assert first.samples == second.samples
    for figure in ("seconds", "tokens_per_s"):
        del first.summary[figure], second.summary[figure]
    assert first.summary == second.summary


def test_verify_compares_tokens_and_logits():
    requests = load() + [load()[0] | {"id": "beams", "beams": 3}]
    least = 40  # blocks of 4: less than two of the requests need
    result = generate(checkpoint("tied-f32"), requests, "--verify", "--block-size", 4,
                      "--num-blocks", least)
    verify = result.summary["verify"]
    assert verify["identical"] is True
    assert verify["tokens"] == verify["logit_rows"] == result.summary["generated_tokens"]
    assert result.summary["preemptions"] > 0


def test_text_output_says_the_same():
    done = run(checkpoint("tied-f32"), "--prompt", "And", "--max-new-tokens", 5, "--verify",
               "--report")
    assert done.returncode == 0
    text = done.stdout.decode(errors="replace")
    assert "5 tokens, length; prompt 3" in text
    assert "equal, bit for bit" in text
    assert "# shared" in text
