# SPDX-License-Identifier: Apache-2.0
"""What the type of the cache costs in bits: held-out text, against float64 NumPy without a cache.

KVFOLIO_TEXT_BYTES: so much of the text, most of the time being NumPy's. scripts/nightly takes all of it.
"""

import json
import os
import sys

import pytest
from engine import SOURCE, run

sys.path.insert(0, str(SOURCE / "tests"))
import ref_llama  # noqa: E402

MODEL = SOURCE / "models" / "kjv-bytes"
TEXT = (MODEL / "heldout.txt").read_bytes()[:int(os.environ.get("KVFOLIO_TEXT_BYTES", "10240"))]


def test_verify_compares_every_row_of_the_text(tmp_path):
    text = tmp_path / "text"
    text.write_bytes(TEXT[:3000])
    done = run(MODEL, "--perplexity", text, "--verify", "--json", "--block-size", 5)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    other = run(MODEL, "--perplexity", text, "--json", "--max-batch-tokens", 77)
    assert json.loads(other.stdout)["summary"]["bits_per_token"] == summary["bits_per_token"]
    assert summary["verify"]["identical"]
    assert summary["verify"]["logit_rows"] == summary["scored_tokens"] > 2900


@pytest.fixture(scope="module")
def exact():
    return ref_llama.RefLlama(MODEL).bits(list(TEXT))


@pytest.mark.parametrize("text", ["", "x"])
def test_a_text_without_a_second_token_is_refused(text, tmp_path):
    (tmp_path / "text").write_text(text)
    done = run(MODEL, "--perplexity", tmp_path / "text")
    assert done.returncode == 2
    assert b"leave nothing to score, allowed: at least 2" in done.stderr


# The unit is bits per byte. 16 bits of a number change less than the fourth digit on this model: bf16 takes
# 3.9e-5 off them on kernels that compute in f32, less where the query is rounded as well.
@pytest.mark.parametrize("cache_type,part", [("f32", 3e-6), ("f16", 3e-5), ("bf16", 6e-5),
                                             ("int8", 0.005), ("e4m3", 0.001)])
def test_bits_per_byte_of_held_out_text_are_those_of_numpy(cache_type, part, exact, tmp_path):
    bits, scored = exact
    text = tmp_path / "text"
    text.write_bytes(TEXT)
    done = run(MODEL, "--perplexity", text, "--json", "--cache-dtype", cache_type)
    summary = json.loads(done.stdout)["summary"]
    assert summary["scored_tokens"] == scored
    assert summary["bits_per_token"] == pytest.approx(bits, rel=part)
