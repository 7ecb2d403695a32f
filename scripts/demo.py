#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demonstration that scripts/demo builds and runs: the shipped model decoding over the cache.

Shows what `kvfolio generate` prints; computes nothing itself. Exits as the command does.
"""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = os.environ.get("KVFOLIO", str(ROOT / "build/release/bin/kvfolio"))
MODEL = "models/kjv-bytes"
REQUESTS = "examples/llama/demo/requests.jsonl"
BLOCKS = "160"
WIDTH = 79


def ended(returncode):
    """What a shell would say of a command that ended so; a signal is a failure too."""
    return returncode if returncode >= 0 else 128 - returncode


def say(text=""):
    print(text, flush=True)


def run(arguments):
    """Shows a command and runs it; what it prints appears as it comes."""
    show(arguments)
    return ended(subprocess.run([COMMAND, *arguments], cwd=ROOT, check=False).returncode)


def show(arguments):
    """Prints a command as one would type it."""
    words = [f'"{word}"' if " " in word else word for word in arguments]
    say("$ kvfolio " + " ".join(words))


def stream(prompt):
    """One request; its text appears as the model decides on it."""
    arguments = ["generate", "--model", MODEL, "--prompt", prompt, "--max-new-tokens", "220",
                 "--temperature", "0.6", "--seed", "3"]
    return run(arguments)


def sample_row(sample, forks):
    text = " ".join(sample["text"].split())
    name = sample["id"] + (f"/{sample['sample']}" if sample["id"] in forks else "")
    row = f"  {name:<13} {text}"
    if len(row) > WIDTH - 12:
        row = row[: WIDTH - 15] + "..."
    note = f"hit {sample['cached_tokens']}"
    if sample["preemptions"]:
        note += f" p{sample['preemptions']}"
    return f"{row:<{WIDTH - 12}} {note:>11}"


def serve():
    """All requests at once, in a pool too small for them, then the same without blocks."""
    requests = [json.loads(line) for line in (ROOT / REQUESTS).read_text().splitlines()]
    forks = {r["id"] for r in requests if r.get("samples", 1) > 1 or r.get("beams", 1) > 1}
    arguments = ["generate", "--model", MODEL, "--requests", REQUESTS, "--num-blocks", BLOCKS,
                 "--max-seqs", "24", "--verify", "--report", "--json"]
    say(f"{len(requests)} requests behind one system prompt, 4 samples of one, a beam search of 4, "
        f"in a pool of\n{BLOCKS} blocks that cannot hold them all (hit: prompt bytes found in the "
        "cache; p: preempted):\n")
    show(arguments)
    with subprocess.Popen([COMMAND, *arguments], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE) as command:
        summary = None
        for line in command.stdout:
            message = json.loads(line)
            if "summary" in message:
                summary = message["summary"]
            elif "error" in message:
                say(f"  {message['id']:<13} error: {message['error']}")
            else:
                say(sample_row(message, forks))
    if summary:
        say(summary["report"].rstrip("\n"))
    return ended(command.returncode)


def prove():
    """The same samples under every condition: one hash."""
    arguments = ["prove", "--model", MODEL]
    return run(arguments)


def main():
    say("kvfolio: a paged KV cache. Prompts are computed once, memory is shared block by block,\n"
        "and a cache hit never changes a bit.\n")
    code = stream("Ge1:1 In the beginning ")
    say()
    code = max(code, serve())
    say()
    return max(code, prove())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.exit(2)
