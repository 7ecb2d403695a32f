# SPDX-License-Identifier: Apache-2.0
"""The namespace of a model: what makes two equal prompts different.

It is made of what decides keys and values and is cheap to explain:

- each parameter and buffer: identity, version counter, address, device, type, shape, some elements;
- each module: identity, class, training mode, and the attributes of _NAMED: a norm's epsilon, the factors
  of attention and of the rotary embedding, the adapters that are live or merged with their scaling;
- the values of each configuration, and the function behind the name of its attention;
- autocast, the precision of products, the default type;
- for prompts that are kept, all other attributes of modules that are numbers or words.

Two models never share a namespace, not even with equal weights. What lies behind hooks, functions and
other attributes is not looked at: hooks are watched while they run (_hooks.py), a forward that was
replaced shares nothing (replaced_forward), and docs/huggingface.md names what stays unseen.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import types
import weakref
from collections import ChainMap
from collections.abc import MutableMapping
from typing import Any, Callable, Iterable, Iterator, TypeVar

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PreTrainedModel, masking_utils, modeling_utils

from kvfolio import _core

from ._numbers import number_of

Fact = tuple[str, Any]
T = TypeVar("T")

_SAMPLES = 8
#: They lie where they say.
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PARTS = ("_parameters", "_buffers", "_modules")
_NAMED = ("eps", "variance_epsilon", "scaling", "attention_scaling", "_active_adapter", "_disable_adapters",
          "merged_adapters", "is_causal")
#: Types of attributes that ModuleWatch compares.
_WATCHED = (type(None), bool, int, float, str)
#: Of a configuration: no key depends on them.
_NO_EFFECT = {"use_cache", "return_dict", "output_hidden_states", "pad_token_id", "bos_token_id",
              "eos_token_id", "_name_or_path", "name_or_path"}
#: Packages that wrap a forward without a change of what it computes.
_WRAPPERS = ("torch", "transformers", "accelerate", "peft")


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """Its 32 bytes change whenever the model may compute other keys and values."""

    digest: bytes
    known: Known = dataclasses.field(repr=False)
    settings: tuple[Any, ...]
    samples: bytes = dataclasses.field(repr=False)

    def seems_to_hold(self, now: Known) -> bool:
        """Of the model as it is now, but for elements of tensors."""
        return now.digest == self.known.digest and self.settings == _settings(self.known.lasting)

    def difference(self, other: Fingerprint) -> str:
        """The first thing that differs, for a message."""
        both = itertools.zip_longest(self.known.facts, other.known.facts, fillvalue=("a module", ()))
        for known, now in both:
            if known != now:
                return now[0] if known[0] == now[0] else f"{known[0]}, now {now[0]}"
        return "elements of a tensor" if self.samples != other.samples else "PyTorch's own settings"


def fingerprint(known: Known) -> Fingerprint:
    settings, samples = _settings(known.lasting), known.samples()
    digest = _digest([known.digest.hex(), repr(settings)], samples)
    return Fingerprint(digest, known, settings, samples)


_Table = MutableMapping[torch.nn.Module, "Known"]
_known: tuple[_Table, _Table] = WeakIdKeyDictionary(), WeakIdKeyDictionary()


def known_of(model: torch.nn.Module, lasting: bool = False) -> Known:
    """What is known of a model now: a new look at all of it only if something changed. ``lasting``: for prompts that
    are kept, which have more in their names."""
    table = _known[lasting]
    known = table.get(model)
    if known is None or not known.holds():
        known = table[model] = Known(model, lasting)
    return known


def config_fingerprint(config: Any) -> bytes:
    """That of a bare configuration, which says nothing of weights."""
    return _digest([json.dumps(config.to_dict(), sort_keys=True, default=str)])


class Known:
    """Facts about a model, and what tells in a fraction of the time that they still hold. Modules and
    tensors are referred to weakly, since they are large: what a model has dropped is not held."""

    def __init__(self, model: torch.nn.Module, lasting: bool) -> None:
        self.lasting = lasting
        #: Attributes that are looked at.
        self.attributes = _attributes_of(model) if lasting else _NAMED
        self.facts: list[Fact] = []
        self.names: list[str] = []
        self.modules: list[weakref.ref[torch.nn.Module]] = []
        #: What others have worked out of these facts.
        self.derived: dict[Any, Any] = {}
        self._tensors: list[weakref.ref[torch.Tensor]] = []
        #: Where the elements of each tensor lie that are looked at: on the CPU as TensorWatch takes it, elsewhere as
        #: torch.as_strided() does.
        self._spots: list[tuple[int, int, int, int]] = []
        self._samples: list[tuple[Any, weakref.ref[torch.Tensor], tuple[Any, ...]]] = []
        #: Tensors that accelerate serves are found anew, in these modules.
        self._served: list[weakref.ref[torch.nn.Module]] = []
        self._named: list[tuple[weakref.ref[torch.nn.Module], str]] = []
        self._configs: dict[int, tuple[Any, dict[str, Any]]] = {}
        modules = dict(model.named_modules())
        for name, module in modules.items():
            self.names.append(f"model.{name}" if name else "model")
            self.modules.append(weakref.ref(module))
            self._note_module(self.names[-1], module)
        self._watch = _core.ModuleWatch(list(modules.values()), self.attributes)
        self.is_training = any(module.training for module in model.modules())
        self.kinds = list(dict.fromkeys(type(module) for module in model.modules()))
        self._foreign: str | None = None
        for kind in self.kinds:
            self.facts.append((f"{kind.__qualname__}.forward", _plain(kind.forward)))
            if not _is_own(kind, kind.forward):  # type: ignore[arg-type]  # a class has a hash
                self._foreign = f"{kind.__qualname__}.forward"
        self._attentions = sorted({_attention_of(config) for config, _ in self._configs.values()})
        for place, function in self.attentions():
            self.facts.append((place, _plain(function)))
        self._moved = _references(self._offloaded())
        spots = np.array(self._spots, np.uint64).reshape(-1)
        self._tensor_watch = _core.TensorWatch(self._tensors, torch.Tensor.data_ptr, spots)
        self._values = self._look()
        self.digest = _digest(map(repr, self.facts))

    def derive(self, function: Callable[[Any], T], argument: Any) -> T:
        """function(argument), once as long as these facts hold."""
        if function not in self.derived:
            self.derived[function] = function(argument)
        result: T = self.derived[function]
        return result

    def attentions(self) -> list[tuple[str, Any]]:
        """What stands behind the names of attentions now, and behind those of their masks."""
        places = [f"{kind} {name}" for kind in ("attention", "mask of attention") for name in self._attentions]
        return list(zip(places, _functions(self._attentions)))

    # ---- all of it, once ----

    def _note_module(self, place: str, module: torch.nn.Module) -> None:
        kind = type(module)
        self.facts.append((place, (kind.__qualname__, number_of(kind), number_of(module), module.training)))
        entries = vars(module)
        for part in _PARTS:
            for name, child in entries[part].items():
                self._note_child(f"{place}.{name}", child)
        if "_hf_hook" in entries:
            self._served.append(weakref.ref(module))
        for name, tensor in _offloaded(module):
            self._note_child(f"{place}.{name}", tensor)
        for name in _NAMED:
            if hasattr(module, name):
                value = getattr(module, name)
                if type(value) not in _WATCHED:
                    self._named.append((weakref.ref(module), name))
                self.facts.append((f"{place}.{name}", _plain(value)))
        self.facts += [(f"{place}.{name}", value) for name, value in more_of(module, self.attributes)]
        if "config" in entries:
            self._note_config(f"{place}.config", entries["config"])

    def _note_child(self, place: str, child: Any) -> None:
        if not isinstance(child, torch.Tensor):
            self.facts.append((place, None if child is None else number_of(child)))
        elif child.is_meta:  # its elements lie elsewhere, and each forward leaves another object here
            self.facts.append((place, ("meta", str(child.dtype), tuple(child.shape))))
        else:
            self._tensors.append(weakref.ref(child))
            if (some := _some_of(child)) is not None:
                if child.device.type == "cpu" and type(child) in _PLAIN_TENSORS:
                    (count,), (stride,) = some
                    self._spots.append((len(self._tensors) - 1, count, stride * child.itemsize, child.itemsize))
                else:
                    self._samples.append(((child.device, child.dtype), self._tensors[-1], some))
            kind = (str(child.device), str(child.dtype), tuple(child.shape))
            self.facts.append((place, (number_of(child), *_state_of(child), *kind)))

    def _note_config(self, place: str, config: Any) -> None:
        if id(config) in self._configs or not hasattr(config, "__dict__"):
            return
        self._configs[id(config)] = config, _copied(vars(config))
        for name, value in vars(config).items():
            if hasattr(value, "model_type") and hasattr(value, "to_dict"):
                self._note_config(f"{place}.{name}", value)
            elif name not in _NO_EFFECT:
                self.facts.append((f"{place}.{name}", _plain(value)))

    # ---- whether it still is so ----

    def holds(self) -> bool:
        """All facts are as they were."""
        return self._holds(within=False)

    def holds_within(self) -> bool:
        """So it is in the midst of a forward, when accelerate has weights of some modules in other places."""
        return self._holds(within=True)

    @property
    def hooked(self) -> list[int]:
        """Numbers of the modules that had hooks at the last look."""
        return self._watch.hooked

    def _holds(self, within: bool) -> bool:
        try:
            return (
                self._watch.holds(within)
                and self._look() == self._values
                and (within or not self._served or _are(self._offloaded(), self._moved))
                and all(vars(config) == known for config, known in self._configs.values())
            )
        except (AttributeError, KeyError, RuntimeError, TypeError):
            return False  # something is gone, or another thread is changing it

    def _look(self) -> list[Any]:
        """What is compared by value. Each model's forward waits for it."""
        values: list[Any] = [kind.forward for kind in self.kinds]
        values += _functions(self._attentions)
        try:
            values.append(self._tensor_watch.states())
        except RuntimeError:  # one has no version or no address
            values += [_state_of(reference()) for reference in self._tensors]
        for owner, name in self._named:
            values.append(_plain(getattr(owner(), name)))
        return values

    def _offloaded(self) -> list[torch.Tensor]:
        modules = [module for reference in self._served if (module := reference()) is not None]
        return [tensor for module in modules for _, tensor in _offloaded(module)]

    def samples(self) -> bytes:
        """A few elements of every tensor, so that most writes past the version counters show too."""
        some = self._tensor_watch.samples()
        return b"".join([some, *self._other_samples()]) if self._samples else some

    def _other_samples(self) -> list[bytes]:
        groups: dict[Any, list[torch.Tensor]] = {}
        with torch.no_grad():
            for group, reference, some in self._samples:
                tensor = reference()
                if tensor is not None:
                    groups.setdefault(group, []).append(torch.as_strided(tensor, *some))
            return [torch.cat(group).cpu().view(torch.uint8).numpy().tobytes() for group in groups.values()]

    def replaced_forward(self) -> str | None:
        """The name of a forward that is not its class's own, of which nothing is known."""
        if self._foreign is not None:
            return self._foreign
        for number in self._watch.forwards:
            module = self.modules[number]()
            if module is not None and not _is_wrapped(module):
                return f"{self.names[number]}.forward"
        return None


def _attributes_of(model: torch.nn.Module) -> tuple[str, ...]:
    """_NAMED, and all others that are numbers or words: which of them decide keys, only the code knows."""
    entries = [vars(module) for module in model.modules()]
    kinds = {base for module in model.modules() for base in type(module).__mro__} - set(PreTrainedModel.__mro__)
    names = {name for each in [*entries, *map(vars, kinds)] for name, value in each.items()
             if type(value) in _WATCHED and not name.startswith("_")}
    # peft says _active_adapter there again, once it was set.
    return *_NAMED, *sorted(names - {*_NAMED, *_NO_EFFECT, "training", "active_adapter"})


def more_of(module: torch.nn.Module, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Those of these attributes that are numbers or words, but for _NAMED. Nothing is called for that."""
    if len(names) == len(_NAMED):
        return []
    tables: list[Any] = [vars(module), *map(vars, type(module).__mro__)]
    found = ChainMap(*tables)
    return [(name, found[name]) for name in names[len(_NAMED):] if type(found.get(name, module)) in _WATCHED]


def _nothing() -> None:
    """A weak reference to None, which has none."""


def _references(things: list[Any]) -> list[Callable[[], Any]]:
    return [_nothing if thing is None else weakref.ref(thing) for thing in things]


def _are(things: list[Any], known: list[Callable[[], Any]]) -> bool:
    return len(things) == len(known) and all(map(operator.is_, things, [reference() for reference in known]))


def state_of_module(module: torch.nn.Module) -> Any:
    """The facts that are its own, to be compared while a hook of it runs."""
    entries = vars(module)
    tensors = [*entries["_parameters"].values(), *entries["_buffers"].values()]
    states = [(id(tensor), _state_of(tensor)) for tensor in tensors if tensor is not None]
    named = [_plain(getattr(module, name)) for name in _NAMED if hasattr(module, name)]
    return type(module), module.training, states, named


def _state_of(tensor: Any) -> tuple[int, int]:
    """What changes when a tensor is written to, or gets other memory."""
    version = -1 if tensor.is_inference() else tensor._version
    try:
        return version, tensor.data_ptr()
    except RuntimeError:  # a tensor that wraps others has no memory of its own
        return version, 0


def _plain(value: Any) -> Any:
    """A number or word by its value, other things by their identity."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return tuple((key, _plain(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, torch.Tensor):
        return _state_of(value)
    try:
        return type(value).__qualname__, number_of(value)
    except TypeError:  # it has no weak references: a type of torch, a set, ...
        return repr(value)


def _copied(value: Any) -> Any:
    """What a later comparison with == needs of a configuration, which may be written to."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _offloaded(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights that accelerate keeps in memory beside a module; none that it reads from a disk."""
    for hook in _hooks_of_accelerate(module):
        weights = getattr(hook, "weights_map", None)
        table = getattr(weights, "dataset", weights)
        table = getattr(table, "state_dict", table)
        prefix = getattr(weights, "prefix", "")
        for name, parameter in (*module._parameters.items(), *module._buffers.items()):
            if isinstance(table, dict) and parameter is not None and parameter.is_meta:
                if prefix + name in table:
                    yield name, table[prefix + name]


def _hooks_of_accelerate(module: torch.nn.Module) -> Any:
    hook: Any = vars(module).get("_hf_hook")
    return () if hook is None else getattr(hook, "hooks", [hook])


def _attention_of(config: Any) -> str:
    return str(getattr(config, "_attn_implementation", None))


def _functions(names: list[str]) -> list[Any]:
    """What stands behind the names of attentions, and of their masks."""
    tables = (modeling_utils.ALL_ATTENTION_FUNCTIONS, masking_utils.ALL_MASK_ATTENTION_FUNCTIONS)
    return [table.get(name) for table in tables for name in names]


# ---- forwards ----


def _package(function: Any) -> str:
    """Where the code of a function stands, which a decorator cannot say wrongly."""
    return str(getattr(function, "__globals__", {}).get("__name__", "")).partition(".")[0]


@functools.lru_cache(maxsize=4096)
def _is_own(kind: type, forward: Any) -> bool:
    """Its code, and all that it decorates, is of the package of its class, or of one that decorates forwards."""
    owner = next((base for base in kind.__mro__ if "forward" in vars(base)), kind)
    allowed = (owner.__module__.partition(".")[0], *_WRAPPERS)
    while isinstance(forward, types.FunctionType) and _package(forward) in allowed:
        inner = getattr(forward, "__wrapped__", None)
        if inner is None:
            return True
        forward = inner
    return False


def _is_wrapped(module: torch.nn.Module) -> bool:
    """The forward of an instance is that of its class, or one that accelerate or peft put there."""
    function = _bound_to(module, vars(module)["forward"])
    if function is type(module).forward or _package(function) == "peft":
        return True
    kinds = map(type, _hooks_of_accelerate(module))
    return (
        _package(function) == "accelerate"
        and all(kind.__module__.partition(".")[0] == "accelerate" for kind in kinds)
        and _bound_to(module, vars(module).get("_old_forward")) is type(module).forward
    )


def _bound_to(module: torch.nn.Module, forward: Any) -> Any:
    """The function that this calls with the module, and the arguments of a call as they are; else None."""
    if type(forward) is types.MethodType and forward.__self__ is module:
        return forward.__func__
    if type(forward) is functools.partial and len(forward.args) == 1 and forward.args[0] is module:
        return None if forward.keywords else forward.func
    return None


# ---- elements, settings ----


def _digest(words: Iterable[str], data: bytes = b"") -> bytes:
    digest = hashlib.blake2b(data, digest_size=32)
    for word in words:
        digest.update(word.encode(errors="surrogatepass"))
        digest.update(b"\0")
    return digest.digest()


def _settings(lasting: bool) -> tuple[Any, ...]:
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _devices()]
    switches = [switch() for switch in _SWITCHES.values()] if lasting else ()
    return *autocast, *precisions(), torch.get_default_dtype(), *switches


def precisions() -> tuple[str | None, ...]:
    """Of products, as said in torch's older way and, where it knows it, in the newer one."""
    try:
        said = torch.get_float32_matmul_precision()
    except RuntimeError:  # the newer way was used, and says more than the older one can
        said = None
    return said, *[precision() for precision in _PRECISIONS]


def switches() -> dict[str, bool]:
    """Of torch's ways through attention and products."""
    return {name: switch() for name, switch in _SWITCHES.items()}


def _precisions_of_torch() -> list[Callable[[], str]]:
    getter: Any = getattr(torch._C, "_get_fp32_precision_getter", None)
    places = (("generic", "all"), ("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
              ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"))
    return [] if getter is None else [functools.partial(getter, backend, what) for backend, what in places]


_PRECISIONS = _precisions_of_torch()
_SWITCHES: dict[str, Callable[[], bool]] = {
    "flash": torch.backends.cuda.flash_sdp_enabled,  # they hold on a CPU, too
    "mem_efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
    "mkldnn": torch._C._get_mkldnn_enabled,
    "mkldnn deterministic": torch._C._get_mkldnn_deterministic,
    "deterministic": torch.are_deterministic_algorithms_enabled,
}


@functools.lru_cache(maxsize=1)
def _devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def _some_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Sizes and strides of elements that are spread over a tensor, for torch.as_strided(); None if it has
    no memory to look into."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.numel() == 0:
        return None
    if tensor.is_contiguous():
        count, stride = tensor.numel(), 1
    else:
        count, stride = tensor.shape[-1], tensor.stride(-1)
    step = max(1, count // _SAMPLES)
    some = ((count - 1) // step + 1,), (stride * step,)
    try:
        torch.as_strided(tensor, *some).cpu()
    except (RuntimeError, NotImplementedError):  # a tensor that wraps others
        return None
    return some
