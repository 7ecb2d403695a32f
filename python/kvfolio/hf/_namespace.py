# SPDX-License-Identifier: Apache-2.0
"""The namespace of a model: what makes two equal prompts different.

A key and a value depend on more than the tokens: on every weight, on the adapters that are switched
on, on the type that is computed in, on the rotary embedding, on each function that a forward calls and on
the numbers that those read. A fingerprint digests all of that (see _survey.py). Two models never share a
namespace, not even if they have equal weights: tensors and modules are known by their identity.

What it cannot see: a write that goes around PyTorch's version counters (``parameter.data``, NumPy)
and leaves all of the sampled elements as they were; and what _survey.py names. Call ``pool.reset()``
after such a change.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from typing import Any, Iterable

import numpy as np
import torch

from ._survey import Fact, Survey
from ._trace import Trace

_SAMPLES = 8


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """Its 32 bytes change whenever the model may compute other keys and values."""

    digest: bytes
    known: Known = dataclasses.field(repr=False)
    settings: tuple[Any, ...]
    samples: bytes = dataclasses.field(repr=False)

    def seems_to_hold(self) -> bool:
        """It is that of the model now, but for elements of tensors and arrays."""
        return self.settings == _settings() and self.known.trace.holds()

    def difference(self, other: Fingerprint) -> str:
        """The first thing that differs, for a message."""
        for known, now in itertools.zip_longest(self.known.facts, other.known.facts, fillvalue=("an attribute", ())):
            if known != now:
                return now[0]
        return "elements of a tensor" if self.samples != other.samples else "PyTorch's own settings"


@dataclasses.dataclass(frozen=True)
class Known:
    """What a model carries: the last survey of it, until something changes."""

    trace: Trace
    facts: list[Fact]
    digest: bytes

    def __reduce__(self) -> Any:
        """Of a copy of the model, or of a stored one, nothing is known."""
        return type(None), ()


def fingerprint(model: torch.nn.Module) -> Fingerprint:
    known = vars(model).setdefault(Trace.ATTRIBUTE, None)  # the survey counts it, so it is there before
    if known is None or not known.trace.holds():
        survey = Survey(model)
        known = Known(survey.trace, survey.facts, _digest(map(repr, survey.facts)))
        vars(model)[Trace.ATTRIBUTE] = known
    settings, samples = _settings(), _samples(known.trace)
    digest = _digest([known.digest.hex(), repr(settings)], samples)
    return Fingerprint(digest, known, settings, samples)


def config_fingerprint(config: Any) -> bytes:
    """That of a bare configuration, which says nothing of weights."""
    return _digest([json.dumps(config.to_dict(), sort_keys=True, default=str)])


def _digest(words: Iterable[str], data: bytes = b"") -> bytes:
    digest = hashlib.blake2b(data, digest_size=32)
    for word in words:
        digest.update(word.encode(errors="surrogatepass"))
        digest.update(b"\0")
    return digest.digest()


def _settings() -> tuple[Any, ...]:
    kinds = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    autocast = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds)
    return *autocast, torch.get_float32_matmul_precision(), torch.get_default_dtype()


def _samples(trace: Trace) -> bytes:
    """A few elements of every tensor, so that most writes past the version counters show too; and all
    of NumPy's arrays, which have no counters."""
    groups: dict[Any, list[torch.Tensor]] = {}
    with torch.no_grad():
        for reference in trace.tensors:
            tensor = reference()
            some = None if tensor is None else _some_of(tensor)
            if some is not None:
                groups.setdefault((some.device, some.dtype), []).append(some)
        parts = [torch.cat(group).cpu().view(torch.uint8).numpy().tobytes() for group in groups.values()]
    return b"".join(parts + [np.ascontiguousarray(array).tobytes() for array in trace.arrays])


def _some_of(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    count = tensor.numel()
    step = max(1, count // _SAMPLES)
    try:
        if count == 0:
            return None
        if tensor.is_contiguous():
            return torch.as_strided(tensor, ((count - 1) // step + 1,), (step,))
        return tensor[(0,) * (tensor.ndim - 1)][:: max(1, tensor.shape[-1] // _SAMPLES)]
    except (RuntimeError, NotImplementedError):  # a tensor that wraps others
        return None
