# SPDX-License-Identifier: Apache-2.0
"""`generate --oplog` and `inspect`."""

import subprocess

import pytest
from engine import COMMAND, SOURCE, checkpoint, generate

MODEL = "tied-f32"
REQUESTS = [{"id": "a", "prompt_ids": list(range(1, 50)), "max_new_tokens": 6, "samples": 2},
            {"id": "b", "prompt_ids": list(range(1, 33)) + [7] * 17, "max_new_tokens": 6}]


def inspect(*arguments, code=0):
    done = subprocess.run([COMMAND, "inspect", *map(str, arguments)],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout if code != 2 else done.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    for name in ("log", "twice"):
        generate(checkpoint(MODEL), REQUESTS, "--oplog", folder / name, "--save", folder / "saved")
    return folder


def test_two_runs_write_equal_logs(recorded):
    log = (recorded / "log").read_bytes()
    assert log == (recorded / "twice").read_bytes()
    assert (recorded / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("options", [[], ["--tier", "host:1MiB"], ["--no-prefix-cache"],
                                     ["--num-blocks", 12]])
def test_a_replay_answers_alike_and_ends_in_the_recorded_state(tmp_path, options):
    generate(checkpoint(MODEL), REQUESTS, "--oplog", tmp_path / "log", *options)
    said = inspect(tmp_path / "log", "--replay")
    assert said.startswith("replayed: all answers alike, ")
    assert inspect(tmp_path / "log", "--state-hash").strip() == said.split()[-1]


@pytest.mark.parametrize("options", [[], ["--replay"], ["--dump"], ["--state-hash"]])
def test_a_byte_that_was_changed_in_a_log_is_said_with_its_place(recorded, tmp_path, options):
    log = (recorded / "log").read_bytes()
    bad = tmp_path / "bad"
    for at in [*range(0, 300, 23), *range(300, len(log), 293), len(log) - 12, len(log) - 1]:
        bad.write_bytes(log[:at] + bytes([log[at] ^ 2]) + log[at + 1:])
        done = subprocess.run([COMMAND, "inspect", bad, *options], timeout=60,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "is damaged" in done.stderr and "at byte " in done.stderr \
            or done.returncode == 2 and at < 300, (at, done)
        assert "not ended" not in done.stdout


def test_a_log_that_was_cut_says_so(recorded, tmp_path):
    log = (recorded / "log").read_bytes()
    (tmp_path / "cut").write_bytes(log[:len(log) - 5])
    said = inspect(tmp_path / "cut", "--replay")
    assert "the log was not ended" in said and "bytes are half a piece" in said


def test_logs_of_format_1_are_replayed():
    for name in ("generate", "tier"):
        said = inspect(SOURCE / "tests/fuzz/corpus/op_log" / name, "--replay")
        assert said.startswith("replayed: all answers alike, ") and "of another version" in said


def test_calls_and_sections_are_listed(recorded):
    dump = inspect(recorded / "log", "--dump").splitlines()
    calls = [line for line in dump if line[0].isdigit() and "(" in line]
    assert any(" open([" in line and line.endswith("= ok, sequence 0.1") for line in calls)
    index = inspect(recorded / "log", "--index").splitlines()[2:-1]
    counts = dict(line.rsplit(" ", 1) for line in index)
    assert sum(map(int, counts.values())) == len(calls)
    listed = inspect(recorded / "saved", "--index").splitlines()
    keys = [line for line in listed if line[0].isdigit() and " record " in line]
    assert keys and all(", key " in line and "damaged" not in line for line in keys)
    assert "identity" in inspect(recorded / "saved", "--dump").splitlines()[0]


def test_a_damaged_snapshot_is_seen(recorded, tmp_path):
    data = bytearray((recorded / "saved").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad").write_bytes(data)
    assert "damaged 1" in inspect(tmp_path / "bad", "--index", code=1)


def test_the_hash_of_a_snapshot_is_that_of_its_content(recorded, tmp_path, monkeypatch):
    saved = inspect(recorded / "saved", "--state-hash")
    assert len(saved) == 17
    generate(checkpoint(MODEL), REQUESTS, "--num-blocks", 12, "--save", tmp_path / "small")
    assert inspect(tmp_path / "small", "--state-hash") == saved
    generate(checkpoint(MODEL), REQUESTS[:1], "--save", tmp_path / "less")
    assert inspect(tmp_path / "less", "--state-hash") != saved
    data = bytearray((recorded / "saved").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad").write_bytes(data)
    assert "damaged 1" in inspect(tmp_path / "bad", "--state-hash", code=1)
    monkeypatch.setenv("KVFOLIO_RECORD_KEY", "5a" * 32)
    generate(checkpoint(MODEL), REQUESTS, "--save", tmp_path / "sealed")
    assert inspect(tmp_path / "sealed", "--state-hash") == saved
    # The same verdict without the key, with another one, and of what no key sealed.
    monkeypatch.delenv("KVFOLIO_RECORD_KEY")
    for key, file in ((None, tmp_path / "sealed"), ("6b" * 32, tmp_path / "sealed"),
                      ("6b" * 32, recorded / "saved")):
        if key:
            monkeypatch.setenv("KVFOLIO_RECORD_KEY", key)
        assert inspect(file, "--state-hash", code=1) == saved
        listed = inspect(file, "--index", code=1).splitlines()
        records = [line for line in listed if " record " in line and ", key " in line]
        assert records and all(line.endswith(", not verified") for line in records)
        assert listed[-1].endswith(f", damaged 0, not verified {len(records)}")


@pytest.mark.parametrize("content", [b"", b"KVFO", b"KVFOPLOG", b"KVFOPLOG\x02\0\0\0" + bytes(40),
                                     b"KVFOPLOG\x01\0\0\0\xff\xff\xff\xff", bytes(500)])
def test_what_is_none_of_ours_is_bad_input(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    for options in ([], ["--replay"], ["--dump"]):
        assert "kvfolio inspect: " in inspect(tmp_path / "file", *options, code=2)
    assert "not a regular file" in inspect(tmp_path, code=2)
    assert "cannot open" in inspect(tmp_path / "nothing", code=2)
