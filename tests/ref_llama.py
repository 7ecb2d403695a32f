#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Llama or Mistral forward pass in float64 NumPy: what the engine is compared with.

    ref_llama.py FOLDER 1,2,3 OUT.npy       logits of every position, [positions, vocab] float64
    ref_llama.py FOLDER bits TEXT           bits per byte of a file, by the rule of --perplexity

Independent of the engine: it reads the checkpoint itself and computes whole matrices, no cache.
"""

import json
import pathlib
import sys

import numpy as np


def read_tensors(folder):
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:start]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            raw = data[start + begin : start + end]
            if entry["dtype"] == "BF16":  # the upper half of a float32
                values = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
            else:
                values = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
            tensors[name] = values.astype(np.float64).reshape(entry["shape"])
    return tensors


def inverse_frequencies(config, head_dim):
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    frequency = 1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "linear":
        return frequency / rope["factor"]
    if kind == "llama3":
        wavelength = 2 * np.pi / frequency
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        original = rope["original_max_position_embeddings"]
        smooth = (original / wavelength - low) / (high - low)
        mixed = (1 - smooth) * frequency / rope["factor"] + smooth * frequency
        scaled = np.where(wavelength > original / low, frequency / rope["factor"], mixed)
        return np.where(wavelength < original / high, frequency, scaled)
    assert kind == "default", kind
    return frequency


class RefLlama:
    def __init__(self, folder):
        self.config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        self.tensors = read_tensors(folder)

    def logits(self, tokens):
        c, w, n = self.config, self.tensors, len(tokens)
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        head_dim = c.get("head_dim") or c["hidden_size"] // heads

        def norm(x, name):
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w[name]

        angles = np.arange(n)[:, None] * inverse_frequencies(c, head_dim)
        cos, sin = np.cos(angles), np.sin(angles)

        def rotate(x):  # [heads, n, head_dim]
            a, b = np.split(x, 2, -1)
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        def split(x, count):  # [n, count * head_dim] -> [heads, n, head_dim], groups repeated
            x = x.reshape(n, count, head_dim).transpose(1, 0, 2)
            return np.repeat(x, heads // count, 0)

        distance = np.arange(n)[:, None] - np.arange(n)[None, :]
        visible = (distance >= 0) & (distance < (c.get("sliding_window") or n))
        x = w["model.embed_tokens.weight"][np.asarray(tokens)]
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            h = norm(x, at + "input_layernorm.weight")
            q, k, v = (split(h @ w[f"{at}self_attn.{p}_proj.weight"].T, count)
                       for p, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
            scores = rotate(q) @ rotate(k).transpose(0, 2, 1) / np.sqrt(head_dim)
            scores -= scores.max(-1, keepdims=True)  # in place: they are the largest matrices
            np.exp(scores, out=scores)
            scores *= visible
            scores /= scores.sum(-1, keepdims=True)
            attended = scores @ v
            attended = attended.transpose(1, 0, 2).reshape(n, heads * head_dim)
            x = x + attended @ w[at + "self_attn.o_proj.weight"].T
            h = norm(x, at + "post_attention_layernorm.weight")
            gate = h @ w[at + "mlp.gate_proj.weight"].T
            up = h @ w[at + "mlp.up_proj.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T
        tied = c.get("tie_word_embeddings", False)
        output = w["model.embed_tokens.weight" if tied else "lm_head.weight"]
        return norm(x, "model.norm.weight") @ output.T

    def bits(self, tokens):
        """Bits per token over consecutive windows of max_position_embeddings, the first token of
        each unscored, and how many tokens that scores."""
        length, bits, scored = self.config["max_position_embeddings"], 0.0, 0
        for first in range(0, len(tokens), length):
            window = np.asarray(tokens[first : first + length])
            if len(window) < 2:
                break
            logits = self.logits(window)[:-1]
            top = logits.max(-1, keepdims=True)
            log_probs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
            bits -= log_probs[np.arange(len(window) - 1), window[1:]].sum() / np.log(2)
            scored += len(window) - 1
        return bits / scored, scored


def main(folder, ids, path):
    reference = RefLlama(folder)
    if ids == "bits":
        per_token, scored = reference.bits(list(pathlib.Path(path).read_bytes()))
        print(f"{per_token:.6f} bits per byte, {scored} scored")
    else:
        np.save(path, reference.logits([int(token) for token in ids.split(",")]))


if __name__ == "__main__":
    main(*sys.argv[1:])
