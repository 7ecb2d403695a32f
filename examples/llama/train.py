#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the shipped byte-level Llama, models/kjv-bytes, on two CPU cores.

Needed only to train again. On Debian 12:

    apt-get install bible-kjv python3-venv
    python3 -m venv /tmp/venv-train
    /tmp/venv-train/bin/pip install torch safetensors numpy
    /tmp/venv-train/bin/python examples/llama/train.py --out models/kjv-bytes

The text is the King James Bible as Debian's `bible` prints it, one verse a line. Five whole books
are held out; they are never trained on and are written to heldout.txt. The run is a function of
--seed and --steps (and of PyTorch's kernels), not of the clock. The weights are rounded to bf16
first and judged after, so the printed bits per byte are those of the file.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

HELD_OUT_BOOKS = (b"Ruth", b"Jonah", b"Mal", b"Phi", b"Jas")
TOKENS_PER_STEP = 4096
# (end of the phase as a share of all steps, context in bytes): short contexts learn words cheaply,
# the last phase teaches every position up to max_position_embeddings.
PHASES = ((0.55, 256), (0.80, 512), (1.00, 2048))

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": None,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 192,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 6,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 256,
}
HIDDEN = CONFIG["hidden_size"]
HEADS, KV_HEADS = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
HEAD_DIM = CONFIG["head_dim"]


# The modules carry the names of the Hugging Face layout, so that state_dict() is the checkpoint.
class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return F.rms_norm(x, (HIDDEN,), self.weight, CONFIG["rms_norm_eps"])


def linear(num_in, num_out):
    return nn.Linear(num_in, num_out, bias=False)


def rotate(x, cos, sin):  # x: [batch, heads, tokens, head_dim]; halves, not pairs, are rotated
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = linear(HIDDEN, HEADS * HEAD_DIM)
        self.k_proj = linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.v_proj = linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.o_proj = linear(HEADS * HEAD_DIM, HIDDEN)

    def forward(self, x, cos, sin):
        batch, tokens, _ = x.shape

        def heads(y, num):
            return y.view(batch, tokens, num, HEAD_DIM).transpose(1, 2)

        q = rotate(heads(self.q_proj(x), HEADS), cos, sin)
        k = rotate(heads(self.k_proj(x), KV_HEADS), cos, sin)
        v = heads(self.v_proj(x), KV_HEADS)
        # Query head h reads KV head h // (HEADS / KV_HEADS).
        k, v = (y.repeat_interleave(HEADS // KV_HEADS, dim=1) for y in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, tokens, HEADS * HEAD_DIM))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = linear(HIDDEN, CONFIG["intermediate_size"])
        self.up_proj = linear(HIDDEN, CONFIG["intermediate_size"])
        self.down_proj = linear(CONFIG["intermediate_size"], HIDDEN)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()
        self.self_attn, self.mlp = Attention(), MLP()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(CONFIG["vocab_size"], HIDDEN)
        self.model.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.model.norm = RMSNorm()
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02 if "embed" in name else HIDDEN**-0.5)
            if "o_proj" in name or "down_proj" in name:
                nn.init.zeros_(weight)  # every layer starts as the identity
        positions = torch.arange(CONFIG["max_position_embeddings"]).float()
        inverse = CONFIG["rope_theta"] ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
        angles = torch.outer(positions, inverse).repeat(1, 2)  # [positions, head_dim]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):  # [batch, tokens] -> logits [batch, tokens, vocab]
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def read_text(path):
    """The whole text as (train, held out): verses of HELD_OUT_BOOKS are the second."""
    if path:
        text = pathlib.Path(path).read_bytes()
    else:
        text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True)
        text = text.stdout
    parts = ([], [])
    for verse in text.splitlines(keepends=True):
        book = re.match(rb"(\d?[A-Za-z]+)\d+:\d+ ", verse)
        if not book:
            raise SystemExit(f"train.py: expected 'Book1:2 text', found {verse[:40]!r}")
        parts[book[1] in HELD_OUT_BOOKS].append(verse)
    if not all(parts):
        raise SystemExit("train.py: the text has no held-out books or nothing else")
    return b"".join(parts[0]), b"".join(parts[1])


def as_tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


@torch.no_grad()
def bits_per_byte(net, data, window):
    """Consecutive windows, the first byte of each unscored, as `kvfolio generate --perplexity`."""
    nats, scored = 0.0, 0
    for chunk in data.split(window):
        if len(chunk) > 1:
            logits = net(chunk[None, :-1])[0]
            nats += F.cross_entropy(logits.float(), chunk[1:], reduction="sum").item()
            scored += len(chunk) - 1
    return nats / scored / math.log(2)


def save(net, held_out, out):
    """Writes the checkpoint in bf16; returns a float copy of exactly what was written."""
    out.mkdir(parents=True, exist_ok=True)
    rounded = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in net.state_dict().items()}
    save_file(rounded, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (out / "heldout.txt").write_bytes(held_out)
    written = Llama()
    written.load_state_dict({k: v.float() for k, v in rounded.items()})
    return written


def make_optimizers(net):
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    inner = [p for n, p in net.named_parameters() if p.dim() == 2 and "embed" not in n]
    outer = [p for n, p in net.named_parameters() if p.dim() != 2 or "embed" in n]
    return (
        torch.optim.Muon(inner, lr=4e-3, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0),
    )


def lr_scale(step, steps):  # linear warm-up, level, then a straight line to zero
    return min((step + 1) / 50, 1.0, (steps - step) / (0.6 * steps))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1611)
    parser.add_argument("--steps", type=int, default=2800, help=f"of {TOKENS_PER_STEP} bytes")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write")
    parser.add_argument("--text", help="file to train on (default: what `bible` prints)")
    parser.add_argument("--save-every", type=int, default=250, help="steps between checkpoints")
    args = parser.parse_args()

    torch.set_num_threads(2)
    torch.manual_seed(args.seed)
    train_bytes, held_out_bytes = read_text(args.text)
    train, held_out = as_tensor(train_bytes), as_tensor(held_out_bytes)
    net = Llama()
    optimizers = make_optimizers(net)
    peak = [group["lr"] for opt in optimizers for group in opt.param_groups]
    print(f"{sum(p.numel() for p in net.parameters())} parameters, {len(train)} bytes to train on,"
          f" {len(held_out)} held out, seed {args.seed}, {args.steps} steps", flush=True)

    start, mean_loss = time.monotonic(), None
    for step in range(args.steps):
        context = next(c for end, c in PHASES if step < end * args.steps)
        at = torch.randint(len(train) - context, (TOKENS_PER_STEP // context, 1))
        batch = train[at + torch.arange(context + 1)]
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        groups = [group for opt in optimizers for group in opt.param_groups]
        for group, lr in zip(groups, peak):
            group["lr"] = lr * lr_scale(step, args.steps)
        for opt in optimizers:
            opt.step()
            opt.zero_grad(set_to_none=True)

        bits = loss.item() / math.log(2)
        mean_loss = bits if mean_loss is None else 0.98 * mean_loss + 0.02 * bits
        done = step + 1
        if done % 50 == 0:
            print(f"step {done} context {context} train {mean_loss:.4f} bits/byte,"
                  f" {time.monotonic() - start:.0f} s", flush=True)
        if done % args.save_every == 0 or done == args.steps:
            written = save(net, held_out_bytes, args.out)
            scores = {w: bits_per_byte(written, held_out, w) for w in (512, 2048)}
            print(f"step {done} saved; held out: {scores[512]:.4f} bits/byte at 512,"
                  f" {scores[2048]:.4f} at 2048", flush=True)


if __name__ == "__main__":
    main()
