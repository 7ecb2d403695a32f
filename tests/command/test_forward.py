# SPDX-License-Identifier: Apache-2.0
"""kvfolio generate, end to end over the paged cache: its logits against float64 NumPy, its tokens
against those that the transformers package decoded."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

SOURCE = pathlib.Path(os.environ["KVFOLIO_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "tests"))
import make_checkpoints  # noqa: E402
import ref_llama  # noqa: E402

PROMPT = np.random.RandomState(5).randint(0, 97, 50).tolist()
NUM_NEW = 12
# Ways to compute the same: whole prompt in one step; chunks that cut blocks; the twin.
WAYS = {
    "default": [],
    "chunks": ["--block-size", "4", "--max-batch-tokens", "7", "--threads", "2"],
    "contiguous": ["--contiguous"],
}


def generate(folder, prompt, num_new, *options):
    """The sample's line and the summary."""
    command = [os.environ["KVFOLIO"], "generate", "--model", folder, "--json", "--prompt-ids",
               ",".join(map(str, prompt)), "--max-new-tokens", num_new, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    sample, summary = (json.loads(line) for line in done.stdout.splitlines())
    return sample, summary["summary"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("variant", make_checkpoints.VARIANTS)
def test_logits_equal_float64_numpy(variant, way, tmp_path):
    folder = make_checkpoints.write_checkpoint(tmp_path / "checkpoint", variant, seed=3)
    out = tmp_path / "logits.npy"
    sample, _ = generate(folder, PROMPT, NUM_NEW, "--logits", out, *WAYS[way])
    inputs = PROMPT + sample["token_ids"][:-1]
    expected = ref_llama.RefLlama(folder).logits(inputs)
    logits = np.load(out)
    assert logits.shape == expected.shape
    assert np.abs(logits - expected).max() < 1e-4
    assert logits[len(PROMPT) - 1 :].argmax(-1).tolist() == sample["token_ids"]


@pytest.mark.parametrize("way", WAYS)
def test_shipped_model_equals_float64_numpy(way, tmp_path):
    folder = SOURCE / "models" / "kjv-bytes"
    prompt = list(b"In the beginning God created the heaven and the earth. And the ")
    out = tmp_path / "logits.npy"
    sample, _ = generate(folder, prompt, NUM_NEW, "--logits", out, *WAYS[way])
    expected = ref_llama.RefLlama(folder).logits(prompt + sample["token_ids"][:-1])
    assert np.abs(np.load(out) - expected).max() < 1e-4


def test_window_gives_blocks_back(tmp_path):
    folder = make_checkpoints.write_checkpoint(tmp_path, "mistral-window", seed=3)
    _, summary = generate(folder, PROMPT, 100, "--block-size", "4", "--max-batch-tokens", "4")
    # 150 tokens are 38 blocks; the window of 8 needs a few.
    assert summary["blocks_peak"] <= 6


def golden_cases():
    for path in sorted((SOURCE / "tests" / "golden").glob("transformers*.json")):
        golden = json.loads(path.read_text())
        for variant, case in golden["cases"].items():
            yield pytest.param(golden, variant, case, id=f"{path.stem}-{variant}")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("golden,variant,case", golden_cases())
def test_greedy_tokens_equal_transformers(golden, variant, case, way, tmp_path):
    folder = make_checkpoints.write_checkpoint(tmp_path, variant, golden["seed"])
    prompt, tokens = golden["prompt_ids"], case["tokens"]
    sample, _ = generate(folder, prompt, len(tokens), *WAYS[way])
    assert sample["token_ids"] == tokens
