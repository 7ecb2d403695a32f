# SPDX-License-Identifier: Apache-2.0
"""Types of arguments and results that are plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Union

import numpy as np
from kvfolio._types import Int32Input, MediaSpan, Publish, RootKey, SupportsDLPack
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ._tiers import Tier

Op = Literal["exists", "load", "store", "erase"]
Result = Literal["ok", "miss", "corrupt", "busy", "timeout", "io_error", "unavailable", "closed"]
Engine = Literal["auto", "io_uring", "threads"]
WritePolicy = Literal["off", "write_through", "second_use"]
LoadEnd = Literal["loaded", "part", "nothing", "recompute", "timeout", "no_blocks", "forgotten"]
# Memory on the CPU: an array of any framework, or anything with the buffer protocol.
Buffer = Union[SupportsDLPack, bytes, bytearray, memoryview]


# ---- what calls take ----


@dataclass(frozen=True)
class ModelIdentity:
    """What decides the bytes of a model's keys and values, beside the spec of the cache.

    Two processes find each other's blocks only if all of it is equal. The first six are required, and one that
    is empty is refused by its name.

    >>> ModelIdentity(model="llama-3-8b", weights="sha256:0f3a", tokenizer="r1", model_dtype="bf16",
    ...               positions="rope 500000", engine="my engine 7, avx2").num_shards
    1
    """

    model: bytes | str = b""
    #: A digest or a revision.
    weights: bytes | str = b""
    tokenizer: bytes | str = b""
    #: The type that the model computes with.
    model_dtype: bytes | str = b""
    #: Parameters of rope and the like.
    positions: bytes | str = b""
    #: Name, revision and instruction set of what computes keys and values.
    engine: bytes | str = b""
    #: With several groups: which layers each has, such as "0-30/2;1-31/2".
    layers: bytes | str = b""
    #: Revision of quantization scales that the model brings.
    scales: bytes | str = b""
    #: Which share of the KV heads this process has, and of how many.
    shard: int = 0
    num_shards: int = 1
    pipeline_rank: int = 0
    num_pipeline_ranks: int = 1
    context_rank: int = 0
    num_context_ranks: int = 1


@dataclass(frozen=True)
class OffloadTier:
    """A tier of an Offload, and how it is used."""

    tier: Tier
    #: "second_use": only records that are used twice. "off": nothing is written or erased there.
    policy: WritePolicy = "write_through"
    #: In flight; more waits its turn.
    store_bytes_max: int = 64 << 20
    load_bytes_max: int = 256 << 20


@dataclass(frozen=True)
class RedisTls:
    """TLS to the servers. Paths of PEM files; without ca_file the system's certificates."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    #: That every certificate must have; empty: the host of the node.
    server_name: str = ""


@dataclass(frozen=True)
class SnapshotSequence:
    """A sequence to save, with what the manager does not keep of it."""

    sequence: int
    #: Exactly its length.
    tokens: Int32Input
    root: RootKey | None = None
    media: Sequence[MediaSpan] = ()
    #: As it was opened; "nothing" is refused.
    publish: Publish = "all"


# ---- what calls give ----


class Done(NamedTuple):
    """How a ticket of Tier.submit() ended: its buffer is the caller's again."""

    ticket: int
    result: Result


class TierHealth(NamedTuple):
    """What a tier says of itself."""

    #: False: it takes nothing now, so it should not be waited for.
    usable: bool
    stores_ok: int
    loads_ok: int
    #: Results other than "ok" and "miss".
    failures: int
    #: Damaged records that it found by itself.
    corrupt_unasked: int
    #: Loads that met a record which another key sealed, or none: each was a "miss".
    of_another_key: int


class DiskStats(NamedTuple):
    """DiskTier.stats(): what is there, and what was counted since it was opened."""

    #: That the files take.
    bytes: int
    records: int
    segments: int
    #: Records that were there when it was opened, and those of them in sealed segments.
    recovered: int
    recovered_by_footer: int
    stored: int
    stored_bytes: int
    loaded: int
    loaded_bytes: int
    #: Records that were not what was stored.
    corrupt: int
    io_errors: int
    no_space: int
    #: Stores that were taken and found no room.
    dropped: int
    #: Records that went with their segment, and those that were written again instead.
    evicted: int
    reinserted: int
    scrubbed_bytes: int
    #: Loads that met a record of another key, or of none: misses.
    of_another_key: int


class DiskFault(NamedTuple):
    """Damage that check_disk() found."""

    file: str
    offset: int
    what: str


class DiskCheck(NamedTuple):
    """What check_disk() found."""

    segments: int
    #: Segments of a writer that was killed.
    unsealed: int
    #: That are right.
    records: int
    record_bytes: int
    damaged: int
    #: Sealed with a key that was not given, or without one: misses here.
    of_another_key: int
    #: Of the damaged ones.
    erased: int
    #: Files that are not of a tier.
    unused: int
    #: The first 100.
    faults: tuple[DiskFault, ...]


class RedisNode(NamedTuple):
    """A server that a RedisTier knows."""

    address: str
    slots: int
    connected: bool
    #: It failed too often, and is tried again later.
    left_alone: bool
    #: The same, for stores.
    stores_alone: bool
    #: It answers that we may not ask: `error` has its words.
    refuses: bool
    #: The last one; empty: none since it answered.
    error: str


class RedisCounters(NamedTuple):
    """What a RedisTier has counted."""

    #: By the server: full, read only, or not allowed.
    stores_refused: int
    redirects: int
    retries: int
    connections: int
    connections_lost: int
    replies_refused: int
    bytes_sent: int
    bytes_received: int
    #: Loads that met a record of another key, or of none: misses.
    of_another_key: int


class OffloadOpened(NamedTuple):
    """A new sequence, and whether more of its tokens may still come."""

    sequence: int
    cached_tokens: int
    pending: bool


class SequenceReady(NamedTuple):
    """A sequence that was pending: append the tokens behind cached_tokens."""

    sequence: int
    cached_tokens: int
    why: LoadEnd


class OffloadLeft(NamedTuple):
    """What drain() still waits for; bool() of it says whether there is any."""

    #: Blocks are not in host memory yet, or a step is in flight.
    blocks: bool
    stores: int
    loads: int
    questions: int

    def __bool__(self) -> bool:
        return self.blocks or self.stores + self.loads + self.questions > 0


class OffloadCounters(NamedTuple):
    """What an Offload has counted."""

    #: Records that entered host memory from the cache, and those that found no room there.
    stores: int
    stores_dropped: int
    #: Blocks that were written to the cache, and their tokens.
    loads: int
    tokens_loaded: int
    #: Records in host memory that did not verify.
    arena_corrupt: int
    tier_stores: int
    tier_stores_dropped: int
    #: Records that came from tiers and verified.
    tier_loads: int
    #: Loads that failed, by result.
    tier_misses: dict[Result, int]
    #: Loads that met damage: those that came and did not verify, and tier_misses["corrupt"].
    tier_corrupt: int
    #: That were pending.
    requests: int
    requests_canceled: int
    requests_timed_out: int
    unknown_completions: int
    #: Times that the manager itself was told to forget.
    manager_forgets: int
    #: The most looks at a block that one poll() took.
    steps_max: int
    #: Blocks that the cache's memory failed to give or to take.
    copies_failed: int


class OffloadTierCounters(NamedTuple):
    """What one tier of an Offload did."""

    stores: int
    #: Given up.
    stores_failed: int
    loads: int
    loads_corrupt: int
    loads_failed: dict[Result, int]
    bytes_stored: int
    bytes_loaded: int
    #: How many took at most 100, 300, 1000, ... 1000000 us, and longer.
    store_latency: tuple[int, ...]
    load_latency: tuple[int, ...]
    store_us: int
    load_us: int
    stores_failed_in_a_row: int
    #: Stores that it was never given.
    stores_dropped: int
    stores_again: int
    pauses: int
    #: Of host memory, now.
    bytes_held: int
    passed_over: bool


class ArenaStats(NamedTuple):
    """The host memory of an Offload."""

    #: The budget.
    bytes: int
    bytes_published: int
    records: int
    pins: int
    writing: int
    quarantined: int
    evictions: int
    refusals: int


class NameEpochs(NamedTuple):
    """What was forgotten, as numbers and digests; there is no text in it."""

    epoch: int = 0
    roots: tuple[tuple[bytes, int], ...] = ()


class SaveStats(NamedTuple):
    """What save() wrote."""

    records: int
    #: What paths share counts once.
    tokens: int
    sequences: int
    #: Of the file.
    bytes: int


class RestoredSequence(NamedTuple):
    """A sequence that restore() opened."""

    sequence: int
    caller_id: int | None
    tokens: NDArray[np.int32]
    #: That came back; compute the others again.
    length: int


class RestoreStats(NamedTuple):
    """What restore() found and did."""

    records: int
    records_loaded: int
    #: That did not verify, or were sealed with another key, or with none.
    records_refused: int
    sections_damaged: int
    #: Ends of prompts in the file, and those cut short by the size of the pool.
    paths: int
    paths_no_room: int
    tokens: int
    sequences: list[RestoredSequence]
