# SPDX-License-Identifier: Apache-2.0
"""Types of arguments and results that are plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Union

import numpy as np
from numpy.typing import NDArray


class SupportsDLPack(Protocol):
    """An array of any framework: NumPy, torch, JAX, ... The kernels need it on the CPU."""

    def __dlpack__(self, *, stream: None = ...) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class DeviceStorage(Protocol):
    """A kvfolio.cuda.Storage."""

    @property
    def ordinal(self) -> int: ...

    @property
    def groups(self) -> list[GroupSpec]: ...

    def check(self) -> None: ...


Array = SupportsDLPack
# What a call reads: an array of exactly this type, or ints. No array is converted.
Int32Input = Union[SupportsDLPack, Sequence[int]]
Uint64Input = Union[SupportsDLPack, Sequence[int]]
# What a plan gives.
Int32Array = NDArray[np.int32]

DType = Literal["f64", "f32", "f16", "bf16", "int8", "e4m3", "opaque"]
Format = Literal["hnd", "nhd", "granule"]
Order = Literal["in_order", "unordered"]
Publish = Literal["all", "full_blocks", "nothing"]
VictimPolicy = Literal["lru", "lfu", "longest", "lowest_priority"]
KernelTarget = Literal["auto", "reference", "portable", "avx2", "avx512", "avx512-bf16", "neon"]


@dataclass(frozen=True)
class GroupSpec:
    """Layers with one kind of attention, and the blocks that they share.

    >>> GroupSpec(num_layers=32, num_kv_heads=8, head_dim=128, num_blocks=4096).head_dim_v
    128
    """

    num_layers: int = 1
    num_kv_heads: int = 1
    #: Elements of a row of K, and of V unless head_dim_v says otherwise.
    head_dim: int = 0
    #: -1: as head_dim. 0: there is no V, only one vector for each token.
    head_dim_v: int = -1
    #: Latent caches: V is the first head_dim_v elements of K and is stored once.
    v_is_prefix_of_k: bool = False
    block_size: int = 16
    dtype: DType = "f32"
    #: "granule" is the fastest for attend() on a CPU, above all for bf16 and int8.
    format: Format = "hnd"
    #: Tokens that a query reads, itself included; 0: all.
    window: int = 0
    #: With a window: leading tokens that every query reads too.
    num_sinks: int = 0
    num_blocks: int = 0
    #: With a window: tokens that a running sequence keeps behind it, so that truncate() can take back
    #: as many (SequenceInfo.rewind_from).
    rewind: int = 0

    def __post_init__(self) -> None:
        if self.head_dim_v == -1:
            object.__setattr__(self, "head_dim_v", self.head_dim)


@dataclass(frozen=True)
class RootKey:
    """What makes equal tokens different prompts. Every field is compared in full."""

    model: bytes = b""
    adapter: bytes = b""
    adapter_version: bytes = b""
    #: Set by the server, never by the client.
    tenant_salt: bytes = b""
    #: Raise it when weights change in place.
    epoch: int = 0


@dataclass(frozen=True)
class MediaSpan:
    """Media behind the placeholder tokens [begin, end) of a sequence."""

    begin: int
    end: int
    #: 32 bytes: a digest of the content. All zeros are refused.
    content_id: bytes
    attends_to_itself: bool = False


class Soon(NamedTuple):
    """Tokens of a prompt that will be found, and the sequence that is going to append them."""

    tokens: int
    by: int


class _Opened(NamedTuple):
    sequence: int
    cached_tokens: int


class Opened(_Opened):
    """The pair (sequence, cached_tokens): a new sequence, and how many of its tokens need not be computed.
    Beside the pair stands `soon`, as Manager.soon() says it."""

    soon: Soon | None

    def __new__(cls, sequence: int, cached_tokens: int, soon: Soon | None = None) -> Opened:
        opened = super().__new__(cls, sequence, cached_tokens)
        opened.soon = soon
        return opened

    def __repr__(self) -> str:
        return f"Opened(sequence={self.sequence}, cached_tokens={self.cached_tokens}, soon={self.soon})"


class Pinned(NamedTuple):
    """A pin, and how many tokens of the prefix it holds."""

    pin: int
    pinned_tokens: int


class Admission(NamedTuple):
    """What a prompt would get: cached tokens, and the blocks of each group."""

    cached_tokens: int
    blocks: tuple[int, ...]
    #: As Manager.soon() says it.
    soon: Soon | None = None


class Forgotten(NamedTuple):
    """Blocks that are not findable any more, and pins that ended."""

    blocks: int
    pins: int


class EndedSequence(NamedTuple):
    """A sequence that a call ended, and its caller's name for it."""

    sequence: int
    caller_id: int | None
