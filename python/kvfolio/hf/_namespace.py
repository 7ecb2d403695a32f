# SPDX-License-Identifier: Apache-2.0
"""The namespace of a model: what makes two equal prompts different.

A key and a value depend on more than the tokens: on every weight, on the adapters that are switched
on, on the type that is computed in, on the rotary embedding and on the attention that the layers
below used. fingerprint() digests all of that. Two models never share a namespace, not even if they
have equal weights: a parameter is known by its identity.

What it cannot see: a write that goes around PyTorch's version counters (``parameter.data``, NumPy)
and leaves all of the sampled elements as they were. Call ``pool.reset()`` after such a write.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any, Iterator

import torch
from torch.utils.weak import WeakIdKeyDictionary

# Tensors are numbered for good: an address and an id() come back for other weights.
_numbers: WeakIdKeyDictionary = WeakIdKeyDictionary()
_next_number = itertools.count(1)
_SAMPLES = 8


def fingerprint(model: Any) -> bytes:
    """32 bytes that change whenever the model may compute other keys and values."""
    digest = hashlib.blake2b(digest_size=32)
    for fact in _facts(model):
        digest.update(repr(fact).encode())
        digest.update(b"\0")
    digest.update(_samples(model))
    return digest.digest()


def config_fingerprint(config: Any) -> bytes:
    """That of a bare configuration, which says nothing of weights."""
    text = json.dumps(config.to_dict(), sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


def _number_of(tensor: torch.Tensor) -> int:
    number = _numbers.get(tensor)
    if number is None:
        number = next(_next_number)
        _numbers[tensor] = number
    return number


def _version_of(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _facts(model: Any) -> Iterator[Any]:
    config = model.config.get_text_config(decoder=True)
    yield type(model).__qualname__, model.training
    for name in ("rope_theta", "rope_scaling", "rope_parameters", "_attn_implementation"):
        yield name, getattr(config, name, None)
    yield torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    if torch.cuda.is_available():
        yield torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    yield torch.get_float32_matmul_precision()
    for name, tensor in _tensors(model):
        yield (name, _number_of(tensor), _version_of(tensor), tensor.data_ptr(), tensor.dtype,
               tuple(tensor.shape), str(tensor.device))
    for name, part in model.named_modules():
        # Adapters as peft and transformers switch them, and anything that a hook may add.
        for attribute in ("active_adapters", "active_adapter", "merged_adapters", "disable_adapters",
                          "_disable_adapters", "scaling"):
            value = part.__dict__.get(attribute, getattr(type(part), attribute, None))
            if isinstance(value, property):
                value = _read(part, attribute)
            if value is not None and not callable(value):
                yield name, attribute, value
        hooks = (*part._forward_hooks, *part._forward_pre_hooks)
        if hooks:
            yield name, "hooks", hooks


def _read(part: Any, attribute: str) -> Any:
    try:
        return getattr(part, attribute)
    except Exception as error:  # a property that raises while no adapter is loaded
        return type(error).__name__


def _samples(model: Any) -> bytes:
    """A few elements of every tensor, so that most writes past the version counters show too."""
    parts = []
    for _, tensor in _tensors(model):
        if tensor.numel() == 0 or tensor.is_meta or not tensor.is_floating_point():
            continue
        flat = tensor.detach()
        flat = flat.view(-1) if flat.is_contiguous() else flat[(0,) * (flat.ndim - 1)] if flat.ndim else flat
        step = max(1, flat.numel() // _SAMPLES)
        parts.append(flat[::step][: _SAMPLES + 1].to("cpu", torch.float64))
    return torch.cat(parts).numpy().tobytes() if parts else b""
