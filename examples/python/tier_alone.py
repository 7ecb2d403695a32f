# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/tiers.md: an engine that hashes its blocks by itself, with asyncio."""

import sys
import tempfile

folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()

# readme: begin
import asyncio
import contextlib
import hashlib

import numpy as np
from kvfolio import tiers

names = tiers.ForeignIdentity(engine="my engine 7, H100", model="llama-3-8b", weights="sha256:0f3a",
                              model_dtype="bf16", hash="sha256", hash_seed="none", layout="bf16 HND 16x8x128 tp1")


async def run(tier, op, keys, buffers):
    """How each of them ends. The event loop does other things meanwhile."""
    tickets, ended = tier.submit(op, keys, buffers, timeout=2.0), {}
    arrived, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(tier.event_fd(), arrived.set)
    while len(ended) < len(tickets):
        ended.update(tier.poll())                        # pairs of ticket and result
        arrived.clear()
        with contextlib.suppress(asyncio.TimeoutError):  # what is too late does not wake it
            await asyncio.wait_for(arrived.wait(), 0.05)
    loop.remove_reader(tier.event_fd())
    return [ended[ticket] for ticket in tickets]


async def main():
    blocks = np.random.default_rng(1).integers(0, 256, (8, 65536), np.uint8)  # rows of your cache
    keys = [names.key(hashlib.sha256(block).digest(), salt=b"tenant 7") for block in blocks]
    with tiers.DiskTier(folder, bytes=64 << 20) as disk:
        stored = await run(disk, "store", keys, blocks)
        loaded = await run(disk, "load", keys, back := np.zeros_like(blocks))
    print(f"stored: {stored.count('ok')}, loaded: {loaded.count('ok')}, equal: {(back == blocks).all()}")


asyncio.run(main())
# readme: end
