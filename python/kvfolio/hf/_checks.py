# SPDX-License-Identifier: Apache-2.0
"""Compares what a model is about to be fed with what its cache holds.

An exception here is raised before a key is written. Two things are no faults of the caller: a text that
the library feeds again from its beginning is computed again, and what cannot be compared generates but
is never findable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ._witness import Feed

if TYPE_CHECKING:
    from ._core import Core


def check_feed(core: Core, feed: Feed) -> None:
    if feed.ids is None:
        if core.naming():
            raise ValueError(
                "prompt_ids were offered, but the decoder is fed embeddings, which cannot be "
                "compared with them: make the cache without prompt_ids"
            )
        return
    factor = core.rows_for(feed.ids.shape[0])
    pads = np.repeat(core.rows.pads, factor) if len(core.rows) else np.zeros(feed.ids.shape[0], int)
    _check_positions(core, feed, feed.ids, torch.from_numpy(pads))
    _check_prompt(core, feed.ids, factor)
    _check_mask(core, feed.mask, feed.ids.shape[1], pads)


def _check_positions(core: Core, feed: Feed, ids: torch.Tensor, pads: torch.Tensor) -> None:
    count = ids.shape[1]
    if feed.positions is None:
        first = core.length if feed.first_position is None else feed.first_position
        actual = first + torch.arange(count)[None]
    elif feed.positions.ndim == 2:
        actual = feed.positions.to("cpu")
    else:
        core.leave_plain(f"positions of {feed.positions.ndim} dimensions")
        return
    relative = torch.arange(count)[None] - pads[:, None]
    if _equal_where_real(actual, relative + core.length):
        return
    if core.length and _equal_where_real(actual, relative) and _seen_before(core, ids):
        core.restart()  # the whole text is fed again; so it is computed again
        return
    core.leave_plain(
        f"positions from {actual[0, 0].item()} on, where the cache holds {core.length} tokens"
    )


def _seen_before(core: Core, ids: torch.Tensor) -> bool:
    overlap = min(ids.shape[1], core.length)
    seen = core.seen.ids[:, :overlap].repeat_interleave(core.rows_for(ids.shape[0]), dim=0)
    return torch.equal(seen, ids[:, :overlap].to("cpu"))


def _check_prompt(core: Core, ids: torch.Tensor, factor: int) -> None:
    if not core.naming():
        return
    assert core.prompt is not None
    stop = min(core.prompt.width, core.length + ids.shape[1])
    offered = core.prompt.ids[core.prompt_rows, core.length : stop].repeat_interleave(factor, dim=0)
    fed = ids[:, : stop - core.length].to("cpu")
    pads = np.repeat(core.rows.pads, factor)[:, None]
    real = torch.from_numpy(np.arange(core.length, stop)[None] >= pads)
    wrong = ((offered != fed) & real).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        raise ValueError(
            f"row {row} is fed token {fed[row, column]} at position {core.length + column}, where "
            f"prompt_ids has {offered[row, column]}: offer the tokens that generate() gets"
        )


def _check_mask(core: Core, mask: Any, count: int, pads: np.ndarray) -> None:
    if mask is None:
        if pads.any():
            raise ValueError("the cache was made with an attention_mask, and this forward has none")
        return
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        core.leave_plain("a mask that is not [rows, tokens]")
        return
    # What the forward reads; a mask that is shorter holds its last positions.
    real = mask[:, : core.length + count].bool().to("cpu").numpy()
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
        core.leave_plain("padding that was not offered with attention_mask=")


def _equal_where_real(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(((actual == expected) | (expected < 0)).all())
