#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small random checkpoints in the Hugging Face form, one folder per variant.

    make_checkpoints.py OUT [--seed N] [VARIANT...]

A checkpoint is a function of (variant, seed): RandomState's streams are frozen in NumPy. That is why
the golden tokens in tests/golden need no stored weights.
"""

import argparse
import json
import pathlib
import zlib

import numpy as np

LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 32,
    "rope_type": "llama3",
}
# form: which transformers wrote config.json. Everything else overrides BASE or steers the files.
VARIANTS = {
    "tied-f32": {"tie": True},
    "untied-f32-v5": {"form": 5, "eos_token_id": [1, 2]},
    "untied-bf16": {"dtype": "BF16", "eos_token_id": None},
    "tied-f16-v5": {"form": 5, "dtype": "F16", "tie": True},
    "sharded-bf16": {"dtype": "BF16", "shards": 3},
    "sharded-f16-v5": {"form": 5, "dtype": "F16", "shards": 2, "tie": True},
    "head-dim": {"head_dim": 24, "hidden_size": 40, "vocab_size": 97},
    "head-dim-v5": {"form": 5, "head_dim": 8, "num_key_value_heads": 1},
    "multi-head": {"num_key_value_heads": 4, "intermediate_size": 50},
    "llama3": {"rope": LLAMA3, "rope_theta": 500000.0, "eos_token_id": None},
    "llama3-v5": {"form": 5, "rope": LLAMA3, "rope_theta": 500000.0, "tie": True,
                  "eos_token_id": None},
    "linear": {"rope": {"factor": 2.5, "rope_type": "linear", "type": "linear"}},
    "linear-v5": {"form": 5, "rope": {"factor": 2.5, "rope_type": "linear"}},
    "mistral-window": {"mistral": True, "sliding_window": 8, "eos_token_id": None},
    "mistral-window-v5": {"form": 5, "mistral": True, "sliding_window": 5, "dtype": "BF16",
                          "eos_token_id": None},
    "mistral-full": {"mistral": True, "sliding_window": None, "tie": True},
}
# Apart from VARIANTS, which tests take one by one. Shapes of attention's tile kernels, for `scripts/gpu pack`.
TILES = {
    # Four query heads for each KV head of 64, a window of 96 positions.
    "tiles-64": {"form": 5, "mistral": True, "sliding_window": 96, "dtype": "BF16", "tie": True, "head_dim": 64,
                 "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "num_hidden_layers": 2},
    # Eight for one of 128.
    "tiles-128": {"dtype": "BF16", "tie": True, "head_dim": 128, "hidden_size": 256, "intermediate_size": 256,
                  "num_attention_heads": 8, "num_key_value_heads": 1, "num_hidden_layers": 2},
}
BASE = {
    "eos_token_id": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}


def config_of(variant):
    options = {"form": 4, "mistral": False, "tie": False, "dtype": "F32", "rope": None,
               "rope_theta": 10000.0} | variant
    family = "Mistral" if options["mistral"] else "Llama"
    config = {
        "architectures": [family + "ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 512,
        "model_type": family.lower(),
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": options["tie"],
        "use_cache": True,
    }
    config |= {key: options.get(key, value) for key, value in BASE.items()}
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    if options["mistral"]:
        config["sliding_window"] = options["sliding_window"]
        config["head_dim"] = options.get("head_dim", None if options["form"] == 4 else head_dim)  # as each of them writes it
    else:
        config |= {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}
        config["head_dim"] = options.get("head_dim", head_dim)
    dtype = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[options["dtype"]]
    theta = options["rope_theta"]
    if options["form"] == 4:
        config |= {"torch_dtype": dtype, "rope_theta": theta, "transformers_version": "4.46.0"}
        config["rope_scaling"] = options["rope"]
        if options["mistral"]:
            del config["rope_scaling"]
    else:
        rope = options["rope"] or {"rope_type": "default"}
        config |= {"dtype": dtype, "pad_token_id": None, "transformers_version": "5.0.0"}
        config["rope_parameters"] = rope | {"rope_theta": theta}
    return dict(sorted(config.items()))


def random_tensors(config, random):
    """Name -> float32 array; sizes such that activations and logits stay near 1."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    head_dim = config["head_dim"] or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def matrix(rows, columns, scale=1.0):
        return (random.standard_normal((rows, columns)) * scale / columns**0.5).astype(np.float32)

    def norm():
        return (1.0 + 0.1 * random.standard_normal(hidden)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors[at + "input_layernorm.weight"] = norm()
        tensors[at + "mlp.down_proj.weight"] = matrix(hidden, wide)
        tensors[at + "mlp.gate_proj.weight"] = matrix(wide, hidden)
        tensors[at + "mlp.up_proj.weight"] = matrix(wide, hidden)
        tensors[at + "post_attention_layernorm.weight"] = norm()
        tensors[at + "self_attn.k_proj.weight"] = matrix(kv, hidden, 1.5)
        tensors[at + "self_attn.o_proj.weight"] = matrix(hidden, q)
        tensors[at + "self_attn.q_proj.weight"] = matrix(q, hidden, 1.5)
        tensors[at + "self_attn.v_proj.weight"] = matrix(kv, hidden)
    tensors["model.norm.weight"] = norm()
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return tensors


def to_bytes(array, dtype):
    if dtype == "BF16":  # round to nearest, ties to even
        bits = array.astype("<f4").view("<u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return array.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_safetensors(path, tensors, dtype):
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, array in tensors.items():
        blob = to_bytes(array, dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_checkpoint(folder, name, seed=0):
    """Writes VARIANTS[name] or TILES[name] into `folder` and returns it."""
    variant = (VARIANTS | TILES)[name]
    config = config_of(variant)
    random = np.random.RandomState((zlib.crc32(name.encode()) + seed) % 2**32)
    tensors = random_tensors(config, random)
    dtype, shards = variant.get("dtype", "F32"), variant.get("shards", 1)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return folder
    names, weight_map = list(tensors), {}
    for index in range(shards):
        shard = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        mine = names[index * len(names) // shards : (index + 1) * len(names) // shards]
        write_safetensors(folder / shard, {name: tensors[name] for name in mine}, dtype)
        weight_map |= dict.fromkeys(mine, shard)
    total = sum(len(to_bytes(array, dtype)) for array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=", ".join(VARIANTS | TILES))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name in args.variants or VARIANTS:
        write_checkpoint(args.out / name, name, args.seed)


if __name__ == "__main__":
    main()
