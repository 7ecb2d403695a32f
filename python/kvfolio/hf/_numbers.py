# SPDX-License-Identifier: Apache-2.0
"""Numbers for objects, given for good: an address and an id() come back for other objects."""

from __future__ import annotations

import itertools
from collections.abc import MutableMapping
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

_numbers: MutableMapping[Any, int] = WeakIdKeyDictionary()
_next_number = itertools.count(1)


def number_of(thing: Any) -> int:
    """The number of an object that can be referred to weakly; else a TypeError."""
    number = _numbers.get(thing)
    if number is None:
        number = next(_next_number)
        # Two threads that ask at once both get the number that stays.
        number = _numbers.setdefault(thing, number)
    return number
