# SPDX-License-Identifier: Apache-2.0
"""Runs `kvfolio generate` for the tests of this folder."""

import functools
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

import numpy as np

SOURCE = pathlib.Path(os.environ["KVFOLIO_SOURCE_DIR"])
COMMAND = os.environ["KVFOLIO"]
# What this machine runs, the reference first, and one that it does not.
KERNELS = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, timeout=60,
                         check=True).stdout.split("kernels ")[1].split()
ABSENT = "neon" if "neon" not in KERNELS else "avx2"
SANITIZED = bool(os.environ.get("KVFOLIO_SANITIZED"))  # takes terabytes of addresses
sys.path.insert(0, str(SOURCE / "tests"))
import make_checkpoints  # noqa: E402

# Small enough that NumPy computes a prompt of 1,024 tokens a hundred times.
make_checkpoints.VARIANTS["long"] = {"tie": True, "num_hidden_layers": 2, "num_attention_heads": 2,
                                     "num_key_value_heads": 1, "hidden_size": 32}
_folder = tempfile.TemporaryDirectory(prefix="kvfolio-checkpoints-")


@functools.cache
def checkpoint(variant, max_positions=512):
    """The folder of a random checkpoint."""
    folder = pathlib.Path(_folder.name) / f"{variant}-{max_positions}"
    make_checkpoints.write_checkpoint(folder, variant)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = max_positions
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(model, *options, requests=None, timeout=300, memory_bytes=None):
    """A finished process. Requests are dicts, or text as it is."""
    command = [COMMAND, "generate", "--model", str(model), *map(str, options)]
    if memory_bytes and "--threads" not in options:  # the stack of a thread counts, and a machine may have many cores
        command += ["--threads", "2"]
    text = requests
    if requests is not None:
        command += ["--requests", "-"]
        if not isinstance(requests, (str, bytes)):
            text = "\n".join(json.dumps(request) for request in requests)
    if isinstance(text, str):
        text = text.encode()

    def limit():
        if memory_bytes and not SANITIZED:
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))

    return subprocess.run(command, input=text, capture_output=True, timeout=timeout,
                          preexec_fn=limit, check=False)


class Result:
    """The lines of a run with --json."""

    def __init__(self, done, code):
        assert done.returncode == code, (done.returncode, done.stderr.decode())
        self.stderr = done.stderr.decode()
        lines = [json.loads(line) for line in done.stdout.decode().splitlines()]
        self.summary = lines.pop()["summary"]
        self.errors = {line["id"]: line["error"] for line in lines if "error" in line}
        self.samples = [line for line in lines if "error" not in line]

    @property
    def tokens(self):
        return {(s["id"], s["sample"]): s["token_ids"] for s in self.samples}


def generate(model, requests, *options, code=0):
    result = Result(run(model, "--json", *options, requests=requests), code)
    check_counts(requests, result)
    return result


def check_counts(requests, result):
    """What adds up in every run."""
    summary = result.summary
    asked = {r["id"]: len(r["prompt_ids"]) for r in requests if r["id"] not in result.errors}
    assert summary["requests"] == len(asked)
    assert summary["prompt_tokens"] == sum(asked.values())
    assert summary["samples"] == len(result.samples)
    assert summary["generated_tokens"] == sum(len(s["token_ids"]) for s in result.samples)
    assert (summary["prefill_tokens_computed"] + summary["tokens_reused"]
            == summary["prompt_tokens"])
    cached = {s["id"]: s["cached_tokens"] for s in result.samples}
    assert all(0 <= hit < asked[name] for name, hit in cached.items())
    if summary["preemptions"] == 0:  # who comes back may find more than at first
        assert summary["tokens_reused"] <= sum(cached.values())
    # A sample that finds no free sequence when its siblings fork comes later, by itself.
    forks = any(r.get("beams", 1) > 1 or r.get("samples", 1) > 1 for r in requests)
    if summary["preemptions"] == 0 and not forks:
        assert summary["tokens_reused"] == sum(cached.values())
        assert summary["tokens_recomputed"] == 0
    if summary["blocks_total"] and result.samples:
        assert 0 < summary["blocks_peak"] <= summary["blocks_total"]
    assert sum(s["preemptions"] for s in result.samples) >= summary["preemptions"]


def prompts(count, shared, own, vocab=256, seed=1):
    """Prompts that begin with the same `shared` tokens."""
    random = np.random.RandomState(seed)
    start = random.randint(0, vocab, shared).tolist()
    return [start + random.randint(0, vocab, own).tolist() for _ in range(count)]
