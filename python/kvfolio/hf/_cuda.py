# SPDX-License-Identifier: Apache-2.0
"""The store of a layer on a CUDA device, where the package kvfolio-cuda is installed.

Its kernels move the rows that attention hands over and gets back, and attn_implementation="kvfolio" attends over the
blocks with them, on torch's current stream of the device. What
they are given through DLPack they keep until the stream has passed, so torch's allocator hands on no memory that
they read. Not yet run on a device.
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any, Sequence

import numpy as np
import torch

import kvfolio

from ._store import DTYPES, Shape, Slots, Span, Store, rows_of

#: What the kernels take: of rows, and of caches.
_ROWS = (torch.float32, torch.float16, torch.bfloat16)
_CACHES = (*_ROWS, torch.int8)
_MOST_DIM = 1024
#: Of attention.
_MOST_DIM_ATTENDED, _MOST_BLOCK_ATTENDED = 576, 256
#: Of the lists that stay on a device.
_MOST_LISTS, _MOST_LIST_BYTES = 256, 4 << 20


def engine_of(device: torch.device) -> str | None:
    """"cuda-sm90-r2": the architecture and the revision of the kernels that serve a device. None: none do, and
    PyTorch's indexing does, since kvfolio-cuda is not installed or says that it cannot (cuda.why_not())."""
    return _engine(_ordinal(device)) if device.type == "cuda" else None


class Uploads:
    """Lists of slots and tables that are on a device already: the layers of a forward have the same ones, and a copy
    waits for its stream. Of a pool, whose threads share it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._found: dict[bytes, torch.Tensor] = {}  # in the order they came
        self._bytes = 0

    def of(self, numbers: np.ndarray) -> torch.Tensor:
        """By their content: who wrote to the array gets another one."""
        content = numbers.tobytes()
        with self._lock:
            found = self._found.get(content)
        if found is not None:
            return found
        sent = send(np.ascontiguousarray(numbers, np.int32), self.device)
        with self._lock:
            found = self._found.setdefault(content, sent)  # of another thread, perhaps
            if found is sent:
                self._bytes += len(content)
            while len(self._found) > _MOST_LISTS or (self._bytes > _MOST_LIST_BYTES and len(self._found) > 1):
                oldest = next(iter(self._found))
                del self._found[oldest]
                self._bytes -= len(oldest)
        return found


def cuda_store(shape: Shape, device: torch.device, rows: torch.dtype, uploads: Uploads | None = None) -> Store | None:
    """None: the kernels do not serve this."""
    fits = shape.dtype in _CACHES and rows in _ROWS
    fits = fits and all(dim % 8 == 0 and 0 < dim <= _MOST_DIM for dim in (shape.dim_k, shape.dim_v))
    return CudaStore(shape, device, uploads) if fits and engine_of(device) is not None else None


class CudaStore(Store):
    """Blocks in the memory of a device, moved by the library's kernels."""

    def __init__(self, shape: Shape, device: torch.device, uploads: Uploads | None = None) -> None:
        super().__init__(shape, device)
        self._uploads = Uploads(device) if uploads is None else uploads
        self._cuda = _package()
        self.engine = _engine(_ordinal(device)) or ""
        spec = kvfolio.GroupSpec(
            num_layers=1,
            num_kv_heads=shape.num_heads,
            head_dim=shape.dim_k,
            head_dim_v=shape.dim_v,
            block_size=shape.block_size,
            num_blocks=shape.num_blocks,
            dtype=DTYPES[shape.dtype],
        )
        self.storage = self._cuda.Storage([spec], device=_ordinal(device))
        self.view = self.storage.view(0, 0)
        self._attends = True

    def _stream(self) -> Any:
        return stream_of(self.device)

    def write(self, keys: torch.Tensor, values: torch.Tensor, slots: Slots) -> None:
        k, v = (_unit_rows(rows_of(part)) for part in (keys, values))
        at = self._uploads.of(slots)
        with self._turn() as stream:
            self._cuda.append(self.view, lend(k), lend(v), lend(at), stream=stream)

    def copy_blocks(self, src: Slots, dst: Slots) -> None:
        with self._turn() as stream:
            self._cuda.copy_blocks(self.view, src, dst, stream=stream)

    def _read(self, span: Span, keys: torch.Tensor, values: torch.Tensor) -> None:
        table = self._uploads.of(span.table)
        with self._turn() as stream:
            self._cuda.gather(
                self.view,
                lend(table),
                span.end,
                first=span.first,
                count=span.end - span.first,
                k=lend(keys.transpose(0, 1)),
                v=lend(values.transpose(0, 1)),
                stream=stream,
            )

    def gather(self, spans: Sequence[Span], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        if dtype in _ROWS:
            return super().gather(spans, dtype)
        keys, values = super().gather(spans, torch.float32)
        return keys.to(dtype), values.to(dtype)

    def attends(self, query: torch.Tensor) -> bool:
        dims = self.shape.dim_k, self.shape.dim_v
        here = query.device.type == self.device.type and _ordinal(query.device) == _ordinal(self.device)
        return (here and self._attends and query.dtype in _ROWS
                and max(dims) <= _MOST_DIM_ATTENDED and self.shape.block_size <= _MOST_BLOCK_ATTENDED)

    def attend(self, q: torch.Tensor, out: torch.Tensor, table: np.ndarray, start: np.ndarray, lengths: np.ndarray,
               trims: dict[str, np.ndarray], scale: float, window: int, sinks: torch.Tensor | None) -> None:
        """Over the blocks where they lie. Unsupported: this card has no such kernels, and attends() says so then."""
        on_device = self._uploads.of(table).view(table.shape)
        logits = None if sinks is None else sinks.detach().to(self.device, torch.float32).contiguous()
        queries = _unit_rows(q)
        try:
            with self._turn() as stream:
                self._cuda.attend(
                    lend(queries),
                    self.view,
                    self._cuda.Batch(start, lengths, lend(on_device), **trims),
                    out=lend(out),
                    scale=scale,
                    window=window,
                    sink_logits=None if logits is None else lend(logits),
                    stream=stream,
                )
        except kvfolio.Unsupported:
            self._attends = False
            raise


def lend(tensor: torch.Tensor) -> Any:
    return tensor.detach()


def send(numbers: np.ndarray, device: torch.device) -> torch.Tensor:
    """It is there when this returns, whichever stream reads it."""
    return torch.from_numpy(numbers).to(device)


def stream_of(device: torch.device) -> Any:
    return torch.cuda.current_stream(device)


def _unit_rows(rows: torch.Tensor) -> torch.Tensor:
    """Elements of a row follow each other."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _ordinal(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _package() -> Any:
    """kvfolio.cuda, or None without its package. One of another build is an ImportError."""
    try:
        return importlib.import_module("kvfolio.cuda")
    except ModuleNotFoundError as error:
        if error.name != "kvfolio_cuda":
            raise
        return None


@functools.lru_cache(maxsize=None)
def _engine(ordinal: int) -> str | None:
    package = _package()
    if package is None or not package.available():
        return None
    try:
        engine: str = package.Device(ordinal).engine
    except kvfolio.Unsupported:  # an older card
        return None
    return engine
