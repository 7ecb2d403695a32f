# SPDX-License-Identifier: Apache-2.0
"""bench/peers checks what it times. Here without the peers: numpy and our own library suffice."""

import ctypes
import json
import os
import pathlib
import sys

import numpy as np
import pytest

LIBRARY = os.environ["KVFOLIO_BENCH_PEER"]
sys.path.insert(0, str(pathlib.Path(os.environ["KVFOLIO_SOURCE_DIR"]) / "bench/peers"))

import cases  # noqa: E402
import peer_kvfolio  # noqa: E402
import peers  # noqa: E402

ALONE = ["--peers", "none", "--quick", "--rounds", "1", "--library", LIBRARY]
SMALL = cases.Case("decode", "f32", kv_heads=2, q_per_kv=3, sequences=2, kv_len=50, queries=1)


def run(capsys, *arguments):
    done = peers.main([*ALONE, *arguments])
    out, err = capsys.readouterr()
    return done, out, err


def test_every_case_is_right_and_timed(capsys):
    done, out, _ = run(capsys, "--json", "--threads", "1,2")
    first, *rows = [json.loads(line) for line in out.splitlines()]
    assert done == 0 and first["machine"]["cpus"] >= 1
    names = [case.name for case in cases.all_cases(quick=True)]
    assert [(row["case"], row["threads"]) for row in rows] == \
        [(name, threads) for name in names for threads in (1, 2)]
    for row in rows:
        assert row["status"] == "ok" and row["peer"] == "kvfolio"
        assert 0 < row["error"] <= row["tolerance"]
        assert row["value"] > 0 and row["seconds"]["min"] <= row["seconds"]["max"]
        assert (row["of_read"] is None) == (row["family"] == "prefill")


@pytest.mark.parametrize("form", [(), ("--markdown",)])
def test_the_table_has_a_line_for_each_case(capsys, form):
    done, out, _ = run(capsys, "--threads", "1", "--filter", "g1.", *form)
    lines = [line for line in out.splitlines() if "decode.2x333.g1." in line]
    assert done == 0 and len(lines) == len(cases.DTYPES) and "no figure counts" in out


def is_found(capsys):
    """Reported, not timed, and the exit code says it."""
    done, out, err = run(capsys, "--json", "--threads", "1", "--filter", "2x1000.g8.bf16")
    row = json.loads(out.splitlines()[-1])
    assert row["status"] == "wrong" and row["seconds"] is row["value"] is None
    return done == 1 and "differs from float64 by" in err


def test_a_wrong_number_is_found(capsys, monkeypatch):
    def out(cache):
        output = cache.output.copy()
        output[1, 5] *= np.float32(1.02)
        return output

    monkeypatch.setattr(peer_kvfolio.Cache, "out", out)
    assert is_found(capsys)


def test_a_wrong_token_in_the_cache_is_found(capsys, monkeypatch):
    tokens = cases.Case.tokens
    prepare = peer_kvfolio.Cache.prepare

    def prepare_after_harm(cache, threads):
        k, v = tokens(cache.case, 1)
        cache.fill(1, k[20:30], v[30:40], 20)
        return prepare(cache, threads)

    monkeypatch.setattr(peer_kvfolio.Cache, "prepare", prepare_after_harm)
    assert is_found(capsys)


def test_a_step_that_does_nothing_is_found(capsys, monkeypatch):
    monkeypatch.setattr(peer_kvfolio.Cache, "prepare", lambda cache, threads: lambda: None)
    assert is_found(capsys)


def test_a_result_that_goes_wrong_while_it_is_timed_is_found(capsys, monkeypatch):
    prepare = peer_kvfolio.Cache.prepare

    def prepare_to_fail(cache, threads):
        step = prepare(cache, threads)
        steps = iter(range(3))

        def step_and_fail():
            step()
            if next(steps, None) is None:
                cache.output[0, 0] = 0

        return step_and_fail

    monkeypatch.setattr(peer_kvfolio.Cache, "prepare", prepare_to_fail)
    assert is_found(capsys)


def test_the_reference_is_attention(monkeypatch):
    """Written down another way: one query at a time, by hand."""
    case = cases.Case("prefill", "f16", kv_heads=2, q_per_kv=2, sequences=2, kv_len=9, queries=4)
    reference = cases.Reference(case)
    assert list(reference.rows) == list(range(8))
    q = case.query_rows().astype(np.float64)
    for row in range(8):
        k, v = (x.astype(np.float64) for x in case.tokens(row // 4))
        seen = 5 + row % 4 + 1
        for head in range(4):
            weights = [np.exp(q[row, head] @ k[t, head // 2] / np.sqrt(128)) for t in range(seen)]
            mean = sum(w * v[t, head // 2] for t, w in enumerate(weights)) / sum(weights)
            assert np.allclose(reference.expected[row, head], mean, rtol=1e-12, atol=0)
    assert reference.error(reference.expected) == 0
    assert reference.error(np.full(reference.expected.shape, np.nan)) == float("inf")


def test_bf16_rounds_to_nearest_even():
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 / 3], np.float32)
    assert list(cases.rounded(values, "bf16")) == \
        [1, 1, 1 + 2**-6, 1 + 2**-7, np.float32(-0.333984375)]


@pytest.fixture(name="library")
def library_fixture():
    return peer_kvfolio.Peer(LIBRARY).library


@pytest.mark.parametrize("field, value, says", [
    ("num_kv_heads", 0, "num_kv_heads is 0; allowed: 1 .. 1024"),
    ("q_per_kv", 65, "q_per_kv is 65"),
    ("head_dim", -8, "head_dim is -8"),
    ("num_sequences", 2**31 - 1, "num_sequences is 2147483647"),
    ("kv_len", -1, "kv_len is -1"),
    ("queries", 51, "queries is 51; allowed: 1 .. 50"),
])
def test_a_bad_shape_is_an_error(library, field, value, says):
    shape = peer_kvfolio.Shape(2, 3, 128, 2, 50, 1)
    setattr(shape, field, value)
    assert library.kvfolio_peer_create(ctypes.byref(shape), b"f32") == 0
    assert says in library.kvfolio_peer_error().decode()


def test_more_blocks_than_there_are_numbers_is_an_error(library):
    shape = peer_kvfolio.Shape(1, 1, 128, 4096, 1 << 24, 1)
    assert library.kvfolio_peer_create(ctypes.byref(shape), b"f32") == 0
    assert "the number of blocks is 4294967296" in library.kvfolio_peer_error().decode()


def test_bad_arguments_are_errors(library):
    shape = peer_kvfolio.Shape(2, 3, 128, 2, 50, 1)
    assert library.kvfolio_peer_create(ctypes.byref(shape), b"int4") == 0
    assert b"allowed: f32, f16, bf16, int8" in library.kvfolio_peer_error()
    assert library.kvfolio_peer_create(None, b"f32") == 0
    assert library.kvfolio_peer_create(ctypes.byref(shape), None) == 0
    cache = peer_kvfolio.Cache(library, SMALL)
    rows = cache.k.ctypes.data
    number, size = cache.number, cache.k.nbytes

    def step(threads=1, q_bytes=cache.q.nbytes, kv_bytes=size, out_bytes=cache.output.nbytes,
             q=cache.q.ctypes.data):
        return library.kvfolio_peer_step(number, threads, q, q_bytes, rows, rows, kv_bytes,
                                         cache.output.ctypes.data, out_bytes)

    def fill(sequence=0, first=0, k=rows, nbytes=1024):
        return library.kvfolio_peer_fill(number, sequence, first, 1, k, rows, nbytes)

    for bad, says in ((lambda: fill(sequence=2), "sequence is 2"),
                      (lambda: fill(first=50), "count is 1"),
                      (lambda: fill(nbytes=1), "wanted: 1024"),
                      (lambda: fill(k=None), "null"),
                      (lambda: step(threads=0), "threads"),
                      (lambda: step(q_bytes=0), "q: 0 bytes"),
                      (lambda: step(kv_bytes=size + 4), "k and v"),
                      (lambda: step(out_bytes=4), "out: 4 bytes"),
                      (lambda: step(q=None), "q: null"),
                      (lambda: library.kvfolio_peer_read(number, 1, 0, -1, 2), "ahead is -1"),
                      (lambda: library.kvfolio_peer_read(number, 1, 0, 1, 3), "level is 3"),
                      (lambda: library.kvfolio_peer_read(number, -5, 0, 1, 2), "threads"),
                      (lambda: library.kvfolio_peer_read(number + 1, 1, 0, 1, 2), "no case"),
                      (lambda: library.kvfolio_peer_bytes(-1), "there is no case")):
        assert bad() == -1
        assert says in library.kvfolio_peer_error().decode()
    assert step() == 0 and library.kvfolio_peer_error() == b""
    assert library.kvfolio_peer_destroy(number) == 0
    assert library.kvfolio_peer_destroy(number) == -1 and step() == -1
    assert library.kvfolio_peer_target(number) is None


@pytest.mark.parametrize("arguments, says", [
    (("--peers", "vllm"), "allowed: none, or some of onnxruntime,openvino"),
    (("--threads", "0"), "allowed: numbers from 1 to 1024"),
    (("--threads", "2,2"), "allowed: numbers from 1 to 1024"),
    (("--threads", "two"), "allowed: numbers from 1 to 1024"),
    (("--rounds", "0"), "allowed: 1 or more"),
    (("--filter", "g9"), "decode.2x1000.g8.f32"),
])
def test_bad_usage_is_refused_with_what_is_allowed(capsys, arguments, says):
    with pytest.raises(SystemExit) as stopped:
        peers.main([*ALONE, *arguments])
    assert stopped.value.code == 2 and says in capsys.readouterr().err


def test_a_library_that_is_missing_is_named(capsys):
    done, _, err = run(capsys, "--library", "/nowhere/lib.so")
    assert done == 2 and "/nowhere/lib.so is missing" in err


@pytest.mark.parametrize("name, module", [
    ("onnxruntime", "peer_ort"), ("openvino", "peer_openvino")])
def test_a_peer_that_is_missing_is_named(capsys, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    done, _, err = run(capsys, "--peers", name)
    assert done == 2 and "scripts/peers installs it" in err
