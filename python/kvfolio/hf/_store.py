# SPDX-License-Identifier: Apache-2.0
"""Where the keys and values of one layer lie.

A store holds blocks of one layer and knows slots and tables, no sequences. There are three: KernelStore
uses the library's kernels over memory that the library lays out, on a CPU; CudaStore (_cuda.py) does so on a
device, with the package kvfolio-cuda; TorchStore indexes two tensors, on any device. Tensors come and go as
attention hands them over, [batch, heads, tokens, dim].

A slot is block * block_size + offset; -1 is a token that is not stored. A span names what to read of
one row: dense positions [first, end) of which the first `pads` do not exist.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import threading
from typing import Any, Iterator, Sequence

import numpy as np
import torch
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]  # documented, not in __all__

import kvfolio
from kvfolio import _core
from kvfolio._types import DType

Slots = np.ndarray  # int32
_INT8_LEAST = 1e-30

DTYPES: dict[torch.dtype, DType] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "int8",
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """One layer of a cache: ``dtype`` is that of the cache, int8 too."""

    num_blocks: int
    block_size: int
    num_heads: int
    dim_k: int
    dim_v: int
    dtype: torch.dtype

    @property
    def bytes_per_block(self) -> int:
        row = (self.dim_k + self.dim_v) * self.dtype.itemsize + (8 if self.dtype == torch.int8 else 0)
        return self.block_size * self.num_heads * row


@dataclasses.dataclass(frozen=True)
class Span:
    """Tokens [first, end) of a sequence, and how many zero rows stand before them."""

    table: np.ndarray  # int32, the block of each block_size tokens
    first: int
    end: int
    pads: int


class Store(abc.ABC):
    #: What moves the rows.
    engine = "torch"

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape
        self.sizes = shape.num_heads, shape.dim_k, shape.dim_v
        self.device = device
        self._turns = threading.RLock()
        self._last: Any = None  # the stream of the turn before

    def _stream(self) -> Any:
        """The one that this thread's work on the blocks goes to. None: there are none."""
        return None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Any]:
        """Around what starts work on the blocks; gives the stream. It comes behind all work before it, on
        whichever stream: a cache of another thread may have written the blocks that this one found, or still
        read what lay in those that it was given."""
        stream = self._stream()
        with self._turns:
            if self._last is not None and stream != self._last:
                stream.wait_stream(self._last)
            self._last = stream
            yield stream

    def attends(self, query: torch.Tensor) -> bool:
        """Whether attn_implementation="kvfolio" reads the blocks where they lie, and not what gather() gives."""
        return False

    @abc.abstractmethod
    def write(self, keys: torch.Tensor, values: torch.Tensor, slots: Slots) -> None:
        """Writes token t of row b to slots[b * tokens + t]."""

    def exchange(self, keys: torch.Tensor, values: torch.Tensor, slots: Slots, spans: Sequence[Span],
                 dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """write(), then gather()."""
        self.write(keys, values, slots)
        return self.gather(spans, dtype)

    @abc.abstractmethod
    def copy_blocks(self, src: Slots, dst: Slots) -> None: ...

    @abc.abstractmethod
    def _read(self, span: Span, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Fills keys [heads, tokens, dim_k] and values behind the pads."""

    def gather(self, spans: Sequence[Span], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """[rows, heads, tokens, dim] of all rows; every span is equally long, pads included."""
        length = spans[0].pads + spans[0].end - spans[0].first if spans else 0
        size = (len(spans), self.shape.num_heads, length)
        keys = torch.empty(*size, self.shape.dim_k, dtype=dtype, device=self.device)
        values = torch.empty(*size, self.shape.dim_v, dtype=dtype, device=self.device)
        if len(spans) == 1 and not spans[0].pads and length:  # without views of views
            self._read(spans[0], keys[0], values[0])
            return keys, values
        for row, span in enumerate(spans):
            if span.pads:
                keys[row, :, : span.pads] = 0
                values[row, :, : span.pads] = 0
            if span.end > span.first:
                self._read(span, keys[row, :, span.pads :], values[row, :, span.pads :])
        return keys, values


class KernelStore(Store):
    """Blocks in the library's own layout, moved by its kernels."""

    engine = "cpu"

    def attends(self, query: torch.Tensor) -> bool:
        return True

    def __init__(self, shape: Shape, view: kvfolio.View) -> None:
        super().__init__(shape, torch.device("cpu"))
        self.view = view  # of one layer

    @classmethod
    def of_its_own(cls, shape: Shape, granule: bool) -> KernelStore:
        """Over memory that is made for it."""
        spec = kvfolio.GroupSpec(
            num_layers=1,
            num_kv_heads=shape.num_heads,
            head_dim=shape.dim_k,
            head_dim_v=shape.dim_v,
            block_size=shape.block_size,
            num_blocks=shape.num_blocks,
            dtype=DTYPES[shape.dtype],
            format="granule" if granule else "hnd",
        )
        return cls(shape, kvfolio.Storage([spec]).view(0, 0))

    def write(self, keys: torch.Tensor, values: torch.Tensor, slots: Slots) -> None:
        _core.exchange(self.view, lend(keys), lend(values), slots)

    def exchange(self, keys: torch.Tensor, values: torch.Tensor, slots: Slots, spans: Sequence[Span],
                 dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        first, end = spans[0].first, spans[0].end
        if any([span.pads or span.first != first or span.end != end for span in spans]):
            return super().exchange(keys, values, slots, spans, dtype)
        size, shape = (len(spans), self.shape.num_heads, end - first), self.shape
        k, v = torch.empty(*size, shape.dim_k, dtype=dtype), torch.empty(*size, shape.dim_v, dtype=dtype)
        _core.exchange(self.view, lend(keys), lend(values), slots, [span.table for span in spans],
                       first, end, lend(k), lend(v))
        return k, v

    def copy_blocks(self, src: Slots, dst: Slots) -> None:
        kvfolio.copy_blocks(self.view, src, dst)

    def _read(self, span: Span, keys: torch.Tensor, values: torch.Tensor) -> None:
        kvfolio.gather(
            self.view,
            span.table,
            span.end,
            first=span.first,
            count=span.end - span.first,
            k=lend(keys.transpose(0, 1)),
            v=lend(values.transpose(0, 1)),
        )


class Handed:
    """What a layer of one row handed to attention, with room behind it: the next forward adds its own tokens,
    where all of them would be copied again."""

    def __init__(self, store: KernelStore, sequence: int, tokens: int, dtype: torch.dtype) -> None:
        shape = store.shape
        self.sequence = sequence
        self.end = 0  # tokens that it has
        self.room = tokens + max(64, tokens // 8)
        self._keys = torch.empty(1, shape.num_heads, self.room, shape.dim_k, dtype=dtype)
        self._values = torch.empty(1, shape.num_heads, self.room, shape.dim_v, dtype=dtype)
        self._states = _core.LayerStates(store.view, lend(self._keys), lend(self._values))

    def fits(self, sequence: int, held: int, end: int, dtype: torch.dtype) -> bool:
        return (self.end == held and self.sequence == sequence and end <= self.room
                and self._keys.dtype == dtype)

    def extend(self, keys: torch.Tensor, values: torch.Tensor, slots: Slots,
               span: Span) -> tuple[torch.Tensor, torch.Tensor]:
        """As KernelStore.exchange() of its row, without pads and from its first token on."""
        first, self.end = self.end, -1  # until it has them
        self._states.extend(lend(keys), lend(values), slots, span.table, first, span.end)
        self.end = span.end
        return self._keys.narrow(2, 0, span.end), self._values.narrow(2, 0, span.end)


class TorchStore(Store):
    """Two tensors [slots, heads, dim] on any device; int8 with a scale for each token and head."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        super().__init__(shape, device)
        slots = shape.num_blocks * shape.block_size
        size = (slots, shape.num_heads)
        self._parts = [
            torch.zeros(*size, dim, dtype=shape.dtype, device=device) for dim in (shape.dim_k, shape.dim_v)
        ]
        self._scales = (
            [torch.zeros(*size, dtype=torch.float32, device=device) for _ in range(2)]
            if shape.dtype == torch.int8
            else []
        )
        self._last = self._stream()  # of the zeros

    def _stream(self) -> Any:
        return torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

    def write(self, keys: torch.Tensor, values: torch.Tensor, slots: Slots) -> None:
        flat = torch.from_numpy(slots.astype(np.int64)).to(self.device)
        stored = flat >= 0
        rows = [rows_of(keys), rows_of(values)]
        if not bool((slots >= 0).all()):
            flat, rows = flat[stored], [part[stored] for part in rows]
        with self._turn():
            for index, part in enumerate(rows):
                if self._scales:
                    part, scale = _quantize(part)
                    self._scales[index].index_copy_(0, flat, scale)
                self._parts[index].index_copy_(0, flat, part.to(self.shape.dtype))

    def copy_blocks(self, src: Slots, dst: Slots) -> None:
        if len(src) == 0:
            return
        sources, targets = (torch.from_numpy(ids.astype(np.int64)).to(self.device) for ids in (src, dst))
        with self._turn():
            for part in (*self._parts, *self._scales):
                blocks = part.view(self.shape.num_blocks, self.shape.block_size, *part.shape[1:])
                blocks.index_copy_(0, targets, blocks.index_select(0, sources))

    def _read(self, span: Span, keys: torch.Tensor, values: torch.Tensor) -> None:
        size = self.shape.block_size
        positions = np.arange(span.first, span.end)
        slots = span.table[positions // size].astype(np.int64) * size + positions % size
        flat = torch.from_numpy(slots).to(self.device)
        with self._turn():
            for index, target in enumerate((keys, values)):
                part = self._parts[index].index_select(0, flat)
                if self._scales:
                    part = part.float() * self._scales[index].index_select(0, flat)[..., None]
                target.copy_(part.transpose(0, 1))


def lend(tensor: torch.Tensor) -> Any:
    """A tensor on the CPU for one call of a kernel. Tensor.__dlpack__ says the same in Python, which takes
    5 us more: at four tensors a layer that is seen."""
    return to_dlpack(tensor.detach() if tensor.requires_grad else tensor)


def rows_of(states: torch.Tensor) -> torch.Tensor:
    """[batch, heads, tokens, dim] as rows [batch * tokens, heads, dim]; a view where strides allow."""
    return states.detach().transpose(1, 2).flatten(0, 1)


def _quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As dtype.h defines it: one scale for each row of a head."""
    rows = rows.float()
    largest = rows.abs().amax(dim=-1)
    finite = torch.isfinite(largest)
    used = finite & (largest >= _INT8_LEAST)
    scale = torch.where(finite, torch.where(used, largest / 127.0, 0.0), float("nan"))
    inverse = torch.where(used, 127.0 / largest, 0.0)
    elements = (rows * inverse[..., None]).nan_to_num(0.0).round().clamp(-127, 127)
    return elements.to(torch.int8), scale
