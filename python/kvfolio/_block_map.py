# SPDX-License-Identifier: Apache-2.0
"""block_map(): who holds which block, as text or as a picture."""

from __future__ import annotations

import importlib
import os

import numpy as np

from ._core import Manager
from .errors import InvalidArgument

_FREE, _HELD, _CACHED, _RETIRING = range(4)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _cells(manager: Manager, group: int) -> str:
    """A character for each block."""
    states = manager.block_states(group)
    cells = np.full(len(states), ".", dtype="<U1")
    cells[states == _CACHED] = "-"
    cells[states == _RETIRING] = "~"
    cells[states == _HELD] = "#"
    counts = np.zeros(len(states), np.int32)
    owner = np.full(len(states), -1, np.int32)
    for number, sequence in enumerate(sorted(int(each) for each in manager.sequences())):
        table = np.unique(manager.block_table(sequence, group))
        table = table[table >= 0]
        counts[table] += 1
        owner[table] = number
    for number in np.unique(owner[counts == 1]):
        mine = (counts == 1) & (owner == number) & (states == _HELD)
        cells[mine] = _LETTERS[number % len(_LETTERS)]
    return "".join(cells)


def _caption(manager: Manager, group: int) -> str:
    usage = manager.usage(group)
    return (f"group {group}: {usage.num_blocks} blocks, {usage.held} held, {usage.cached} cached, "
            f"{usage.retiring} retiring, {usage.free} free")


def block_map(manager: Manager, group: int = 0, *, width: int = 72,
              path: str | os.PathLike[str] | None = None) -> str:
    """A character for each block of a group, in rows of `width`.

    path: also draws the map there, as a picture in the format that its ending names; needs
    matplotlib.

    >>> import kvfolio
    >>> m = kvfolio.Manager([kvfolio.GroupSpec(head_dim=8, num_blocks=12, block_size=2)])
    >>> a, _ = m.open([1, 2, 3, 4, 5])
    >>> with m.step() as step:
    ...     step.append(a, [1, 2, 3, 4, 5])
    >>> b = m.fork(a)
    >>> with m.step() as step:
    ...     step.append_each([a, b], [6, 7])
    >>> print(kvfolio.block_map(m))
    ##ab........
    group 0: 12 blocks, 4 held, 0 cached, 0 retiring, 8 free
    # shared or pinned   a-z of one sequence   - cached   ~ retiring   . free
    """
    if width < 1:
        raise InvalidArgument(f"width is {width}, allowed: from 1")
    cells = _cells(manager, group)
    if path is not None:
        _draw(cells, width, _caption(manager, group), path)
    rows = [cells[at:at + width] for at in range(0, len(cells), width)]
    return "\n".join([*rows, _caption(manager, group), "# shared or pinned   "
                      "a-z of one sequence   - cached   ~ retiring   . free"])


def _draw(cells: str, width: int, caption: str, path: str | os.PathLike[str]) -> None:
    try:  # here, since the package does not need matplotlib
        to_rgb = importlib.import_module("matplotlib.colors").to_rgb
        make_figure = importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise ImportError(f"a picture needs matplotlib ({error}): pip install matplotlib") from error

    colors = {".": "#f2f2f2", "-": "#b8c4ce", "~": "#e6c48a", "#": "#1f3a5f"}
    of_one = ["#4c9f70", "#d1495b", "#8e6bbf", "#e08e45", "#3d8fb5", "#a0a83b", "#c76b9b", "#6f7d8c"]
    height = -(-len(cells) // width)
    picture = np.ones((height, width, 3))
    for at, cell in enumerate(cells):
        color = colors.get(cell) or of_one[_LETTERS.index(cell) % len(of_one)]
        picture[at // width, at % width] = to_rgb(color)
    figure = make_figure(figsize=(10, 1 + 10 * height / width))
    axes = figure.add_subplot()
    axes.imshow(picture, interpolation="nearest")
    axes.set_title(caption + "\ndark: shared, colours: one sequence, grey: cached", fontsize=9)
    axes.set_axis_off()
    figure.savefig(path, bbox_inches="tight", dpi=120)
