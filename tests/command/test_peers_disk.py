# SPDX-License-Identifier: Apache-2.0
"""bench/peers/disk.py checks what it times. Here without the peers: our own library suffices."""

import json
import os
import pathlib
import sys

import pytest

LIBRARY = os.environ["KVFOLIO_BENCH_PEER_DISK"]
sys.path.insert(0, str(pathlib.Path(os.environ["KVFOLIO_SOURCE_DIR"]) / "bench/peers"))

import disk  # noqa: E402
import disk_kvfolio  # noqa: E402


@pytest.fixture
def run(capsys, tmp_path):
    def run(*arguments):
        done = disk.main(["--peers", "none", "--quick", "--rounds", "1", "--library", LIBRARY,
                          "--folder", str(tmp_path), *arguments])
        assert not list(tmp_path.iterdir())
        out, err = capsys.readouterr()
        return done, out, err
    return run


def test_every_record_is_right_and_every_flipped_byte_is_noticed(run):
    done, out, _ = run("--json")
    first, *rows = [json.loads(line) for line in out.splitlines()]
    assert done == 0 and first["versions"].keys() == {"kvfolio"}
    timed, flipped = rows[:-2], rows[-2:]
    assert [(row["record_kib"], row["figure"]) for row in timed] == \
        [(kib, figure) for kib in (256, 1024) for figure in disk.FIGURES]
    assert all(row["wrong"] == 0 and row["gb_s"]["min"] > 0 for row in timed)
    for row in flipped:
        assert row["noticed"] == row["records"] == disk.FLIPPED
        assert row["loaded"] == {"not handed over: corrupt": disk.FLIPPED}
        assert row["loaded_again"] == {"not handed over: miss": disk.FLIPPED}


@pytest.mark.parametrize("form", [(), ("--markdown",)])
def test_the_tables_say_what_became_of_a_flipped_byte(run, form):
    done, out, _ = run(*form)
    assert done == 0 and "16 not handed over: corrupt" in out and "no figure counts" in out


def test_a_wrong_byte_is_found(run, monkeypatch):
    def loaded(self, i):
        self.payloads[i][7] ^= 1
        return self.payloads[i]

    monkeypatch.setattr(disk_kvfolio.Disk, "loaded", loaded)
    done, out, err = run("--json")
    assert done == 1 and "came back wrong" in err
    assert "kvfolio noticed 0 of 16 flipped bytes" in err


def test_a_byte_that_was_not_flipped_is_no_byte_that_was_noticed(run, monkeypatch):
    monkeypatch.setattr(disk, "flip_byte", lambda *arguments: None)
    done, out, err = run()
    assert done == 1 and "16 read right: not flipped" in out and "noticed 0 of 16" in err


def test_a_folder_that_is_missing_is_named(run, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        run("--folder", str(tmp_path / "nowhere"))
    assert stopped.value.code == 2


@pytest.mark.parametrize("name, package", [("vllm", "vllm"), ("lmcache", "lmcache")])
def test_a_peer_that_is_missing_is_named(run, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "disk_" + name, raising=False)
    done, _, err = run("--peers", name)
    assert done == 2 and "scripts/peers-disk installs it" in err


def test_a_peer_that_is_unknown_is_refused(run, capsys):
    with pytest.raises(SystemExit) as stopped:
        run("--peers", "redis")
    assert stopped.value.code == 2 and "allowed: none, or some of vllm" in capsys.readouterr().err
