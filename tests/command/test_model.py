# SPDX-License-Identifier: Apache-2.0
"""The example engine's model, without a cache, against float64 NumPy and against transformers."""

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

DUMP = os.environ["KVFOLIO_LOGITS_DUMP"]
PROMPT = np.random.RandomState(3).randint(0, 97, 40).tolist()
TOLERANCE = 1e-4


def targets():
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    return ["baseline"] + ["avx2"] * ("fma" in flags) + ["avx512"] * ("avx512f" in flags)


def dump(folder, tokens, *options):
    """The engine's logits, [positions, vocab]."""
    command = [DUMP, str(folder), ",".join(map(str, tokens)), *map(str, options)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return np.frombuffer(done.stdout, "<f4").reshape(len(tokens), -1)


@pytest.mark.parametrize("variant", make_checkpoints.VARIANTS)
def test_logits_equal_float64_numpy(variant, tmp_path):
    folder = make_checkpoints.write_checkpoint(tmp_path, variant, seed=1)
    expected = ref_llama.RefLlama(folder).logits(PROMPT)
    assert np.abs(expected).max() > 1  # else the tolerance would say little
    for target in targets():
        assert np.abs(dump(folder, PROMPT, target) - expected).max() < TOLERANCE


def test_shipped_model_equals_float64_numpy():
    folder = SOURCE / "models" / "kjv-bytes"
    tokens = list(b"In the beginning God created the heaven and the earth. And the ")
    expected = ref_llama.RefLlama(folder).logits(tokens)
    assert np.abs(dump(folder, tokens) - expected).max() < TOLERANCE


@pytest.mark.parametrize("variant", ["tied-f32", "head-dim", "mistral-window"])
def test_chunks_and_threads_change_no_bit(variant, tmp_path):
    folder = make_checkpoints.write_checkpoint(tmp_path, variant, seed=2)
    for target in targets():
        whole = dump(folder, PROMPT, target).tobytes()
        for chunk in (1, 3, 7, 16):
            for threads in (1, 2, 4):
                assert dump(folder, PROMPT, target, chunk, threads).tobytes() == whole


def golden_cases():
    for path in sorted((SOURCE / "tests" / "golden").glob("transformers*.json")):
        golden = json.loads(path.read_text())
        for variant, case in golden["cases"].items():
            yield pytest.param(golden, variant, case, id=f"{path.stem}-{variant}")


@pytest.mark.parametrize("golden,variant,case", golden_cases())
def test_greedy_tokens_equal_transformers(golden, variant, case, tmp_path):
    folder = make_checkpoints.write_checkpoint(tmp_path, variant, golden["seed"])
    # Each token must be the model's choice after the true tokens before it: one pass shows all.
    prompt, tokens = golden["prompt_ids"], case["tokens"]
    chosen = dump(folder, prompt + tokens).argmax(-1)
    assert chosen[len(prompt) - 1 : -1].tolist() == tokens
    reference = ref_llama.RefLlama(folder).logits(prompt + tokens).argmax(-1)
    assert reference[len(prompt) - 1 : -1].tolist() == tokens
