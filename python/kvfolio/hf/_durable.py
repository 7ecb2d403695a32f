# SPDX-License-Identifier: Apache-2.0
"""Names that last: what makes two prompts the same in two processes.

In one process a namespace is made of identities: of objects, addresses, version counters (_namespace.py). None
of them means anything to another process. Here the same things are named by what they hold: each parameter
and buffer by its bytes, each module by its class and the numbers that decide keys, the configuration by its
values, and what computes by its versions and its instruction set. Two models with equal names compute the same
keys; what cannot be named so is refused, with the place where it stands.

The library names what differs by the fields of a ModelIdentity, so that is where all of it goes.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import platform
from typing import TYPE_CHECKING, Any

import torch
import transformers

import kvfolio

from ._code import has_version, name_of_function, texts_of, version_of
from ._layers import LayerKind
from ._namespace import (
    _NAMED,
    _NO_EFFECT,
    Fingerprint,
    Known,
    _devices,
    fingerprint,
    known_of,
    more_of,
    precisions,
    switches,
)

if TYPE_CHECKING:
    from kvfolio.tiers import ModelIdentity

#: Of a configuration: where it came from, or said elsewhere in a name.
_NOT_OF_KEYS = {*_NO_EFFECT, "transformers_version", "architectures", "torch_dtype", "dtype"}
_POSITIONS = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor",
              "max_position_embeddings", "position_embedding_type")


UNSEEN = ("the weights were written to in a way that leaves no trace, so it is not known which keys were computed with these: "
          "compute the prompts again, in a new pool")


class Names:
    """The names of one model, which may change: each state that it is seen in is named once, since all bytes of the
    weights are read for that.

    ``weights``: a revision or digest that the caller gives, for the model as it is now. A later state is named
    by its bytes.
    """

    def __init__(self, weights: str | None, kinds: list[LayerKind | None], groups: list[kvfolio.GroupSpec]) -> None:
        if weights is not None and not weights:
            raise ValueError('weights is "": a revision or a digest of the weights, or None to have one computed')
        self._given = weights
        self._given_for: bytes | None = None
        self._layers = _layers(kinds, groups)
        self._identities: dict[bytes, ModelIdentity] = {}

    def identity(self, model: torch.nn.Module, made_of: Fingerprint) -> ModelIdentity:
        """Of the model, which has this fingerprint."""
        known = self._identities.get(made_of.digest)
        if known is None:
            if self._given is not None and self._given_for is None:
                self._given_for = made_of.digest  # of the first state: the pool is being made
            given = self._given if made_of.digest == self._given_for else None
            known = self._identities[made_of.digest] = identity_of(model, made_of.known, given, self._layers)
        return known

    def check_weights(self, model: torch.nn.Module, made_of: Fingerprint) -> None:
        """A digest that was computed once is computed again: some writes leave no trace (docs/huggingface.md)."""
        if not self.have_weights(model, made_of, {}):
            raise RuntimeError(UNSEEN)

    def have_weights(self, model: torch.nn.Module, made_of: Fingerprint, digests: dict[int, str]) -> bool:
        """Whether the model has the weights now that its name says for when it was `made_of`; `digests`: of models by
        id(), those that were computed before in this check."""
        said = str(self.identity(model, made_of).weights)
        if made_of.digest == self._given_for:
            return True
        if id(model) not in digests:
            digests[id(model)] = f"sha256:{weights_digest(model)}"
        return said == digests[id(model)]

    def is_given(self, made_of: Fingerprint) -> bool:
        """The caller speaks for these weights, and nothing is computed of them."""
        return made_of.digest == self._given_for

    def root(self, model: torch.nn.Module, made_of: Fingerprint) -> bytes:
        """What takes the place of the fingerprint in a root key."""
        digest = hashlib.sha256()
        for field in sorted(vars(self.identity(model, made_of)).items()):
            digest.update(repr(field).encode())
        return digest.digest()


class Unchecked:
    """Models whose keys were named and not stored yet, as each was when its caches were made, until its weights were
    looked at again. They are kept alive: what is not there can be named no more. Under the lock of the pool."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._states: dict[tuple[int, bytes], tuple[torch.nn.Module, Fingerprint, list[kvfolio.RootKey]]] = {}

    def add(self, model: torch.nn.Module, made_of: Fingerprint, root: kvfolio.RootKey) -> None:
        roots = self._states.setdefault((id(model), made_of.digest), (model, made_of, []))[2]
        if root not in roots:
            roots.append(root)

    def costs_nothing(self) -> bool:
        """No digest is to be computed."""
        return all(self._names.is_given(made_of) for _, made_of, _ in self._states.values())

    def check(self) -> list[kvfolio.RootKey]:
        """Returns the roots of what cannot be known any more, since the model was changed since: an earlier write may
        have left no trace. RuntimeError for a model that such a write changed. Forgets none of them, so that a check
        that is interrupted is made again: clear() comes when what was found has been acted on."""
        lost: list[kvfolio.RootKey] = []
        digests: dict[int, str] = {}
        for model, made_of, roots in self._states.values():
            if self._names.have_weights(model, made_of, digests):
                continue
            if fingerprint(known_of(model, lasting=True)).digest == made_of.digest:
                raise RuntimeError(UNSEEN)
            lost += roots
        return lost

    def clear(self) -> None:
        self._states = {}


def tiers_module() -> Any:
    """kvfolio.tiers, which says what to install where it is not there."""
    from kvfolio import tiers

    return tiers


def identity_of(model: torch.nn.Module, known: Known, weights: str | None, layers: str) -> ModelIdentity:
    whole: Any = model.config
    config = whole.get_text_config(decoder=True)
    settings = [f"{kind} {torch.is_autocast_enabled(kind)} {torch.get_autocast_dtype(kind)}" for kind in _devices()]
    identity: ModelIdentity = tiers_module().ModelIdentity(
        model=f"{type(model).__name__} {_digest_of(_model_facts(model, known))}",
        weights=weights or f"sha256:{weights_digest(model)}",
        tokenizer="token ids",  # keys are those of ids
        model_dtype=f"{model.dtype}, autocast {', '.join(settings)}, default {torch.get_default_dtype()}",
        positions=_text({name: getattr(config, name) for name in _POSITIONS if hasattr(config, name)}),
        engine=_engine(model, known),
        layers=layers,
    )
    return identity


def weights_digest(model: torch.nn.Module) -> str:
    """SHA-256 of the names, types, shapes and bytes of all parameters and buffers.

    Raises ValueError for one whose elements cannot be read, by its name: then only the caller can say what they are.
    """
    digest = hashlib.sha256()
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    with torch.no_grad():
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
            try:
                if tensor.is_meta or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                    raise RuntimeError(f"a {type(tensor).__name__} on {tensor.device}")
                plain = tensor.detach().cpu().contiguous().reshape(-1)
                digest.update(plain.view(torch.uint8).numpy().data)
            except (RuntimeError, NotImplementedError, TypeError) as error:
                raise ValueError(
                    f"the elements of {name} cannot be read ({error}), so no digest of the weights can be made: give "
                    "weights= with their revision"
                ) from error
    return digest.hexdigest()


def _model_facts(model: torch.nn.Module, known: Known) -> list[str]:
    """Of the configuration and of each module: all that decides keys beside weights and positions."""
    config: Any = model.config
    facts = [_text({name: value for name, value in config.to_dict().items() if name not in (*_NOT_OF_KEYS, *_POSITIONS)})]
    sources: set[str] = set()
    for name, module in model.named_modules():
        kind = type(module)
        sources.update(base.__module__ for base in kind.__mro__)
        facts.append(f"{name} {kind.__module__}.{kind.__qualname__} {module.training}")
        for attribute in _NAMED:
            if hasattr(module, attribute):
                facts.append(f"{name}.{attribute} {_text(getattr(module, attribute), f'{name}.{attribute}')}")
        facts += [f"{name}.{attribute} {_text(value)}" for attribute, value in more_of(module, known.attributes)]
    # Packages have versions (see _engine()); other code is named by its text.
    facts += texts_of(module for module in sources if not has_version(module))
    return facts


def _engine(model: torch.nn.Module, known: Known) -> str:
    """What computes keys and values: another of these may round in another way."""
    classes = {base for kind in known.kinds for base in kind.__mro__}
    packages = {base.__module__.partition(".")[0] for base in classes} - {"torch", "transformers"}
    versions = [f"{package} {version}" for package in sorted(packages) if (version := version_of(package))]
    attention = str(getattr(model.config, "_attn_implementation", None))
    if attention == "kvfolio":
        attention += f" {kvfolio.__version__} {os.environ.get('KVFOLIO_KERNEL') or kvfolio.kernel_targets()[-1]}"
    return ", ".join([
        f"transformers {transformers.__version__}",
        f"torch {torch.__version__}",
        *versions,
        f"attention {attention} {_digest_of(_attentions(known))}",
        f"products {_text(precisions())} {_text(switches())} {_text(_told())}",
        f"{model.device.type} {torch.backends.cpu.get_cpu_capability()} {instruction_sets()}",
    ])


def _attentions(known: Known) -> list[str]:
    """Of the model and of its parts. A word may have another function behind it in another process."""
    return [f"{place} {name_of_function(place, function, _text)}" for place, function in known.attentions()]


def _told() -> dict[str, str]:
    """What the libraries of products are told by the environment, which they read once."""
    return {name: value for name, value in os.environ.items()
            if name.startswith(("ONEDNN_", "DNNL_", "MKL_", "OPENBLAS_CORE", "BLIS_ARCH", "GLIBC_TUNABLES"))
            and not name.endswith(("_VERBOSE", "_NUM_THREADS"))}


def instruction_sets() -> str:
    """Those of the CPU that libraries choose their kernels by."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = said.get("flags", said.get("Features", "")).split()
    wanted = ("avx", "amx", "fma", "f16c", "sse4", "sve", "asimd", "bf16", "i8mm")
    return " ".join([platform.machine(), said.get("vendor_id", ""),
                     *sorted(flag for flag in flags if flag.startswith(wanted))])


def _layers(kinds: list[LayerKind | None], groups: list[kvfolio.GroupSpec]) -> str:
    """Which layers each group has: "0,2;1,3"."""
    of_group = [[str(index) for index, kind in enumerate(kinds) if kind is not None and kind.window == group.window]
                for group in groups]
    return ";".join(",".join(layers) for layers in of_group)


def _digest_of(facts: list[str]) -> str:
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(fact.encode() + b"\0")
    return "sha256:" + digest.hexdigest()


def _text(value: Any, place: str = "the configuration") -> str:
    return json.dumps(_plain(value, place), sort_keys=True)


def _plain(value: Any, place: str) -> Any:
    """Numbers and words, and what is made of them; every other thing is another one in another process."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(each, place) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, place) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_plain(each, place)) for each in value)
    if isinstance(value, torch.Tensor) and not value.is_meta:
        return [str(value.dtype), value.detach().cpu().double().tolist()]
    if isinstance(value, torch.dtype):
        return str(value)
    raise ValueError(f"{place} has a {type(value).__name__}, which has no name that lasts: its prompts cannot be kept")
