# SPDX-License-Identifier: Apache-2.0
"""Samples, beams and prefix hits: what sharing saves, and that the results are the right ones."""

import json
import sys

import numpy as np
import pytest
from engine import SOURCE, checkpoint, generate, prompts, run

sys.path.insert(0, str(SOURCE / "tests"))
import ref_llama  # noqa: E402


def test_samples_equal_requests_with_the_next_seeds_and_take_half_the_blocks():
    model = checkpoint("tied-f32")
    [prompt] = prompts(1, shared=0, own=128)
    fields = {"prompt_ids": prompt, "max_new_tokens": 32, "temperature": 1.0}
    together = generate(model, [{"id": "a", "samples": 4, "seed": 7} | fields],
                        "--no-prefix-cache")
    apart = generate(model, [{"id": f"s{i}", "seed": 7 + i} | fields for i in range(4)],
                     "--no-prefix-cache")
    for i in range(4):
        assert together.tokens["a", i] == apart.tokens[f"s{i}", 0]
    assert len({tuple(t) for t in together.tokens.values()}) == 4
    assert apart.summary["sequences_peak"] == together.summary["sequences_peak"] == 4
    assert 2 * together.summary["blocks_peak"] <= apart.summary["blocks_peak"]
    assert together.summary["contiguous_bytes"] == apart.summary["contiguous_bytes"]


def test_forked_samples_copy_their_shared_tail_once_each():
    [prompt] = prompts(1, shared=0, own=50)  # 3 blocks and 2 tokens
    request = {"id": "a", "prompt_ids": prompt, "samples": 4, "max_new_tokens": 8,
               "temperature": 1.0}
    assert generate(checkpoint("tied-f32"), [request]).summary["block_copies"] == 3
    aligned = request | {"prompt_ids": prompt[:48]}
    assert generate(checkpoint("tied-f32"), [aligned]).summary["block_copies"] == 0


def beam_search(model, prompt, beams, new, stops=()):
    """The best hypotheses as (score, tokens), from whole forward passes."""
    reference = ref_llama.RefLlama(model)
    live, ended = [(0.0, [])], []
    for _ in range(new):
        # Ended hypotheses compete with an id below all others.
        pool = [(-score, -1, rank, tokens) for rank, (score, tokens) in enumerate(ended)]
        for rank, (score, tokens) in enumerate(live):
            logits = reference.logits(prompt + tokens)[-1]
            top = logits.max()
            log_probs = logits - top - np.log(np.exp(logits - top).sum())
            for token in np.lexsort((np.arange(len(logits)), -log_probs))[:beams]:
                pool.append((-(score + log_probs[token]), int(token), rank, tokens + [int(token)]))
        live, ended = [], []
        for score, token, _, tokens in sorted(pool, key=lambda entry: entry[:3])[:beams]:
            (ended if token < 0 or token in stops else live).append((-score, tokens))
        if not live:
            break
    return sorted(live + ended, key=lambda entry: -entry[0])


def check_beams(result, name, expected):
    beams = [s for s in result.samples if s["id"] == name]
    assert [s["sample"] for s in beams] == list(range(len(expected)))
    for beam, (score, tokens) in zip(beams, expected, strict=True):
        assert beam["token_ids"] == tokens
        assert beam["score"] == pytest.approx(score, abs=1e-3)


def test_four_beams_of_a_long_prompt_fit_into_little_more_than_one_sequence():
    model = checkpoint("long", max_positions=2048)
    [prompt] = prompts(1, shared=0, own=1024)
    one = -(-(1024 + 32) // 16)
    request = {"id": "b", "prompt_ids": prompt, "beams": 4, "max_new_tokens": 32}
    result = generate(model, [request], "--num-blocks", one * 12 // 10)
    assert result.summary["preemptions"] == 0
    check_beams(result, "b", beam_search(model, prompt, 4, 32))


@pytest.mark.parametrize("variant", ["untied-bf16", "mistral-window"])
def test_beams_equal_numpy_whatever_the_chunks_and_the_pool(variant):
    model = checkpoint(variant)
    [first, second] = prompts(2, shared=20, own=9)
    expected = beam_search(model, first, 3, 10)
    requests = [{"id": "before", "prompt_ids": second, "max_new_tokens": 20},
                {"id": "b", "prompt_ids": first, "beams": 3, "max_new_tokens": 10},
                {"id": "after", "prompt_ids": second, "max_new_tokens": 20, "beams": 2}]
    for chunk in (1, 2, 64):
        for pool in (26, 30, 200):
            result = generate(model, requests, "--max-batch-tokens", chunk, "--num-blocks", pool,
                              "--block-size", 4, "--verify")
            check_beams(result, "b", expected)


def test_a_beam_that_stops_keeps_its_score():
    model = checkpoint("untied-bf16")
    [prompt] = prompts(1, shared=0, own=12)
    free = beam_search(model, prompt, 3, 6)
    stops = [free[0][1][2], free[1][1][4]]
    request = {"id": "b", "prompt_ids": prompt, "beams": 3, "max_new_tokens": 6, "stop_ids": stops}
    result = generate(model, [request], "--verify")
    check_beams(result, "b", beam_search(model, prompt, 3, 6, stops))
    assert "stop" in {s["finish_reason"] for s in result.samples}


def test_a_second_request_reuses_the_first_ones_prompt():
    model = checkpoint("tied-f32")
    [first, second] = prompts(2, shared=100, own=20)
    requests = [{"id": "a", "prompt_ids": first, "max_new_tokens": 4},
                {"id": "b", "prompt_ids": second, "max_new_tokens": 4},
                {"id": "c", "prompt_ids": first, "max_new_tokens": 4}]
    one_by_one = generate(model, requests, "--max-seqs", 1, "--num-blocks", 100)
    cached = {s["id"]: s["cached_tokens"] for s in one_by_one.samples}
    shared = next(i for i in range(120) if first[i] != second[i])
    assert cached == {"a": 0, "b": shared, "c": 119}  # down to the token
    assert one_by_one.summary["tokens_reused"] == shared + 119
    cold = generate(model, requests, "--max-seqs", 1, "--no-prefix-cache")
    assert cold.summary["tokens_reused"] == 0
    assert cold.tokens == one_by_one.tokens


@pytest.mark.parametrize("batch", [7, 64, 4096])
def test_prompts_that_arrive_together_share_what_they_have_in_common(batch):
    model = checkpoint("tied-f32")
    requests = [{"id": str(i), "prompt_ids": prompt, "max_new_tokens": 4}
                for i, prompt in enumerate(prompts(6, shared=64, own=9))]
    burst = generate(model, requests, "--max-seqs", 6, "--max-batch-tokens", batch)
    assert burst.summary["tokens_reused"] >= 5 * 64
    cold = generate(model, requests, "--max-seqs", 6, "--max-batch-tokens", batch, "--no-prefix-cache")
    assert cold.summary["tokens_reused"] == 0
    assert cold.tokens == burst.tokens


@pytest.mark.parametrize("batch", [512, 4096, 20000])
def test_the_demo_reuses_as_much_whatever_a_step_takes(batch):
    done = run(SOURCE / "models" / "kjv-bytes", "--num-blocks", 2000, "--max-seqs", 24,
               "--max-batch-tokens", batch, "--json",
               requests=(SOURCE / "examples/llama/demo/requests.jsonl").read_text())
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    assert summary["prompt_tokens"] == 18956
    assert summary["tokens_reused"] >= 16900


def test_a_window_gives_its_blocks_back():
    model = checkpoint("mistral-window")  # a window of 8 tokens
    [prompt] = prompts(1, shared=0, own=300)
    request = {"id": "a", "prompt_ids": prompt, "max_new_tokens": 40}
    result = generate(model, [request], "--block-size", 4, "--num-blocks", 4, "--verify")
    assert result.summary["blocks_peak"] <= 4
    assert result.summary["preemptions"] == 0


def test_counts_of_the_contiguous_reservation():
    config = json.loads((checkpoint("tied-f32") / "config.json").read_text())
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    per_token = config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim * 2 * 4
    requests = [{"id": f"r{i}", "prompt_ids": p, "max_new_tokens": 8}
                for i, p in enumerate(prompts(5, shared=30, own=10))]
    summary = generate(checkpoint("tied-f32"), requests).summary
    assert summary["contiguous_bytes"] == 5 * 48 * per_token
    assert summary["paged_bytes_peak"] == summary["blocks_peak"] * 16 * per_token


def test_logits_of_a_single_prompt_cover_every_position(tmp_path):
    model = checkpoint("head-dim")
    [prompt] = prompts(1, shared=0, own=30, vocab=97)
    request = {"id": "a", "prompt_ids": prompt, "max_new_tokens": 6}
    result = generate(model, [request], "--logits", tmp_path / "out.npy")
    logits = np.load(tmp_path / "out.npy")
    tokens = result.tokens["a", 0]
    assert logits.shape == (30 + 6 - 1, 97)
    expected = ref_llama.RefLlama(model).logits(prompt + tokens[:-1])
    assert np.abs(logits - expected).max() < 1e-4
    assert logits[29:].argmax(-1).tolist() == tokens


def test_perplexity_equals_numpy(tmp_path):
    model = checkpoint("tied-f32", max_positions=64)
    tokens = np.random.RandomState(5).randint(0, 256, 150)
    (tmp_path / "text").write_bytes(bytes(tokens.tolist()))
    bits, scored = ref_llama.RefLlama(model).bits(tokens)
    for options in ([], ["--contiguous"], ["--max-batch-tokens", 5, "--block-size", 4]):
        done = run(model, "--perplexity", tmp_path / "text", "--json", *options)
        summary = json.loads(done.stdout)["summary"]
        assert summary["scored_tokens"] == scored
        assert summary["bits_per_token"] == pytest.approx(bits, abs=1e-5)
        assert summary["perplexity"] == pytest.approx(2**bits, rel=1e-5)
