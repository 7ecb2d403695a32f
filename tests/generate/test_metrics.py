# SPDX-License-Identifier: Apache-2.0
"""`generate --metrics FILE`: the text that Prometheus would read."""

import os
import re
import shutil
import subprocess

import pytest
from engine import SOURCE, checkpoint, generate, run

MODEL = "tied-f32"
REQUESTS = [{"id": f"r{i}", "prompt_ids": list(range(1, 50)) + [i + 1] * 9, "max_new_tokens": 6}
            for i in range(4)]
PROMTOOL = shutil.which("promtool", path=os.environ.get("PATH", "") + os.pathsep +
                        str(SOURCE / "build" / "promtool"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    result = generate(checkpoint(MODEL), REQUESTS, "--metrics", folder / "text", "--max-seqs", 1,
                      "--tier", "host:8MiB", "--tier", f"disk:{folder / 'tier'},64MiB")
    return (folder / "text").read_text(), result.summary


def value(text, name, **labels):
    for line in text.splitlines():
        found = re.fullmatch(re.escape(name) + r"(?:\{(.*)\})? (\S+)", line)
        if found and all(f'{k}="{v}"' in (found.group(1) or "") for k, v in labels.items()):
            return float(found.group(2))
    raise AssertionError(f"{name} {labels} is not there")


def test_the_text_says_what_the_summary_says(written):
    text, summary = written
    assert value(text, "kvfolio_prefix_hit_tokens_total") == summary["tokens_reused"] > 0
    assert value(text, "kvfolio_capacity_blocks", group=0) == summary["blocks_total"]
    assert value(text, "kvfolio_copied_blocks_total") == summary["block_copies"]
    assert value(text, "kvfolio_arena_stored_records_total") == summary["tier_stores"] > 0
    assert value(text, "kvfolio_tier_stored_records_total", tier="disk") > 0
    assert value(text, "kvfolio_tier_stored_bytes_total", tier="disk") > 0
    assert value(text, "kvfolio_corrupt_records_total", tier="disk") == 0
    assert value(text, "kvfolio_tier_up", tier="disk") == 1
    stored = value(text, "kvfolio_tier_stored_records_total", tier="disk")
    assert value(text, "kvfolio_tier_store_seconds_count", tier="disk") == stored
    assert value(text, "vllm:prefix_cache_hits_total") == summary["tokens_reused"]
    assert 'model_name="' in text


@pytest.mark.skipif(not PROMTOOL, reason="no promtool: scripts/promtool-here")
def test_promtool_finds_nothing_wrong(written):
    text = "\n".join(line for line in written[0].splitlines()
                     if "vllm:" not in line and "sglang:" not in line) + "\n"
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0 and not done.stdout and not done.stderr, done.stdout + done.stderr
    # Names of others have a colon, which the checker does not like; the text is well formed.
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=written[0], capture_output=True,
                          text=True, timeout=60, check=False)
    assert "error while linting" not in done.stdout + done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if line]
    assert all(re.match("(vllm|sglang):", line) for line in said), said


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    done = run(checkpoint(MODEL), "--metrics", tmp_path / "none" / "file", requests=REQUESTS)
    assert done.returncode == 2 and b"--metrics" in done.stderr and done.stdout == b""
