# SPDX-License-Identifier: Apache-2.0
"""Small random models of seven families, made from configurations: nothing is downloaded.

The weights are wider than those of a fresh model, so that the two best logits seldom lie close
together and a wrong token of the cache changes the text.
"""

from __future__ import annotations

import functools

import torch
import transformers

VOCAB = 97
EOS = 96  # never in a prompt; the tests let generation run to its length
WINDOW = 8

_COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)


def _llama() -> transformers.PretrainedConfig:
    return transformers.LlamaConfig(**_COMMON)


def _mistral() -> transformers.PretrainedConfig:
    return transformers.MistralConfig(**_COMMON, sliding_window=WINDOW)


def _gemma3() -> transformers.PretrainedConfig:
    kinds = ["sliding_attention", "full_attention"] * 2
    return transformers.Gemma3TextConfig(
        **_COMMON, sliding_window=WINDOW, layer_types=kinds, query_pre_attn_scalar=16, tie_word_embeddings=False
    )


def gemma2() -> transformers.PretrainedConfig:
    """With a soft cap, which the kernels do not have."""
    return transformers.Gemma2Config(**_COMMON, sliding_window=WINDOW, query_pre_attn_scalar=16,
                                     attn_logit_softcapping=20.0)


def _gpt_oss() -> transformers.PretrainedConfig:
    kinds = ["sliding_attention", "full_attention"] * 2
    rope = dict(rope_type="default", rope_theta=10000.0)
    if transformers.__version__.startswith("4."):
        rope_arguments = dict(rope_theta=10000.0, rope_scaling=dict(rope_type="default"))
    else:
        rope_arguments = dict(rope_parameters=rope)
    return transformers.GptOssConfig(
        **_COMMON,
        sliding_window=WINDOW,
        layer_types=kinds,
        num_local_experts=4,
        num_experts_per_tok=2,
        **rope_arguments,
    )


def _deepseek() -> transformers.PretrainedConfig:
    common = {k: v for k, v in _COMMON.items() if k not in ("head_dim", "num_key_value_heads")}
    return transformers.DeepseekV3Config(
        **common,
        num_key_value_heads=4,
        moe_intermediate_size=32,
        first_k_dense_replace=2,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        kv_lora_rank=32,
        q_lora_rank=None,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
    )


def _gemma4() -> transformers.PretrainedConfig:
    """Two sizes of heads, and the last two layers read the keys of the first two."""
    kinds = ["sliding_attention", "full_attention"] * 2
    return transformers.Gemma4TextConfig(
        **_COMMON, sliding_window=WINDOW, layer_types=kinds, global_head_dim=32, num_kv_shared_layers=2,
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB, tie_word_embeddings=False
    )


def gemma3n() -> transformers.PretrainedConfig:
    """Layers that share keys, in all releases."""
    return transformers.Gemma3nTextConfig(
        **_COMMON, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2, hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB, laurel_rank=8,
        activation_sparsity_pattern=[0.0] * 4
    )


_CONFIGS = {
    "llama": _llama,
    "mistral": _mistral,
    "gemma3": _gemma3,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek,
}
if hasattr(transformers, "Gemma4TextConfig"):  # not in 4.57
    _CONFIGS["gemma4"] = _gemma4
FAMILIES = tuple(_CONFIGS)


def make(family: str, dtype: torch.dtype = torch.float32, seed: int = 0, attention: str | None = None,
         width: float = 2.0):
    """A new model; equal arguments give equal weights. With a width of 1 queries and keys are about
    normally distributed."""
    config = _CONFIGS[family]()
    config._attn_implementation = attention or ("eager" if family == "gpt_oss" else "sdpa")
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                noise = torch.randn(parameter.shape, generator=generator) * 0.1
                parameter.add_(noise)
            else:
                scale = width / parameter.shape[-1] ** 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    model = model.to(dtype).eval()
    model.generation_config.pad_token_id = 0
    return model


@functools.lru_cache(maxsize=None)
def shared(family: str, dtype: torch.dtype = torch.float32, seed: int = 0, attention: str | None = None,
           width: float = 2.0):
    """The same, made once: for tests that leave the weights as they are."""
    return make(family, dtype, seed, attention, width)


_GPT = dict(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=128)
_LLAMA_LIKE = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2, max_position_embeddings=128)
#: Others than FAMILIES: what the library's own generate() gives to their decoders differs.
OTHERS = {
    "GPT2": _GPT,
    "GPTBigCode": _GPT,
    "GPTJ": {**_GPT, "rotary_dim": 8},
    "OPT": dict(vocab_size=VOCAB, hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4,
                max_position_embeddings=128, word_embed_proj_dim=64),
    "Bloom": dict(vocab_size=VOCAB, hidden_size=64, n_layer=2, n_head=4),
    "Falcon": dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4),
    "GPTNeoX": _LLAMA_LIKE,
    "Phi3": _LLAMA_LIKE,
    "Qwen2": _LLAMA_LIKE,
    "Qwen3": {**_LLAMA_LIKE, "head_dim": 16},
    "Cohere2": {**_LLAMA_LIKE, "sliding_window": WINDOW},
    "Mixtral": {**_LLAMA_LIKE, "num_local_experts": 4},
    "GraniteMoe": _LLAMA_LIKE,
}


def other(name: str, attention: str = "eager", **arguments):
    arguments = dict(bos_token_id=None, eos_token_id=None, pad_token_id=0) | OTHERS.get(name, _LLAMA_LIKE) | arguments
    config = getattr(transformers, f"{name}Config")(**arguments)
    config._attn_implementation = attention
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(5)  # so that a wrong token changes the text
    model.generation_config.pad_token_id = 0
    return model


def prompt(length: int, seed: int = 0, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(1, EOS, (batch, length), generator=generator)


def padded(lengths: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of these lengths behind left padding, and their mask."""
    width = max(lengths)
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, width - length :] = prompt(length, seed * 100 + row)
        mask[row, width - length :] = 1
    return ids, mask
