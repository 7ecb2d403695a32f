# SPDX-License-Identifier: Apache-2.0
"""`generate --metrics FILE`: the text that Prometheus would read.

docs/metrics.md lists each metric as it is here; with KVFOLIO_RENEW=1 its lists are written anew.
"""

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
    assert value(text, "kvfolio_arena_stored_records_total") == summary["host"]["stores"] > 0
    assert value(text, "kvfolio_tier_stored_records_total",
                 tier="disk") == summary["disk"]["stores"] > 0
    assert value(text, "kvfolio_tier_stored_bytes_total", tier="disk") > 0
    assert value(text, "kvfolio_corrupt_records_total", tier="disk") == 0
    assert value(text, "kvfolio_corrupt_records_total", tier="host") == 0
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
    assert b"No such file or directory" in done.stderr
    done = run(checkpoint(MODEL), "--metrics", tmp_path, requests=REQUESTS)
    assert done.returncode == 2 and b"Is a directory" in done.stderr, done.stderr


def test_a_full_medium_is_said():
    done = run(checkpoint(MODEL), "--metrics", "/dev/full", requests=REQUESTS)
    assert done.returncode == 2, done.stderr
    assert b"--metrics: /dev/full: writing failed: No space left on device" in done.stderr


# ---- docs/metrics.md ----

def table(text, of_others):
    """The rows of a table of docs/metrics.md, as `text` has them."""
    rows = ["| name | type | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    families = re.findall(r"# HELP (\S+) (.*)\n# TYPE \S+ (\S+)\n((?:[^#].*\n)+)", text)
    for name, help_text, kind, lines in families:
        if (":" in name) != of_others:
            continue
        labels = {}
        for label, said in re.findall(r'(\w+)="([^"]*)"', lines):
            if label not in ("model_name", "le"):
                labels.setdefault(label, set()).add(said)
        shown = [f"`{label}`" + (f" ({', '.join(sorted(said))})" if label in ("state", "reason")
                                 else "") for label, said in labels.items()]
        # The last word of a name is its unit; where it is none, the first word of the help is.
        parts = name.removesuffix("_total").replace(":", "_").split("_")
        units = ("bytes", "tokens", "blocks", "records", "seconds", "sequences", "references",
                 "prompts", "answers", "steps", "times")
        words = [*reversed(parts), help_text.split()[0].lower()]
        unit = next((word for word in words if word in units), "-")
        rows.append(f"| `{name}` | {kind} | {unit} | {', '.join(shown) or '-'} | {help_text} |")
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(("mark", "of_others"), [("metrics", False), ("aliases", True)])
def test_the_page_lists_each_metric_as_it_is(written, mark, of_others):
    path = SOURCE / "docs" / "metrics.md"
    before, rest = path.read_text().split(f"<!-- {mark} -->\n")
    shown, after = rest.split(f"<!-- {mark} end -->")
    real = table(written[0], of_others)
    if os.environ.get("KVFOLIO_RENEW"):
        path.write_text(f"{before}<!-- {mark} -->\n{real}<!-- {mark} end -->{after}")
        return
    assert shown == real, "KVFOLIO_RENEW=1 writes docs/metrics.md anew"


def test_each_help_stands_alone(written):
    helps = re.findall(r"# HELP (\S+) (.*)", written[0])
    names = {name for name, _ in re.findall(r"# TYPE (\S+) (\S+)", written[0])}
    assert {name for name, _ in helps} == names
    for name, text in helps:
        assert text.endswith(".") and text[0].isupper() or text.startswith("1 if"), (name, text)
        for word in ("of these", "of them", "likewise", "the same", " there.", "as above"):
            assert word not in text.lower(), (name, text)


def test_every_metric_that_the_page_names_exists(written):
    page = (SOURCE / "docs" / "metrics.md").read_text()
    for name in re.findall(r"kvfolio_\w+", page):
        assert f"# TYPE {name} " in written[0], name


def test_a_damaged_record_is_in_the_metric_and_in_the_summary(tmp_path):
    tier = f"disk:{tmp_path / 'tier'},64MiB"
    generate(checkpoint(MODEL), REQUESTS, "--tier", tier)
    segment = sorted((tmp_path / "tier").glob("segment-*"))[0]
    data = bytearray(segment.read_bytes())
    data[4096 + 200] ^= 8  # in the first record
    segment.write_bytes(data)
    again = generate(checkpoint(MODEL), REQUESTS, "--tier", tier, "--metrics", tmp_path / "text")
    text = (tmp_path / "text").read_text()
    assert value(text, "kvfolio_corrupt_records_total", tier="disk") == 1
    assert value(text, "kvfolio_tier_missed_records_total", tier="disk", reason="corrupt") == 1
    assert again.summary["tier_corrupt"] == again.summary["disk"]["corrupt"] == 1
