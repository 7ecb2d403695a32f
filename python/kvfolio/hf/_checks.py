# SPDX-License-Identifier: Apache-2.0
"""Compares what a model is about to be fed with what its cache holds.

An exception here is raised before a key is written. Two things are no faults of the caller: a text that
the library feeds again from its beginning is computed again, and what cannot be compared generates but
is never findable.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from ._ids import SeenIds
from ._keywords import EAGER_OUTPUT
from ._prompt import Prompt
from ._rows import Rows
from ._witness import Feed


_PADDING = (
    "padding that was not offered with attention_mask=: give PagedCache the mask that generate() gets. Where that "
    "gets none, it makes one that hides all pad tokens in front"
)


#: Tokens of a forward that are compared as numbers of Python.
_FEW = 64


class Held(Protocol):
    """What a cache says of what it holds, and what it is told when that cannot be compared."""

    paged: bool
    rows: Rows
    prompt: Prompt | None

    @property
    def length(self) -> int: ...
    @property
    def seen(self) -> SeenIds: ...
    @property
    def prompt_rows(self) -> list[int]: ...
    def naming(self) -> bool: ...
    def rows_for(self, rows: int) -> int: ...
    def leave_plain(self, reason: str) -> None: ...
    def go_back(self, length: int) -> None: ...


def check_feed(core: Held, feed: Feed) -> None:
    if core.paged and feed.hands_out_keys:
        raise ValueError(
            "return_shared_kv_states=True asks for the keys of a layer, of which the model has the new ones alone "
            'with kvfolio\'s attention: choose attn_implementation="sdpa" or "eager"'
        )
    if feed.changing is not None:
        cure = ""
        if feed.changing.startswith(f"{EAGER_OUTPUT}="):
            cure = ', since only eager attention has weights to hand out: choose attn_implementation="eager"'
        core.leave_plain(f"{feed.changing}, beside which tokens have other keys{cure}")
    if feed.ids is None:
        if core.naming():
            raise ValueError(
                "prompt_ids were offered, but the decoder is fed embeddings, which cannot be "
                "compared with them: make the cache without prompt_ids"
            )
        return
    factor = core.rows_for(feed.ids.shape[0])
    if _goes_on(core, feed, feed.ids):
        _check_prompt(core, feed.ids, factor)
        return
    pads = np.repeat(core.rows.pads, factor) if len(core.rows) else np.zeros(feed.ids.shape[0], int)
    _check_positions(core, feed, feed.ids, torch.from_numpy(pads)[:, None])
    _check_prompt(core, feed.ids, factor)
    _check_mask(core, feed.mask, feed.ids, pads)


def _goes_on(core: Held, feed: Feed, ids: torch.Tensor) -> bool:
    """A few tokens behind those that are held, and no pads: what nearly all forwards are, seen at once."""
    rows, count = ids.shape
    if count > _FEW or core.rows.padded:
        return False
    expected = list(range(core.length, core.length + count))
    positions, mask = feed.positions, feed.mask
    if positions is not None and positions.tolist() not in ([expected], [expected] * rows):
        return False
    if feed.cache_position is not None and feed.cache_position.tolist() != expected:
        return False
    if mask is None:
        return True
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or mask.shape[0] != rows:
        return False
    return mask.shape[1] >= core.length + count and bool(mask.all())


def check_text(core: Held, ids: torch.Tensor) -> None:
    """generate() was given this text, of which it will feed what the cache lacks."""
    count = min(ids.shape[1], core.length)
    if not count or ids.shape[0] % len(core.rows):
        return
    factor = core.rows_for(ids.shape[0])
    pads = torch.from_numpy(np.repeat(core.rows.pads, factor))[:, None]
    _check_held(core, ids[:, :count], torch.arange(count)[None].expand(len(ids), -1), pads, blind=True)


# ---- positions ----


def _check_positions(core: Held, feed: Feed, ids: torch.Tensor, pads: torch.Tensor) -> None:
    """`pads` [rows, 1]."""
    rows, count = ids.shape
    steps = torch.arange(count)[None]
    if feed.positions is None:
        first = core.length if feed.cache_position is None else int(feed.cache_position[0])
        positions = (first + steps).expand(rows, -1)
    elif feed.positions.ndim == 2 and feed.positions.shape[0] in (1, rows) and feed.positions.shape[1] == count:
        positions = feed.positions.to("cpu").expand(rows, -1)
    else:
        core.leave_plain(f"positions of shape {list(feed.positions.shape)}")
        return
    if not _equal_where_real(positions, core.length + steps - pads):
        if _follows_mask(positions, feed.mask, core.length):
            core.leave_plain(_PADDING)
        else:
            _check_other_positions(core, ids, positions, pads)
    if feed.cache_position is not None:  # 4.57 makes masks of these, whatever the positions are
        expected = torch.arange(core.length, core.length + count)
        if not torch.equal(feed.cache_position.to("cpu"), expected):
            core.leave_plain(f"a cache_position from {int(feed.cache_position[0])} on, where the cache holds "
                             f"{core.length} tokens")


def _follows_mask(positions: torch.Tensor, mask: Any, length: int) -> bool:
    """The positions go on behind what is held, if those that the mask hides are not counted."""
    rows, count = positions.shape
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        return False
    if mask.shape[0] != rows or mask.shape[1] < length + count:
        return False
    real = mask[:, : length + count].to("cpu").bool()
    expected = real.long().cumsum(dim=1)[:, length:] - 1
    return bool(((positions == expected) | ~real[:, length:]).all())


def _check_other_positions(core: Held, ids: torch.Tensor, positions: torch.Tensor,
                           pads: torch.Tensor) -> None:
    """Below the length stand tokens that are held: the same ones are computed again, others belong to
    another text."""
    count = ids.shape[1]
    places = positions + pads  # dense, as the cache counts
    first = int(places[:, -1].max()) - count + 1
    again = _equal_where_real(positions, first + torch.arange(count)[None] - pads) and first < core.length
    _check_held(core, ids, places, pads)
    if again:
        core.go_back(max(0, first))
        return
    core.leave_plain(f"positions from {int(positions[0, 0])} on, where the cache holds {core.length} tokens")


def _check_held(core: Held, ids: torch.Tensor, places: torch.Tensor, pads: torch.Tensor,
                blind: bool = False) -> None:
    """Raises where the cache holds another token at a dense position; with `blind` not if it holds one that it
    never saw."""
    if not core.length:
        return
    factor = len(ids) // len(core.rows)
    held = core.seen.ids.repeat_interleave(factor, dim=0)
    below = (places >= pads) & (places < core.length)
    known = held.gather(1, places.clamp(0, core.length - 1))
    wrong = ((known != ids.to("cpu")) & below & ((known >= 0) | (not blind))).nonzero()
    if len(wrong) == 0:
        return
    row, column = wrong[0].tolist()
    token = int(known[row, column])
    raise ValueError(
        f"this cache holds {core.length} tokens of another text: row {row} is given token {int(ids[row, column])} "
        f"at position {int(places[row, column] - pads[row])}, where it has "
        f"{token if token >= 0 else 'an embedding'}. Make a PagedCache for each text; it finds what they share"
    )


def _check_prompt(core: Held, ids: torch.Tensor, factor: int) -> None:
    if not core.naming():
        return
    assert core.prompt is not None
    stop = min(core.prompt.width, core.length + ids.shape[1])
    if core.prompt_rows == list(range(len(ids))) and not core.rows.padded:
        if torch.equal(core.prompt.ids[:, core.length : stop], ids[:, : stop - core.length].to("cpu")):
            return
    offered = core.prompt.ids[core.prompt_rows, core.length : stop].repeat_interleave(factor, dim=0)
    fed = ids[:, : stop - core.length].to("cpu")
    pads = np.repeat(core.rows.pads, factor)[:, None]
    real = torch.from_numpy(np.arange(core.length, stop)[None] >= pads)
    wrong = ((offered != fed) & real).nonzero()
    if len(wrong):
        if _is_whole_prompt(core, ids, factor):
            raise ValueError(fed_behind_hit(core, ids.shape[1]))
        row, column = wrong[0].tolist()
        raise ValueError(
            f"row {row} is fed token {fed[row, column]} at position {core.length + column}, where "
            f"prompt_ids has {offered[row, column]}: offer the tokens that generate() gets"
        )


def _is_whole_prompt(core: Held, ids: torch.Tensor, factor: int) -> bool:
    """These tokens begin with the prompt, behind what was found of it."""
    prompt = core.prompt
    if prompt is None or not prompt.unused or not prompt.hit or ids.shape[1] < prompt.width:
        return False
    whole = prompt.ids[core.prompt_rows].repeat_interleave(factor, dim=0)
    return torch.equal(whole, ids[:, : prompt.width].to("cpu"))


def fed_behind_hit(core: Held, count: int) -> str:
    """What to say of more tokens than the prompt has behind what was found."""
    assert core.prompt is not None
    return (
        f"{count} tokens are fed behind the {core.prompt.hit} of {core.prompt.width} prompt tokens that were found: "
        "feed ids[:, cache.cached_tokens:]. If the library feeds the whole prompt here, make the cache without "
        "prompt_ids"
    )


# ---- masks ----


def _check_mask(core: Held, mask: Any, ids: torch.Tensor, pads: np.ndarray) -> None:
    if mask is None:
        if pads.any():
            raise ValueError("the cache was made with an attention_mask, and this forward has none")
        return
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        core.leave_plain("a mask that is not [rows, tokens]")
        return
    rows, count = ids.shape
    end = core.length + count
    if mask.shape[0] != rows or mask.shape[1] < end:
        raise ValueError(
            f"attention_mask is {list(mask.shape)} for {rows} rows of {end} tokens, {core.length} held and "
            f"{count} fed: give one column for each of them. The library would mask what is missing on the right"
        )
    real = mask[:, :end].bool().to("cpu").numpy()
    behind_pads = np.arange(real.shape[1])[None] >= pads[:, None]
    if (real != behind_pads).any():
        if pads.any():
            row, column = np.argwhere(real != behind_pads)[0].tolist()
            said = "masks" if behind_pads[row, column] else "does not mask"
            raise ValueError(
                f"this forward's attention_mask {said} position {column} of row {row}, where the cache got "
                f"{pads[row]} pads on the left and text behind them: what fills a row up behind its end "
                "cannot be masked later. Go on with that row alone, from where its text ends"
            )
        core.leave_plain(_PADDING)


def _equal_where_real(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(((actual == expected) | (expected < 0)).all())
