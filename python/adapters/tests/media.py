# SPDX-License-Identifier: Apache-2.0
"""A disk and a Redis for the adapters: their options, and their faults."""

import contextlib
import pathlib
import socket
import subprocess
import time

import pytest

from tier_cache import Server, redis_program


class Disk:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder) / "tier"
        self.options = {"directory": str(self.folder), "bytes": 64 << 20, "segment_bytes": 8 << 20}

    def files(self):
        return [path for path in sorted(self.folder.rglob("*")) if path.is_file() and path.stat().st_size]

    def flip_all(self, payloads):
        """One byte of each of these records, wherever its file has it; how many were found. The tier is closed."""
        found = 0
        for path in self.files():
            data = bytearray(path.read_bytes())
            before = found
            for number, payload in enumerate(payloads):
                begin = data.find(payload[:512])
                if begin >= 0:
                    whole = len(payload) // 4096 * 4096  # the rest is with the record's header
                    data[begin + (7919 * (number + 1)) % (whole or len(payload))] ^= 0x10
                    found += 1
            if found > before:
                path.write_bytes(data)
        return found

    def stop(self):
        pass


class Redis:
    def __init__(self, folder):
        if redis_program() is None:
            pytest.skip("no redis-server here: scripts/redis-here brings one")
        self.server = Server(folder)
        self.options = {"servers": self.server.address, "key_prefix": "t:"}

    def ask(self, *words):
        """A bulk answer, or a list of them."""
        text = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        with socket.create_connection(("127.0.0.1", self.server.port), 2) as connection:
            connection.sendall(text)
            with connection.makefile("rb") as answer:
                first = answer.readline()
                if first.startswith(b"*"):
                    return [answer.read(int(answer.readline()[1:]) + 2)[:-2] for _ in range(int(first[1:]))]
                return answer.read(int(first[1:]))

    def flip_all(self, payloads):
        """One byte of each value, behind its header of 192 bytes."""
        keys = self.ask(b"KEYS", b"*")
        for number, name in enumerate(keys):
            at = 192 + 90 * number
            (byte,) = self.ask(b"GETRANGE", name, b"%d" % at, b"%d" % at)
            self.server.ask("SETRANGE", name, at, bytes([byte ^ 0x10]))
        return len(keys)

    def stop(self):
        self.server.stop()


class FullDisk(Disk):
    """A file system of its own in memory with less room than one segment, so that the first store meets ENOSPC."""

    def __init__(self, folder):
        super().__init__(folder)
        self.options["segment_bytes"] = 4 << 20

    def make_room(self):
        subprocess.run(["mount", "-o", "remount,size=64m", str(self.folder.parent)], check=True)


@contextlib.contextmanager
def full_disk(folder):
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        yield FullDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def check_full_disk(folder, opened, store, exists):
    """What all three hosts see of it. opened(options) is a host, store(host, number) and exists(host, number) are its
    calls, which return whether that went well."""
    with full_disk(folder) as disk, opened(disk.options) as (host, owner):
        for number in range(20):
            assert not store(host, number) and not exists(host, number)
        dropped = {name: count for name, count in owner.counters.items() if name.startswith("store ") and count}
        assert sum(dropped.values()) == 20 and "store ok" not in dropped
        assert owner.tier.stats().no_space > 0 and owner.tier.stats().records == 0
        disk.make_room()
        until = time.monotonic() + 60  # a tier that failed so often is passed over for a while
        while not store(host, 99):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert exists(host, 99)
