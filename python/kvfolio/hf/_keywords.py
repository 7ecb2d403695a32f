# SPDX-License-Identifier: Apache-2.0
"""Which arguments of a forward leave keys and values those of its tokens.

A forward takes more than tokens, and what its signature does not name goes on to attention: token types, a
soft cap, masks of packed text, ``is_causal=False``. A key of a later layer that was computed with one of
these is wrong in any other request with the same tokens. So all arguments count as such, known or not,
except those below. python/tests/hf/test_keywords.py reads the arguments that a release of transformers has
from its code, so that new ones are seen.
"""

from __future__ import annotations

from typing import Any, Mapping

#: Compared with what the cache holds, in _checks.py.
COMPARED = frozenset({"input_ids", "inputs_embeds", "attention_mask", "position_ids", "cache_position"})

#: They choose what comes out, and nothing that goes into a key.
OUTPUT_ONLY = frozenset({
    "labels",
    "logits_to_keep",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "return_shared_kv_states",  # of Gemma 4; in paged mode refused in _checks.py
    "use_cache",
})


#: Only eager attention has weights to hand out: models leave another one for it, whose sums are rounded otherwise.
EAGER_OUTPUT = "output_attentions"


def changing(given: Mapping[str, Any], defaults: Mapping[str, Any], config: Any = None) -> str | None:
    """The first argument that may make other keys, as "name=value"; one that is None or at its default was
    not given. `config` is that of the decoder."""
    for name, value in given.items():
        if value is None or name in COMPARED or name in OUTPUT_ONLY or _is_default(value, defaults.get(name)):
            continue
        if name == EAGER_OUTPUT and _keeps_attention(value, config):
            continue
        return f"{name}={_shown(value)}"
    return None


def unknown_to_attention(given: Mapping[str, Any], is_causal: bool) -> str | None:
    """The first keyword that kvfolio's attention would have to obey and does not, as "name=value"."""
    for name, value in given.items():
        if value is None or name in COMPARED or name in OUTPUT_ONLY or name == EAGER_OUTPUT:
            continue
        if name == "is_causal" and value is is_causal:
            continue
        return f"{name}={_shown(value)}"
    return None


def _keeps_attention(value: Any, config: Any) -> bool:
    """It is what the configuration says, which is part of the namespace, or attention is eager anyway."""
    if getattr(config, "_attn_implementation", None) == "eager":
        return True
    return bool(value) == bool(getattr(config, EAGER_OUTPUT, False))


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) in (bool, int, float, str) and type(value) is type(default)
                                and bool(value == default))


def _shown(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"<{type(value).__name__} of {list(value.shape)}>"
    text = repr(value)
    return text if len(text) <= 60 else f"<{type(value).__name__}>"
