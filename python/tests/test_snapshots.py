# SPDX-License-Identifier: Apache-2.0
"""save() and restore(): a cache and its sequences in a file, bit for bit, or an error or a miss."""

import dataclasses
import os
import stat
import threading

import numpy as np
import pytest

import kvfolio as kv
from kvfolio import tiers
from tier_cache import MODEL, check_rows, compute, groups, new_cache, prompt


def filled(*seeds):
    manager = new_cache()
    for seed in seeds:
        sequence, cached = manager.open(prompt(seed))
        compute(manager, sequence, prompt(seed), cached)
        manager.close(sequence)
    return manager


def found(manager, seed):
    """How much of a prompt the cache has, whose bytes are checked."""
    sequence, cached = manager.open(prompt(seed))
    check_rows(manager, sequence, prompt(seed), cached)
    manager.close(sequence)
    return cached


def test_a_cache_and_its_sequences_come_back_in_another_pool(tmp_path):
    manager = filled(1, 2, 3)
    sequence, cached = manager.open(prompt(4), caller_id=77)
    compute(manager, sequence, prompt(4), cached)
    saved = tiers.save(manager, tmp_path / "cache.kv", MODEL,
                       sequences=[tiers.SnapshotSequence(sequence, prompt(4))])
    assert saved.sequences == 1 and saved.tokens == 88 and saved.bytes == os.stat(tmp_path / "cache.kv").st_size
    assert stat.S_IMODE(os.stat(tmp_path / "cache.kv").st_mode) == 0o600
    other = new_cache(num_blocks=200)
    restored = tiers.restore(other, str(tmp_path / "cache.kv"), MODEL)
    assert restored.records == restored.records_loaded == saved.records and restored.records_refused == 0
    (again,) = restored.sequences
    assert again.caller_id == 77 and again.length == 22 and (again.tokens == prompt(4)).all()
    check_rows(other, again.sequence, prompt(4), 22)
    assert [found(other, seed) for seed in (1, 2, 3, 5)] == [21, 21, 21, 0]
    other.check_invariants()


def test_another_identity_is_refused_by_its_field_and_changes_nothing(tmp_path):
    tiers.save(filled(1), tmp_path / "cache.kv", MODEL)
    manager = new_cache()
    for field in ("model", "weights", "tokenizer", "model_dtype", "positions", "engine"):
        with pytest.raises(kv.InvalidArgument, match=field):
            tiers.restore(manager, tmp_path / "cache.kv", dataclasses.replace(MODEL, **{field: "another"}))
        with pytest.raises(kv.InvalidArgument, match=field):
            tiers.save(manager, tmp_path / "other.kv", dataclasses.replace(MODEL, **{field: ""}))
    with pytest.raises(kv.InvalidArgument, match="dtype"):
        tiers.restore(kv.Manager(kv.Storage(groups(dtype="f64"))), tmp_path / "cache.kv", MODEL)
    assert found(manager, 1) == 0 and not (tmp_path / "other.kv").exists()


def test_a_damaged_file_never_brings_other_bytes(tmp_path):
    path = tmp_path / "cache.kv"
    tiers.save(filled(1, 2, 3), path, MODEL)
    whole, rng, lost, refused = path.read_bytes(), np.random.default_rng(2), 0, 0
    for _ in range(40):
        content = bytearray(whole)
        for at in rng.integers(0, len(content), 3):
            content[int(at)] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        manager = new_cache()
        try:
            stats = tiers.restore(manager, path, MODEL, damaged="skip")
            lost += stats.records_refused + stats.sections_damaged
        except kv.Error:
            refused += 1
        for seed in (1, 2, 3):
            found(manager, seed)  # checks each byte that is found
    assert lost > 30
    path.write_bytes(whole[:len(whole) // 2])
    stats = tiers.restore(new_cache(), path, MODEL, damaged="skip")
    assert 0 < stats.records_loaded < 18
    with pytest.raises(kv.Corrupt, match="cache.kv is damaged: 0 of its .* and 2 of its sections are damaged"):
        tiers.restore(new_cache(), path, MODEL)
    path.write_bytes(b"no snapshot" * 1000)
    with pytest.raises(kv.Corrupt):
        tiers.restore(new_cache(), path, MODEL)


def test_a_file_without_our_key_is_not_believed(tmp_path):
    tiers.save(filled(1), tmp_path / "cache.kv", MODEL, key=bytes(range(32)))
    for key, accepted, tokens in ((bytes(range(32)), None, 21), (bytes(range(1, 33)), None, 0), (None, None, 0),
                                  (bytes(range(1, 33)), bytes(range(32)), 21)):
        manager = new_cache()
        stats = tiers.restore(manager, tmp_path / "cache.kv", MODEL, key=key, accepted_key=accepted, damaged="skip")
        assert found(manager, 1) == tokens and (stats.records_refused > 0) == (tokens == 0)


def test_damage_or_a_wrong_key_is_said_unless_it_is_to_be_skipped(tmp_path):
    path, manager = tmp_path / "cache.kv", filled(1)
    sequence, cached = manager.open(prompt(4))
    compute(manager, sequence, prompt(4), cached)
    tiers.save(manager, path, MODEL, key=bytes(32), sequences=[tiers.SnapshotSequence(sequence, prompt(4))])
    other = new_cache()
    for key in (bytes(range(32)), None):
        with pytest.raises(kv.Corrupt, match="sealed with another key"):
            tiers.restore(other, path, MODEL, key=key)
        assert found(other, 1) == 0 and len(other.sequences()) == 0  # those that it opened are closed
    with pytest.raises(kv.InvalidArgument, match="damaged is 'ignore'"):
        tiers.restore(other, path, MODEL, damaged="ignore")
    assert len(tiers.restore(other, path, MODEL, key=bytes(32)).sequences) == 1 and found(other, 1) == 21


def test_what_cannot_be_saved_is_refused_and_leaves_the_old_file(tmp_path):
    path, manager = tmp_path / "cache.kv", filled(1)
    tiers.save(manager, path, MODEL)
    old = path.read_bytes()
    sequence, cached = manager.open(prompt(4))
    compute(manager, sequence, prompt(4), cached)
    one = tiers.SnapshotSequence(sequence, prompt(4))
    for error, text, call in [
            (kv.NotFound, "", lambda: tiers.save(manager, path, MODEL, sequences=[tiers.SnapshotSequence(5, [1])])),
            (kv.FailedPrecondition, "22",
             lambda: tiers.save(manager, path, MODEL, sequences=[dataclasses.replace(one, tokens=[1, 2])])),
            (kv.InvalidArgument, "publish is 'some'",
             lambda: tiers.save(manager, path, MODEL, sequences=[dataclasses.replace(one, publish="some")])),
            (TypeError, r"sequences\[0\]", lambda: tiers.save(manager, path, MODEL, sequences=[sequence])),
            (kv.Unsupported, "storage", lambda: tiers.save(kv.Manager(groups()), path, MODEL)),
            (kv.Unavailable, "nowhere", lambda: tiers.save(manager, tmp_path / "nowhere" / "x", MODEL)),
            (kv.Unavailable, "nothing", lambda: tiers.restore(manager, tmp_path / "nothing", MODEL)),
            (kv.InvalidArgument, "key", lambda: tiers.save(manager, path, MODEL, key=b"short")),
            (TypeError, "", lambda: tiers.save(manager, 7.5, MODEL)),
            (kv.InvalidArgument, "zero byte", lambda: tiers.save(manager, "a\0b", MODEL)),
            (TypeError, "manager", lambda: tiers.save(None, path, MODEL)),
    ]:
        with pytest.raises(error, match=text):
            call()
    with manager.step() as step:
        step.append(sequence, [1])
        with pytest.raises(kv.FailedPrecondition, match="step"):
            tiers.save(manager, path, MODEL)
        step.drop()
    assert path.read_bytes() == old


def test_saving_gives_up_the_gil_and_other_calls_wait_their_turn(tmp_path):
    manager = kv.Manager(kv.Storage([kv.GroupSpec(num_layers=8, num_kv_heads=8, head_dim=128, num_blocks=140)]))
    manager.storage.fill(0)
    sequence, _ = manager.open([])
    with manager.step() as step:
        step.append(sequence, np.arange(2000, dtype=np.int32))
        step.run_copies()
    state = {"running": False, "seen": 0}

    def save():
        state["running"] = True
        tiers.save(manager, tmp_path / "cache.kv", MODEL)  # 130 MB are read, sealed and written
        state["running"] = False

    thread = threading.Thread(target=save)
    thread.start()
    while thread.is_alive():
        state["seen"] += state["running"]
    assert manager.info(sequence).length == 2000
    assert state["seen"] > 1000
    (tmp_path / "cache.kv").unlink()
