# SPDX-License-Identifier: Apache-2.0
"""The exceptions of kvfolio, one class for each kind of error.

Every call either does all it says, or raises and changes nothing. Where a call says otherwise
(Step.append_each and its like), the exception has num_done. An argument of a wrong type is a
TypeError of Python.
"""

from __future__ import annotations

from typing import ClassVar


class Error(Exception):
    """What the library answers instead of a result. str() is a sentence with the numbers."""

    code: ClassVar[str] = "error"
    #: Of calls that do one thing for each of many sequences: how many were done. Else None.
    num_done: int | None = None


class InvalidArgument(Error, ValueError):
    """The argument is wrong in every state."""

    code = "invalid argument"


class NotFound(Error, LookupError):
    """The id is unknown, closed, or of another manager."""

    code = "not found"


class FailedPrecondition(Error, RuntimeError):
    """The call is not allowed in this state."""

    code = "failed precondition"


class OutOfBlocks(Error):
    """A group lacks blocks: needed > free + evictable. In blocks, but for sequences, pins, loads and holds."""

    code = "no blocks"
    group: int
    needed: int
    free: int
    evictable: int
    #: Held by sequences, pins, loads and holds.
    pinned: int
    #: Come back when the steps in flight are complete.
    retiring: int
    #: The pinned ones that reserve() keeps.
    reserved: int
    #: Open ones of the manager, as those below.
    sequences: int
    pins: int
    #: An Offload makes them, into blocks that it fills.
    loads: int
    #: An Offload makes them, on blocks that it copies away.
    holds: int
    #: All that the group has.
    num_blocks: int
    #: That the sequences of the call, or the hit of a prompt, hold beside the needed ones.
    kept: int
    #: Needed blocks that the same call may do without another time.
    spared: int
    #: The same call cannot succeed, whatever the others let go of: needed + kept - spared > num_blocks.
    never: bool


class ResourceExhausted(Error, RuntimeError):
    """A fixed table is full: sequences, pins, table entries, or the tokens of a sequence."""

    code = "resource exhausted"


class Aborted(Error, RuntimeError):
    """fail() closed this sequence."""

    code = "aborted"


class OutOfMemory(Error, MemoryError):
    """The system refused memory."""

    code = "out of memory"


class Unsupported(Error, RuntimeError):
    """Valid, but this build or this configuration cannot do it."""

    code = "unsupported"


class Unavailable(Error, RuntimeError):
    """A file, device or server cannot be used now."""

    code = "unavailable"


class TimedOut(Error, TimeoutError):
    """The deadline passed first."""

    code = "timed out"


class Corrupt(Error, RuntimeError):
    """The bytes are not what was written."""

    code = "corrupt"


# By ErrorCode of the library.
_CLASSES: dict[int, type[Error]] = {
    1: InvalidArgument,
    2: NotFound,
    3: FailedPrecondition,
    4: OutOfBlocks,
    5: ResourceExhausted,
    6: Aborted,
    7: OutOfMemory,
    8: Unsupported,
    9: Unavailable,
    10: TimedOut,
    11: Corrupt,
}


def _make(code: int, message: str, num_done: int | None,
          shortage: dict[str, int] | None) -> Error:
    """For the extension."""
    error = _CLASSES.get(code, Error)(message)
    if num_done is not None:
        error.num_done = num_done
    for name, value in (shortage or {}).items():
        setattr(error, name, value)
    return error
