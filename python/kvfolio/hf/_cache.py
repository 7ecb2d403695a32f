# SPDX-License-Identifier: Apache-2.0
"""PagedCache: a Cache of transformers whose layers keep their tokens in the blocks of a Pool."""

from __future__ import annotations

import warnings
import weakref
from typing import Any, NamedTuple

import torch
from transformers import cache_utils

from ._core import Core
from ._hooks import watch_hooks
from ._layers import (
    SINCE_5,
    LayerKind,
    UnsupportedModel,
    check_model,
    dropout_at_work,
    layer_kinds,
    reads_ahead,
    rope_depends_on_length,
)
from ._namespace import known_of
from ._pool import Pool
from ._prompt import devices_of, generated, namespace_of, namespace_of_config, prompt_of, prompts_of
from ._witness import parts_of, watch


class PagedLayer(cache_utils.CacheLayerMixin):
    """One layer, as transformers 4.57 and 5.x call it. All state is the core's and the pool's."""

    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, core: Core, index: int, kind: LayerKind) -> None:
        self._core = core
        self._index = index
        self._window = kind.window
        self.is_sliding = bool(kind.window)
        if kind.window:
            self.sliding_window = kind.window

    def __repr__(self) -> str:
        return f"PagedLayer({self._index})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError("copy.deepcopy() the cache, not a layer of it")

    # ---- what a forward calls ----

    def lazy_initialization(self, key_states: torch.Tensor, value_states: Any = None) -> None:
        """Nothing: blocks are taken as tokens come."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        extra = args[0] if args else kwargs.get("cache_kwargs")
        positions = extra.get("cache_position") if isinstance(extra, dict) else None
        first = None if positions is None else int(positions[0])
        return self._core.update(self._index, key_states, value_states, first)

    def get_mask_sizes(self, query_length: int | torch.Tensor) -> tuple[int, int]:
        count = query_length if isinstance(query_length, int) else query_length.shape[0]
        length = self.get_seq_length()
        offset = max(0, length - self._window + 1) if self._window else 0
        return length + count - offset, offset

    def get_seq_length(self, *_: Any) -> int:
        self._core.check_open()  # 4.57 would cut the prompt by the length and fail on an empty one
        return self._core.length

    def get_max_length(self) -> int:
        return self._window or -1

    get_max_cache_shape = get_max_length  # its name until 5.0

    # ---- what generate() calls between forwards ----

    def crop(self, tokens: int) -> None:
        length = self._core.length
        if SINCE_5 and tokens > 0:
            raise ValueError(f"crop({tokens}): since transformers 5 a negative number of tokens to drop")
        keep = tokens if tokens >= 0 and not SINCE_5 else length - abs(tokens)
        self._core.call(self._index, "crop", tokens, lambda: self._core.crop(keep))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._derive("reorder_cache", beam_idx, lambda: beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        def sources() -> list[int]:
            numbers = torch.arange(len(self._core.rows))
            return numbers[torch.as_tensor(indices).to("cpu")].tolist()

        self._derive("batch_select_indices", indices, sources)

    def batch_repeat_interleave(self, repeats: int) -> None:
        def sources() -> list[int]:
            return [row for row in range(len(self._core.rows)) for _ in range(repeats)]

        self._derive("batch_repeat_interleave", repeats, sources)

    def _derive(self, name: str, argument: Any, sources: Any) -> None:
        self._core.call(self._index, name, argument, lambda: self._core.derive(sources()))

    def reset(self) -> None:
        self._core.call(self._index, "reset", None, self._core.reset)

    def activate_past_recording(self) -> None:
        """Assisted decoding in 5.x feeds the whole prompt: a hit that nothing used yet is dropped.
        What a crop may take back is kept anyway."""
        act = self._core.drop_unused_hit
        self._core.call(self._index, "activate_past_recording", None, act)

    def offload(self) -> None:
        raise NotImplementedError("a paged layer is not offloaded by transformers")

    prefetch = offload

    # ---- what others read ----

    @property
    def is_initialized(self) -> bool:
        return self._core.length > 0

    @property
    def batch_size(self) -> int:
        return len(self._core.rows) or -1

    max_batch_size = batch_size

    @property
    def max_cache_len(self) -> int:
        return self.get_max_length()

    @property
    def keys(self) -> torch.Tensor | None:
        """[rows, heads, tokens, dim]: a copy, as the stock cache would hold it."""
        both = self._core.dense(self._index)
        return None if both is None else both[0]

    @property
    def values(self) -> torch.Tensor | None:
        both = self._core.dense(self._index)
        return None if both is None else both[1]


class _EmptyLayer(PagedLayer):
    """A layer that keeps nothing, since it reads what another one keeps."""

    def __init__(self) -> None:
        self.is_sliding = False

    is_initialized = True
    keys = values = None

    def __repr__(self) -> str:
        return "EmptyLayer()"

    def update(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("this layer keeps no keys: the configuration says that it shares them")

    def _nothing(self, *args: Any) -> None: ...

    crop = reorder_cache = batch_select_indices = batch_repeat_interleave = _nothing  # type: ignore[assignment]
    reset = activate_past_recording = offload = prefetch = _nothing

    def get_max_length(self) -> int:
        return -1

    def __getattribute__(self, name: str) -> Any:
        if name in ("batch_size", "max_batch_size"):
            raise AttributeError(name)
        return super().__getattribute__(name)


class Traits(NamedTuple):
    """What is read off a model or a configuration, once."""

    kinds: list[LayerKind | None]
    paged: bool
    unrepeatable: str | None  # why no prompt is shared


def traits_of(model: Any) -> Traits:
    config = getattr(model, "config", model)
    kinds = layer_kinds(config)
    reason = None
    rope = rope_depends_on_length(config)
    if rope is not None:
        reason = (f"rope_type {rope!r} turns a key by the length of its prompt, so a key of one prompt is wrong in "
                  "another: make the cache without prompt_ids")
    if isinstance(model, torch.nn.Module):
        check_model(model)
        reason = reason or reads_ahead(model)
    # Latents are expanded behind the cache, so attention cannot read them from blocks.
    latents = getattr(config.get_text_config(decoder=True), "kv_lora_rank", None)
    return Traits(kinds, config._attn_implementation == "kvfolio" and not latents, reason)


class PagedCache(cache_utils.Cache):
    """A cache for ``generate(past_key_values=...)`` over a pool that many caches share.

    ``model``: the model that will run. Its weights, adapters, types, rotary embedding and attention
    make the namespace, in which prompts are found. A bare configuration says nothing of weights, so
    it needs an explicit ``namespace``. With a model, ``namespace`` is added: a tenant's name, say. Who gives
    one speaks for what the model's object does not show: hooks that act, forwards that were replaced.

    ``prompt_ids`` [rows, tokens], with ``attention_mask`` if rows are padded on the left: what
    generate() will get, also as a tokenizer's output or by its names (``**tokenizer(text)``). What the pool
    has of it is not computed again; ``cached_tokens`` says how many. Without it nothing is looked up, and
    nothing becomes findable before publish().

    The cache attends as the model says: attn_implementation="kvfolio" (see register()) reads blocks
    where they lie, every other one gets gathered keys.

    One thread at a time may use a cache. close() gives its blocks back; so does the garbage
    collector, later.

    Raises UnsupportedModel (a layer that no block can hold; with ``prompt_ids`` also dropout at work and rotary
    embeddings that depend on the length), ValueError (ids or a mask that do not fit, a configuration without
    ``namespace``), TypeError (ids that are no integers), OutOfBlocks from the forward that lacks them.
    """

    def __init__(
        self,
        model: Any,
        pool: Pool,
        *,
        prompt_ids: Any = None,
        attention_mask: Any = None,
        namespace: str | bytes | None = None,
        look_up: bool = True,
        input_ids: Any = None,
        token_type_ids: Any = None,
    ) -> None:
        prompts, mask = prompts_of(prompt_ids, input_ids, attention_mask, token_type_ids)
        if mask is not None and prompts is None:
            raise ValueError("attention_mask belongs to prompt_ids, and there are none")
        known = owner = None
        if isinstance(model, torch.nn.Module):
            known = known_of(model, lasting=pool.names is not None)
            traits = known.derive(traits_of, model)
            owner = watch(known.derive(parts_of, model))
            watch_hooks(model, known)
            engines = pool.engines_for(known.derive(devices_of, model))
            space = namespace_of(model, known, namespace, engines, pool.names)
        elif namespace is None:
            raise ValueError(
                "a configuration says nothing of weights, so prompts of two models with one "
                "configuration would be taken for each other: pass the model, or namespace="
            )
        else:
            traits, space = traits_of(model), namespace_of_config(model, namespace)
        pool.check_kinds(traits.kinds)
        core = Core(pool, traits.kinds, space, traits.paged, owner)
        self._adopt(core)
        if prompts is None:
            return
        reason = traits.unrepeatable or (known and known.is_training and dropout_at_work(model))
        if reason:
            raise UnsupportedModel(reason)
        ids, pads = prompt_of(prompts, mask)
        if known is not None:
            core.unshared = space.unshared(known, pool.acting)
        if core.unshared is not None:
            warnings.warn(
                f"{core.unshared}: nothing is found and nothing is published. If its keys depend on nothing else "
                "that changes, say so by namespace=", stacklevel=2)
        core.offer(ids, pads, look_up)

    def _adopt(self, core: Core) -> None:
        """Before the core has a sequence: nothing is lost, whatever comes in between."""
        self._core = core
        self._finalizer = weakref.finalize(self, core.pool.leave, core)
        self._finalizer.atexit = False  # type: ignore[misc]
        layers = [
            _EmptyLayer() if kind is None else PagedLayer(core, index, kind)
            for index, kind in enumerate(core.kinds)
        ]
        super().__init__(layers=layers)

    @property
    def cached_tokens(self) -> int:
        """Leading tokens of the offered prompt that need not be computed, of a padded batch with the
        pads of the row that has the fewest. 0 once the library has fed all of it again."""
        prompt = self._core.prompt
        return 0 if prompt is None else prompt.hit

    @property
    def token_ids(self) -> torch.Tensor:
        """The tokens that it holds, [rows, tokens], pads included; -1 where embeddings were fed. After a
        forward that failed: what was computed until then."""
        self._core.check_open()
        return self._core.seen.ids.clone()

    @property
    def unshared(self) -> str | None:
        """Why this cache finds and publishes nothing, or None: a hook that changes what the model computes,
        or a forward that was replaced. ``namespace=`` speaks for both."""
        return self._core.unshared

    @property
    def unpublishable(self) -> str | None:
        """What a forward was fed that belongs to no plain prompt, so that publish() refuses; or None."""
        return self._core.unpublishable

    def publish(self, ids: Any) -> list[int]:
        """Makes text findable that generate() returned, prompt included: ``ids`` [rows, tokens], or all of
        its output.

        Each row is compared with what the model was fed; returns for each how many of its leading
        tokens are findable now (with the tail of the last block from close() on). The last token of
        a generation was never fed, so it is not among them.

        Raises RuntimeError if a forward was fed what belongs to no plain prompt (``unpublishable``) or the model has
        changed, ValueError for a row that begins like no row of this cache.
        """
        return self._core.publish(generated(ids))

    def close(self) -> None:
        """Gives the rows back to the pool. What is findable stays until the room is needed."""
        self._core.close()
        self._finalizer.detach()

    def __enter__(self) -> PagedCache:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> PagedCache:
        """A fork: it has the same tokens and shares every block until one of the two writes."""
        twin = PagedCache.__new__(PagedCache)
        twin._adopt(self._core.twin())
        self._core.fork_into(twin._core)
        memo[id(self)] = twin
        return twin

    __copy__ = None

    def __reduce__(self) -> Any:
        raise TypeError("a PagedCache holds blocks of a pool, so it cannot be pickled")

    def __repr__(self) -> str:
        rows, length = len(self._core.rows), self._core.length
        state = "closed" if self._core.closed else (
            f"{rows} row{'' if rows == 1 else 's'} of {length} token{'' if length == 1 else 's'}")
        return f"PagedCache({state})"
