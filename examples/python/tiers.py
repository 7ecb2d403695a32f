# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/tiers.md: a prompt whose blocks outlive their manager, in a folder of the local disk."""

import sys
import tempfile

folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()

# readme: begin
import kvfolio as kv
from kvfolio import tiers

model = tiers.ModelIdentity(model="llama-3-8b", weights="sha256:0f3a", tokenizer="r1", model_dtype="bf16",
                            positions="rope 500000", engine="my engine 7, avx2")
layers = kv.GroupSpec(num_layers=2, num_kv_heads=2, head_dim=64, num_blocks=64)
prompt = range(100)
for run in "first", "second":                            # two processes, say
    manager = kv.Manager(kv.Storage([layers]), list_findable=True)
    with tiers.DiskTier(folder, bytes=64 << 20) as disk, \
            tiers.Offload(manager, model, arena_bytes=8 << 20, tiers=[disk], timeout=1.0) as cache:
        opened = cache.open(prompt)                      # what the manager has, at once
        cached = opened.cached_tokens
        if opened.pending:                               # or serve others, and poll() in each step
            for ready in cache.wait():
                cached = ready.cached_tokens             # came back, bit for bit
        with manager.step() as step:                     # go on as ever
            step.append_prompt(opened.sequence, prompt, 100)
            step.run_copies()
        manager.close(opened.sequence)
        print(f"{run} run: {cached} of 100 tokens found")
# readme: end
