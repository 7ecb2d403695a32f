# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/languages.md: two prompts that share a prefix, with memory and kernels."""

# readme: begin
import kvfolio as kv
import numpy as np

layers = kv.GroupSpec(num_layers=2, num_kv_heads=2, head_dim=64, num_blocks=64)
cache = kv.Manager(kv.Storage([layers]))
for name, prompt in ("alice", range(40)), ("bob", [*range(30), *range(90, 100)]):
    sequence, cached = cache.open(prompt)                # finds and holds, in one call
    try:
        with cache.step() as step:                       # an exception drops the step
            step.append_prompt(sequence, prompt, 40)     # kv.OutOfBlocks: nothing was appended
            plan = step.plan()                           # int32 arrays for your kernels
            step.run_copies()
            q, k = np.ones((2, plan.num_tokens, 2, 64), np.float32)  # of your model
            for layer in range(2):
                kv.append(cache.storage.view(), k, k, plan.groups[0].slot_mapping, layer)
                out = kv.attend(q, cache.storage.view(), plan.groups[0], layer=layer)
    finally:
        cache.close(sequence)                            # its blocks stay findable
    print(f"{name}: {cached} of 40 tokens found, attention over {out.shape}")
# readme: end
