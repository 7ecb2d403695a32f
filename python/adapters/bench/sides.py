# SPDX-License-Identifier: Apache-2.0
"""What the sides of the bench share: names, a kept folder, and their memory."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import os

import numpy as np

IDENTITY = {"weights": "sha256:bench", "model_dtype": "bfloat16", "layout": "NHD"}
TASK_BYTES = 1 << 20  # a job of vLLM is done by one thread; smaller jobs were no faster
TASK_KEYS = 16  # of a task of LMCache, as a request brings


def digest(name):
    return hashlib.sha256(name.to_bytes(8, "little")).digest()


@functools.cache
def rows(count, record_bytes):
    """Memory that begins with a page and was touched, as arenas of hosts are: one for all sides, since how scattered its
    pages are decides how fast a disk reads into it."""
    memory = mmap.mmap(-1, count * record_bytes)
    array = np.frombuffer(memory, np.uint8).reshape(count, record_bytes)
    array.fill(1)
    return array


def views_of(array):
    """Each row as a view over memory of C, as LMCache's are."""
    size = array.shape[1]
    return [memoryview((ctypes.c_ubyte * size).from_address(row.ctypes.data)) for row in array]


def tier_options(folder, record_bytes, count):
    """A disk of ours for four rounds: the oldest of them goes while the newest is stored."""
    return {"directory": str(folder), "bytes": 4 * count * (record_bytes + 8192) + (256 << 20)}


def says_of(text):
    """How a disk tier of ours does its work, of its own description."""
    return ("behind O_DIRECT" if "O_DIRECT" in text.replace("no O_DIRECT", "") else "in the page cache")


OURS_DURABLE = ("no fsync: it survives the process; a segment is synced when it is full, and then survives a failure of "
                "power")
FILES_DURABLE = "no fsync: it survives the process"


class Broken(Exception):
    """A store or a load that failed where none may."""


def remove_files(folder):
    """Of a host that removes none by itself."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.remove(path)
