# SPDX-License-Identifier: Apache-2.0
"""kvfolio's disk tier."""

import ctypes

import numpy as np

import cases

NAME = "kvfolio"
NOTE = "DiskTier as it comes; each record has 192 bytes of Offload's header in front"
HEADER = 192  # kRecordHeaderBytes


def _declare(library):
    i32, i64, pointer, text = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
            ("error", text, []),
            ("open", pointer, [text, i64]),
            ("close", None, [pointer]),
            ("describe", text, [pointer]),
            ("run", i32, [pointer, i32, pointer, pointer, i32, pointer, i64, i64, i64, pointer]),
            ("result", text, [i32])):
        function = getattr(library, "kvfolio_peer_disk_" + name)
        function.restype, function.argtypes = result, arguments
    return library


class Peer:
    def __init__(self, library):
        self.library = _declare(cases.load_library(library, "scripts/peers-disk"))

    def version(self):
        return cases.commit()

    def open(self, folder, record_bytes, count):
        return Disk(self.library, folder, record_bytes, count)


class Disk:
    def __init__(self, library, folder, record_bytes, count):
        self.library = library
        self.bytes = HEADER + record_bytes
        self.rows = cases.huge_array((count, record_bytes + 4096), np.uint8)
        self.payloads = self.rows[:, HEADER:HEADER + record_bytes]
        self.results = np.zeros(count, np.int32)
        # Six times what is stored at once: older records go with their segments as time passes.
        budget = max(6 * self.rows.nbytes, 64 << 20)
        self.number = library.kvfolio_peer_disk_open(str(folder / "tier").encode(), budget)
        if not self.number:
            raise RuntimeError(f"kvfolio: {library.kvfolio_peer_disk_error().decode()}")

    def note(self):
        return self.library.kvfolio_peer_disk_describe(self.number).decode()

    def run(self, stores, first, order):
        places = np.asarray(order, np.int32)
        names = places.astype(np.int64) + first
        results = np.full(len(places), -1, np.int32)
        if self.library.kvfolio_peer_disk_run(
                self.number, stores, names.ctypes.data, places.ctypes.data, len(places),
                self.rows.ctypes.data, self.rows.nbytes, self.rows.shape[1], self.bytes,
                results.ctypes.data) != 0:
            raise RuntimeError(f"kvfolio: {self.library.kvfolio_peer_disk_error().decode()}")
        self.results[places] = results

    def store(self, first):
        self.run(1, first, range(len(self.rows)))
        if self.results.any():
            raise RuntimeError(f"kvfolio: a store ended as {self.says(self.results.argmax())}")

    def clear(self):
        """What was loaded is gone."""
        self.payloads.fill(0xee)
        self.results.fill(-1)

    def load(self, first, order):
        self.run(0, first, order)

    def loaded(self, i):
        """The bytes that it says are record i's, or None."""
        return self.payloads[i] if self.results[i] == 0 else None

    def says(self, i):
        return self.library.kvfolio_peer_disk_result(int(self.results[i])).decode()

    def forget(self, first):
        """Nothing: the oldest segment goes by itself, within the time of a store."""

    def close(self):
        self.library.kvfolio_peer_disk_close(self.number)
