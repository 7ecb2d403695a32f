#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens of the transformers package for random checkpoints, kept in tests/golden.

Run once by hand, with each generation of the package; the tests only read the results:

    pip install numpy torch 'transformers<5'     (and again with 'transformers>=5')
    transformers_golden.py

The checkpoints are made from their seed (make_checkpoints.py), so nothing else is kept. They have
no end token: all tokens are decoded. Float32 weights and arithmetic, eager attention, with the
package's own cache.
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers

import make_checkpoints

# The generation that reads a case is the one whose form of config.json it has.
CASES = {
    4: ("llama3", "mistral-window", "untied-bf16"),
    5: ("llama3-v5", "mistral-window-v5", "mistral-window"),
}
SEED, NUM_PROMPT, NUM_NEW = 7, 24, 32


def decode(folder, prompt):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    model = model.float().eval()
    with torch.no_grad():
        out = model.generate(torch.tensor([prompt]), max_new_tokens=NUM_NEW, do_sample=False,
                             output_scores=True, return_dict_in_generate=True)
    top = [step[0].topk(2).values for step in out.scores]
    return {
        "tokens": out.sequences[0, len(prompt):].tolist(),
        # How far the second choice is: far above rounding, or the case would prove nothing.
        "smallest_gap": round(min(float(pair[0] - pair[1]) for pair in top), 5),
    }


def main():
    generation = int(transformers.__version__.split(".")[0])
    prompt = np.random.RandomState(SEED).randint(0, 256, NUM_PROMPT).tolist()
    cases = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in CASES[generation]:
            folder = make_checkpoints.write_checkpoint(pathlib.Path(scratch) / name, name, SEED)
            cases[name] = decode(folder, prompt)
    kept = {
        "made_by": {"transformers": transformers.__version__, "torch": torch.__version__},
        "seed": SEED,
        "prompt_ids": prompt,
        "cases": cases,
    }
    path = pathlib.Path(__file__).parent / "golden" / f"transformers{generation}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept).replace('"cases"', '\n"cases"').replace('}, "', '},\n"') + "\n")


if __name__ == "__main__":
    main()
