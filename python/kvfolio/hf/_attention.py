# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="kvfolio": attention over blocks where they lie.

An attention function of transformers gets keys and not the cache. In paged mode a layer's update
returns the new keys with a Place as an attribute; the function reads it and attends over the blocks.
Keys without a Place are all keys (gathered ones, another cache's, or none at all): they go to the
library's own SDPA, as does what the kernels do not do: soft caps, masks of one's own, other devices than the CPU
and cards that kvfolio.cuda attends on.

The mask function returns a LazyMask, which has the shape of a full one and remembers what it was asked for:
causality and windows are the kernels' own. A model may take away leading queries of it (Gemma 4 computes
the last token alone in layers that share keys); whoever reads its elements gets the full mask.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from typing import Any, Callable

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from torch.utils._pytree import tree_map
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

import kvfolio

from ._cuda import CudaStore
from ._keywords import unknown_to_attention
from ._round import Round
from ._store import KernelStore, Store, lend

NAME = "kvfolio"
_threads = threading.local()


def register() -> None:
    """Makes "kvfolio" an attn_implementation of transformers; may be called again."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


@dataclasses.dataclass
class Mask:
    """What the mask function was asked for."""

    padding: torch.Tensor | None  # bool [rows, tokens]
    plain: bool  # causal, with the layer's window, and nothing else
    window: int  # 0: none
    full: Callable[[], torch.Tensor | None]  # bool [rows, 1, queries, keys]
    size: tuple[int, int, int]  # rows, queries, keys
    #: Queries in front that a model took away.
    dropped: int = 0

    @functools.cached_property
    def dense(self) -> torch.Tensor:
        made = self.full()
        assert made is not None  # since allow_is_causal_skip is False
        return made[:, :, self.dropped :]

    def pads(self, end: int) -> np.ndarray | None:
        """Leading pads of each row; None if tokens behind them are masked too."""
        assert self.padding is not None
        real = self.padding[:, :end].to("cpu").numpy()
        leading = (np.cumsum(real, axis=1) == 0).sum(axis=1)
        return leading if (real.sum(axis=1) + leading == end).all() else None

    def drop(self, queries: int) -> Mask:
        """Without so many queries in front."""
        return dataclasses.replace(self, dropped=self.dropped + queries)


class LazyMask(torch.Tensor):
    """[rows, 1, queries, keys], made when an element is read; its own elements take no memory."""

    _kvfolio: Mask

    @staticmethod
    def of(facts: Mask, device: Any) -> LazyMask:
        rows, queries, keys = facts.size
        one = torch.ones(1, dtype=torch.bool, device=device).expand(rows, 1, queries - facts.dropped, keys)
        made: LazyMask = one.as_subclass(LazyMask)
        made._kvfolio = facts
        return made

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _OF_SHAPE:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        if function is torch.Tensor.__getitem__ and isinstance(args[0], LazyMask):
            kept = args[0]._without_leading_queries(args[1])
            if kept is not None:
                return kept
        args, kwargs = tree_map(_dense_of, (args, kwargs or {}))
        return function(*args, **kwargs)

    def _without_leading_queries(self, index: Any) -> LazyMask | None:
        """For [:, :, first:] and [:, :, first:, :]."""
        everything = slice(None)
        if not isinstance(index, tuple) or not 3 <= len(index) <= 4 or not isinstance(index[2], slice):
            return None
        if any(part != everything for place, part in enumerate(index) if place != 2):
            return None
        facts, count = self._kvfolio, self.shape[2]
        first, stop, step = index[2].indices(count)
        if stop != count or step != 1 or first >= count:
            return None
        return LazyMask.of(facts.drop(first), self.device)


_OF_SHAPE = frozenset({
    torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.is_floating_point,
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "is_cuda", "layout",
                                                       "requires_grad")),
})


_MASK_ARGUMENTS = tuple(inspect.signature(masking_utils.sdpa_mask).parameters)[1:]


def _dense_of(thing: Any) -> Any:
    return thing._kvfolio.dense if isinstance(thing, LazyMask) else thing


def mask(batch_size: int, *args: Any, attention_mask: torch.Tensor | None = None,
         **kwargs: Any) -> torch.Tensor:
    """The mask function: what it returns means something to attention() alone."""
    arguments = {**kwargs, "allow_is_causal_skip": False, "attention_mask": attention_mask}
    if "allow_is_bidirectional_skip" in kwargs:
        arguments["allow_is_bidirectional_skip"] = False
    given = dict(zip(_MASK_ARGUMENTS, args), **arguments)
    queries = given["q_length"] if "q_length" in given else len(given["cache_position"])
    facts = Mask(
        padding=attention_mask,
        plain=bool(kwargs.get("allow_is_causal_skip", True)),
        window=given.get("local_size") or 0,
        full=lambda: masking_utils.sdpa_mask(batch_size, *args, **arguments),
        size=(batch_size, int(queries), int(given["kv_length"])),
    )
    return LazyMask.of(facts, kwargs.get("device", "cpu" if attention_mask is None else attention_mask.device))


@dataclasses.dataclass
class Place:
    """Where the keys of one layer lie in one forward."""

    now: Round
    store: Store
    group: int
    window: int
    dtype: torch.dtype

    def gather(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.store.gather(self.now.spans(self.group, self.window), self.dtype)

    def attend(self, query: torch.Tensor, scale: float, sinks: torch.Tensor | None,
               pads: np.ndarray | None) -> torch.Tensor:
        """[rows, queries, heads, dim_v]; queries at pads get zeros."""
        rows, heads, count, _ = query.shape
        q = query.detach() if query.requires_grad else query
        q = q.squeeze(2) if count == 1 else q.transpose(1, 2).flatten(0, 1)
        out = torch.empty(rows * count, heads, self.store.shape.dim_v, dtype=query.dtype, device=query.device)
        if not self.now.uneven:
            self._attend(q, out, None, scale, sinks, pads)
            return out.view(rows, count, heads, -1)
        num_new = np.minimum(self.now.num_new, count)  # a model may have kept the last queries alone
        real = torch.from_numpy(np.arange(count)[None] >= (count - num_new)[:, None]).flatten().to(query.device)
        target = torch.empty(int(num_new.sum()), *out.shape[1:], dtype=out.dtype, device=query.device)
        self._attend(q[real], target, num_new, scale, sinks, pads)
        out.zero_()
        out[real] = target
        return out.view(rows, count, heads, -1)

    def _attend(self, q: torch.Tensor, out: torch.Tensor, num_new: np.ndarray | None, scale: float,
                sinks: torch.Tensor | None, pads: np.ndarray | None) -> None:
        """`num_new` queries of each row; None: equally many."""
        if isinstance(self.store, CudaStore):
            start, trims = self._lengths(self._num_new(q, num_new), pads)
            self.store.attend(q, out, self.now.groups[self.group].table, start, self.now.lengths, trims, scale,
                              self.window, sinks)
            return
        assert isinstance(self.store, KernelStore)
        batch = self.now.batches.get((self.group, len(q))) if pads is None else None
        if batch is None:
            batch = self._batch(self._num_new(q, num_new), pads)
        lse = None if sinks is None else torch.empty(*q.shape[:2], dtype=torch.float32)
        kvfolio.attend(lend(q), self.store.view, batch, out=lend(out),
                       lse=None if lse is None else lend(lse), scale=scale, window=self.window, pool=_thread_pool())
        if sinks is not None:
            # A sink is one more key with a score of its own and no value: the sum grows by it.
            assert lse is not None
            share = torch.sigmoid(lse - sinks.detach().float()[None])
            out.mul_(share[..., None].to(out.dtype))

    def _num_new(self, q: torch.Tensor, num_new: np.ndarray | None) -> np.ndarray:
        rows = len(self.now.pads)
        return np.full(rows, len(q) // rows) if num_new is None else num_new

    def _lengths(self, num_new: np.ndarray, pads: np.ndarray | None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The first query of each row, and what is trimmed."""
        lengths = self.now.lengths
        start = np.zeros(len(num_new) + 1, np.int32)
        np.cumsum(num_new, out=start[1:])
        hidden = None
        if pads is not None:
            # Pads that the cache was not told of are tokens of its sequences, and are not read.
            hidden = np.maximum(pads - self.now.pads, 0).astype(np.int32)
            hidden = np.minimum(hidden, lengths) if hidden.any() else None
        return start, {} if hidden is None else dict(trim_sinks=np.zeros_like(hidden), trim_first_kept=hidden)

    def _batch(self, num_new: np.ndarray, pads: np.ndarray | None) -> Any:
        start, trims = self._lengths(num_new, pads)
        batch = kvfolio.Batch(start, self.now.lengths, self.now.groups[self.group].table, **trims)
        if pads is None:
            self.now.batches[self.group, int(start[-1])] = batch
        return batch


def _thread_pool() -> Any:
    """One for each thread that runs models; as many workers as PyTorch takes."""
    count = torch.get_num_threads()
    if count == 1:
        return None
    if getattr(_threads, "count", 0) != count:
        _threads.pool, _threads.count = kvfolio.ThreadPool(count), count
    return _threads.pool


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What transformers calls for each layer."""
    if dropout:
        raise ValueError(f"dropout {dropout}: kvfolio attends for inference only")
    if kwargs.get("is_causal") is False and attention_mask is not None and _says_is_causal(type(module).forward):
        del kwargs["is_causal"]  # GPT-2 of 4.57: where a mask says it
    strange = unknown_to_attention(kwargs, getattr(module, "is_causal", True))
    if strange is not None:
        raise ValueError(f"kvfolio's attention does not take {strange}")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    place: Place | None = getattr(key, "_kvfolio", None)
    facts: Mask | None = getattr(attention_mask, "_kvfolio", None)
    if getattr(value, "_kvfolio", None) is not place:
        raise ValueError(
            "this model changes its keys or values behind the cache, and kvfolio's attention reads what the cache "
            'holds: choose attn_implementation="sdpa" or "eager"'
        )
    if place is None:
        return _dense(module, query, key, value, attention_mask, facts, scale, s_aux, softcap)
    place.now.unattended = None
    if getattr(module, "is_causal", True) is False:
        raise ValueError(
            f"{type(module).__name__}.is_causal is False, and kvfolio attends causally over what lies in blocks"
        )
    if sliding_window is not None and place.window and sliding_window != place.window:
        raise ValueError(f"a window of {sliding_window} over a layer that keeps {place.window} tokens")
    pads, plain = _plain(facts, attention_mask, place, query.shape[2])
    out = None
    if plain and softcap is None and place.store.attends(query):
        try:
            out = place.attend(query, scale, s_aux, pads)
        except kvfolio.Unsupported:  # this card: the store says so from now on
            if place.store.attends(query):
                raise
    if out is None:
        key, value = place.gather()
        return _dense(module, query, key, value, attention_mask, facts, scale, s_aux, softcap)
    if torch.is_grad_enabled() and query.requires_grad:
        out = _WithoutGradient.apply(out, query)  # type: ignore[no-untyped-call]
    return out, None


class _WithoutGradient(torch.autograd.Function):
    """The kernels compute no gradients: backward() says so, where it would leave a part of them out."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "kvfolio's attention computes no gradients: choose attn_implementation=\"sdpa\" or \"eager\", or run the "
            "forward under torch.no_grad()"
        )


@functools.lru_cache(maxsize=256)
def _says_is_causal(forward: Callable[..., Any]) -> bool:
    """The attention module itself gives is_causal= to its attention function; else it is its caller's."""
    code = getattr(inspect.unwrap(forward), "__code__", None)
    return code is not None and any(isinstance(names, tuple) and "is_causal" in names for names in code.co_consts)


def _plain(facts: Mask | None, given: torch.Tensor | None, place: Place,
           queries: int) -> tuple[np.ndarray | None, bool]:
    """The pads of each row, and whether the kernels' own masks say it all."""
    count = place.now.count
    if facts is None:
        if given is None and queries != count:
            raise ValueError(f"{queries} queries without a mask, where {count} tokens were fed")
        return None, given is None
    if not facts.plain or facts.window != place.window or queries != count - facts.dropped:
        return None, False
    if facts.padding is None:
        return None, True
    pads = facts.pads(place.now.end)
    return pads, pads is not None


def _dense(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    given: torch.Tensor | None,
    facts: Mask | None,
    scale: float,
    sinks: torch.Tensor | None,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention over all keys in PyTorch, with the full mask."""
    full = given if facts is None else facts.dense
    if full is not None:
        if full.ndim != 4:
            raise ValueError(f"a mask of {full.ndim} dimensions that kvfolio did not make")
        if full.shape[-1] < key.shape[-2]:
            raise ValueError(
                f"{key.shape[-2]} keys and a mask for {full.shape[-1]}: this model changes its keys "
                'behind the cache; choose attn_implementation="sdpa" or "eager"'
            )
        full = full[..., full.shape[-1] - key.shape[-2] :]
    if sinks is None and softcap is None:
        out: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, full, scaling=scale)
        return out
    return _plain_attention(query, key, value, full, scale, sinks, softcap), None


def _plain_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                     full: torch.Tensor | None, scale: float, sinks: torch.Tensor | None,
                     softcap: float | None) -> torch.Tensor:
    per_head = query.shape[1] // key.shape[1]
    scores = torch.matmul(query, repeat_kv(key, per_head).transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if full is not None:
        scores = scores.masked_fill(~full, float("-inf")) if full.dtype == torch.bool else scores + full
    scores = scores.float()
    if sinks is not None:
        columns = sinks.float().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, columns], dim=-1)
    # A query that may read nothing (a pad) gets zeros.
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)[..., : key.shape[2]].to(value.dtype)
    return torch.matmul(weights, repeat_kv(value, per_head)).transpose(1, 2).contiguous()
