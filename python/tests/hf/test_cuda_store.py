# SPDX-License-Identifier: Apache-2.0
"""The store of a CUDA device over kvfolio_cuda's twin, whose driver is none: tensors of the CPU say that they are on a
card. Not on a device."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import threading

import models
import numpy as np
import pytest
import torch
from caches import generate, hits, pool_for, warm

import kvfolio
from kvfolio import hf
from kvfolio.hf import _cuda
from kvfolio.hf._store import KernelStore, Shape, Span, TorchStore

TWIN = pathlib.Path(kvfolio.__file__).parents[2] / "python_twin"
if not (TWIN / "kvfolio_cuda" / "_cuda.abi3.so").exists():
    pytest.skip("this build has no twin of kvfolio_cuda", allow_module_level=True)
sys.path[:0] = [str(TWIN), str(pathlib.Path(__file__).parents[1])]
from fake_dlpack import BFLOAT, Fake  # noqa: E402
from kvfolio_cuda._cuda import twin  # noqa: E402

ENGINE = "cuda-sm90-r2"


def lend(tensor):
    code = BFLOAT if tensor.dtype == torch.bfloat16 else None
    array = tensor.detach()
    return Fake(twin, (array.view(torch.uint16) if code else array).numpy(), code=code)


@pytest.fixture
def card(monkeypatch):
    """The CPU of torch is a card."""
    _cuda._engine.cache_clear()
    monkeypatch.setattr(_cuda, "engine_of", lambda device: _cuda._engine(0))
    monkeypatch.setattr(_cuda, "_ordinal", lambda device: 0)
    monkeypatch.setattr(_cuda, "lend", lend)
    monkeypatch.setattr(_cuda, "stream_of", lambda device: None)
    twin.eager(True)
    yield
    twin.hold(False)
    twin.finish()
    twin.eager(False)
    twin.absent(False)
    _cuda._engine.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
def test_it_holds_and_gives_the_bits_of_the_cpu(card, dtype):
    torch.manual_seed(3)
    shape = Shape(8, 4, 2, 16, 8, dtype)
    rows = torch.float32 if dtype == torch.int8 else dtype
    device = torch.device("cpu")
    stores = [KernelStore.of_its_own(shape, granule=False), _cuda.cuda_store(shape, device, rows)]
    if dtype != torch.int8:
        stores.append(TorchStore(shape, device))
    assert [store.engine for store in stores][:2] == ["cpu", ENGINE]
    keys, values = (torch.randn(2, 6, 2, dim).to(rows).transpose(1, 2) for dim in (16, 8))
    slots = np.array([0, 1, 2, -1, 9, 8, 31, 30, 29, 28, 5, 4], np.int32)
    spans = [Span(np.array([0, 2], np.int32), 1, 7, 0), Span(np.array([7, 1], np.int32), 2, 6, 2)]
    found = []
    for store in stores:
        fill = torch.zeros(1, 2, 32, 16, dtype=rows), torch.zeros(1, 2, 32, 8, dtype=rows)
        store.write(*fill, np.arange(32, dtype=np.int32))
        store.write(keys, values, slots)
        store.copy_blocks(np.array([7, 0], np.int32), np.array([3, 7], np.int32))
        found.append([*store.gather(spans, rows), *store.gather([Span(np.array([3], np.int32), 0, 4, 0)], rows)])
    for other in found[1:]:
        for mine, theirs in zip(found[0], other):
            assert torch.equal(mine, theirs)


class Stream:
    """As one of torch."""

    def __init__(self):
        self.cuda_stream, self.waited = twin.stream(0), []

    def wait_stream(self, other):
        self.waited.append(other)
        twin.wait_stream(self.cuda_stream, other.cuda_stream)


@pytest.fixture
def late(card, monkeypatch):
    """Kernels run when their stream is waited for; of(stream, call) calls on a thread with that stream."""
    twin.eager(False)
    twin.hold(True)  # and nothing is let go of
    now = threading.local()
    monkeypatch.setattr(_cuda, "stream_of", lambda device: now.stream)
    monkeypatch.setattr(TorchStore, "_stream", lambda self: getattr(now, "stream", None))

    def of(stream, call):
        given = []

        def run():
            now.stream = stream
            given.append(call())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return given[0]

    return of


def test_blocks_that_two_threads_use_are_written_and_read_in_turn(late):
    store = _cuda.cuda_store(Shape(8, 4, 2, 16, 8, torch.float32), torch.device("cpu"), torch.float32)
    one, other = Stream(), Stream()
    for stream in (one, other):
        twin.stand(stream.cuda_stream)
    first, second = ([torch.randn(1, 2, 32, dim) for dim in (16, 8)] for _ in range(2))
    slots, spans = np.arange(32, dtype=np.int32), [Span(np.arange(8, dtype=np.int32), 0, 32, 0)]
    # Another thread finds what is not yet written;
    late(one, lambda: store.write(*first, slots))
    found = late(other, lambda: store.gather(spans, torch.float32))
    twin.finish_stream(other.cuda_stream)
    assert all(map(torch.equal, found, first))
    # and gets blocks that are not yet read.
    found = late(one, lambda: store.gather(spans, torch.float32))
    late(other, lambda: store.write(*second, slots))
    twin.finish_stream(other.cuda_stream)
    assert all(map(torch.equal, found, first))


@pytest.mark.parametrize("kind", [TorchStore, _cuda.CudaStore])
def test_each_call_of_a_store_comes_behind_the_stream_before_it(late, kind):
    store = kind(Shape(8, 4, 2, 16, 16, torch.float32), torch.device("cpu"))
    keys, slots, blocks = torch.ones(1, 2, 4, 16), np.arange(4, dtype=np.int32), np.zeros(1, np.int32)
    calls = [lambda: store.write(keys, keys, slots), lambda: store.copy_blocks(blocks, blocks + 1),
             lambda: store.gather([Span(blocks, 0, 4, 0)], torch.float32)]
    if kind is _cuda.CudaStore:
        q, lengths = torch.ones(1, 2, 16), np.array([4], np.int32)
        calls.append(lambda: store.attend(q, torch.empty_like(q), blocks[None], np.array([0, 1], np.int32), lengths,
                                          {}, 1.0, 0, None))
    before = Stream()
    late(before, calls[0])
    for call in calls:
        stream = Stream()
        late(stream, call)
        late(stream, call)
        assert stream.waited == [before]
        before = stream


@pytest.mark.parametrize("attention", ["sdpa", "kvfolio"])
def test_the_layers_of_a_forward_share_the_lists_that_are_sent(card, attention, monkeypatch):
    sent, send = [], _cuda.send
    monkeypatch.setattr(_cuda, "send", lambda numbers, device: sent.append(numbers.copy()) or send(numbers, device))
    hf.register()
    model = models.make("llama")
    model.set_attn_implementation(attention)
    assert model.config.num_hidden_layers > 1
    with torch.no_grad(), hf.PagedCache(model, pool_for(model)) as cache:
        model(torch.ones(1, 20, dtype=torch.int64), past_key_values=cache)
        for tokens in (1, 1):
            del sent[:]
            model(torch.ones(1, tokens, dtype=torch.int64), past_key_values=cache)
            assert 1 <= len(sent) <= 2, "a slot, and the table if it has a new block"


def test_two_threads_let_go_of_lists_in_turn(card, monkeypatch):
    meet, failed = threading.Barrier(2), []

    class Met(dict):
        """Two threads that look for the oldest at once find the same one."""

        def __iter__(self):
            oldest = next(super().__iter__())
            with contextlib.suppress(threading.BrokenBarrierError):
                meet.wait(0.3)
            return iter([oldest])

    monkeypatch.setattr(_cuda, "_MOST_LISTS", 1)
    uploads = _cuda.Uploads(torch.device("cpu"))
    uploads._found = Met()
    uploads.of(np.zeros(1, np.int32))

    def run(number):
        try:
            assert uploads.of(np.array([number], np.int32)).tolist() == [number]
        except Exception as error:  # a thread's own
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(uploads._found) == 1 and uploads._bytes == 4


def test_what_is_on_a_device_is_bounded(card, monkeypatch):
    monkeypatch.setattr(_cuda, "_MOST_LIST_BYTES", 100)
    uploads = _cuda.Uploads(torch.device("cpu"))
    for number in range(9):
        first = uploads.of(np.full(10, number, np.int32))
        assert uploads.of(np.full(10, number, np.int32)) is first
    assert len(uploads._found) == 2 and uploads._bytes == 80
    uploads.of(np.zeros(1000, np.int32))
    assert len(uploads._found) == 1, "one stays, however long"


@pytest.mark.parametrize(("shape", "rows"), [
    (Shape(8, 4, 2, 12, 12, torch.float32), torch.float32),
    (Shape(8, 4, 2, 16, 16, torch.float64), torch.float64),
    (Shape(8, 4, 2, 16, 16, torch.float32), torch.float64),
    (Shape(8, 4, 2, 1032, 1032, torch.float32), torch.float32),
])
def test_what_the_kernels_do_not_take_is_indexed_by_torch(card, shape, rows):
    assert _cuda.cuda_store(shape, torch.device("cpu"), rows) is None


@pytest.fixture
def attended(monkeypatch):
    """The batches that went to kvfolio.cuda.attend()."""
    from kvfolio import cuda

    seen, attend = [], cuda.attend
    monkeypatch.setattr(cuda, "attend", lambda *args, **kwargs: seen.append(kwargs) or attend(*args, **kwargs))
    return seen


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
def test_attention_reads_the_blocks_where_they_lie(card, attended, family, monkeypatch):
    if family not in models.FAMILIES:
        pytest.skip(f"this release has no {family}")
    hf.register()
    model = models.make(family)
    own = model.config._attn_implementation
    pool = pool_for(model)
    ids = torch.randint(1, models.VOCAB - 1, (2, 40), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0  # pads, of which the cache is not told
    for masks in ({}, {"attention_mask": mask}):
        model.set_attn_implementation(own)
        with torch.no_grad():
            wanted = model(ids, **masks).logits
        model.set_attn_implementation("kvfolio")
        del attended[:]
        with torch.no_grad(), hf.PagedCache(model, pool) as cache:
            found = model(ids, past_key_values=cache, **masks).logits
        assert len(attended) == model.config.num_hidden_layers
        real = mask.bool() if masks else torch.ones_like(ids).bool()
        assert torch.allclose(found[real], wanted[real], atol=1e-4)
    assert {each["sink_logits"] is not None for each in attended} == {family == "gpt_oss"}
    # A card for which there are no kernels gets gathered keys, and is asked once for each layer.
    from kvfolio import cuda

    def refuse(*args, **kwargs):
        attended.append(kwargs)
        raise kvfolio.Unsupported("an older card")

    monkeypatch.setattr(cuda, "attend", refuse)
    del attended[:]
    with torch.no_grad(), hf.PagedCache(model, pool) as cache:
        first = model(ids, past_key_values=cache).logits
        model(ids[:, :1], past_key_values=cache)
    assert len(attended) == model.config.num_hidden_layers
    model.set_attn_implementation(own)
    with torch.no_grad():
        assert torch.allclose(first, model(ids).logits, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("attention", ["sdpa", "kvfolio"])
def test_a_model_generates_the_text_of_its_own_cache(card, family, attention):
    hf.register()
    model = models.make(family)
    model.set_attn_implementation(attention)
    pool = pool_for(model)
    ids = torch.randint(1, models.VOCAB - 1, (2, 40), generator=torch.Generator().manual_seed(2))
    with hf.PagedCache(model, pool) as cache:
        assert torch.equal(generate(model, ids, cache), generate(model, ids, None))
    assert pool.engines == [ENGINE]
    warm(model, pool, ids[:1])
    assert hits(model, pool, ids[:1]) > 0
    with hf.PagedCache(model, pool) as cache:
        beams = generate(model, ids, cache, num_beams=3)
    assert torch.equal(beams, generate(model, ids, None, num_beams=3))


def test_prompts_of_one_engine_are_not_found_by_another(card, monkeypatch):
    model = models.make("llama")
    pool = pool_for(model)
    ids = torch.randint(1, models.VOCAB - 1, (1, 40), generator=torch.Generator().manual_seed(4))
    warm(model, pool, ids)
    assert hits(model, pool, ids) == 39
    for engine in ("cuda-sm90-r1", "cuda-sm95-r2", None):
        monkeypatch.setattr(_cuda, "engine_of", lambda device, engine=engine: engine)
        with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
            assert cache.cached_tokens == 0, engine
    monkeypatch.setattr(_cuda, "engine_of", lambda device: ENGINE)
    with hf.PagedCache(model, pool, prompt_ids=ids) as cache:
        assert cache.cached_tokens == 39


def test_without_the_package_or_a_driver_torch_indexes(monkeypatch):
    device = torch.device("cuda", 0)
    twin.absent(True)
    _cuda._engine.cache_clear()
    assert _cuda.engine_of(device) is None
    twin.absent(False)
    _cuda._engine.cache_clear()
    assert _cuda.engine_of(device) == ENGINE and _cuda.engine_of(torch.device("cpu")) is None
    monkeypatch.setitem(sys.modules, "kvfolio_cuda", None)
    monkeypatch.delitem(sys.modules, "kvfolio.cuda", raising=False)
    _cuda._engine.cache_clear()
    assert _cuda.engine_of(device) is None
    _cuda._engine.cache_clear()
