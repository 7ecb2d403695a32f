# SPDX-License-Identifier: Apache-2.0
"""`generate --save`, `--load` and `--tier`: what came back has not changed a token."""

import fcntl
import json
import os
import random
import re
import shutil
import subprocess

import pytest
from engine import COMMAND, SANITIZED, checkpoint, generate, run

import signals  # engine put its folder on the path

MODEL = "tied-f32"
PROMPTS = [list(range(1, 50)), list(range(1, 33)) + [7] * 17, [9, 8, 7, 6, 5] * 13, [3] * 33]
REQUESTS = [{"id": f"r{i}", "prompt_ids": prompt, "max_new_tokens": 6}
            for i, prompt in enumerate(PROMPTS)]
# Whole runs of the command: fewer where each takes a second.
DAMAGES = 3 if SANITIZED else 20


def tokens(result):
    return {sample["id"]: sample["token_ids"] for sample in result.samples}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "cache.kv"
    result = generate(checkpoint(MODEL), REQUESTS, "--save", path)
    assert result.summary["saved"]["bytes"] == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    return path, tokens(result)


@pytest.mark.parametrize("options", [["--num-blocks", 333], ["--num-blocks", 64, "--max-seqs", 1],
                                     ["--threads", 1, "--max-batch-tokens", 5]])
def test_another_process_with_another_pool_computes_one_token_of_each_prompt(saved, options):
    path, expected = saved
    result = generate(checkpoint(MODEL), REQUESTS, "--load", path, *options)
    assert tokens(result) == expected
    assert result.summary["prefill_tokens_computed"] == len(REQUESTS)
    assert result.summary["restored"]["records_refused"] == 0
    assert result.summary["restored"]["sections_damaged"] == 0


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_file_costs_time_and_no_token(saved, tmp_path, damage):
    path, expected = saved
    good = path.read_bytes()
    draw = random.Random(5)
    for i in range(DAMAGES):
        data = bytearray(good)
        at = draw.randrange(len(data))
        if damage == "flip":
            data[at] ^= 1 << draw.randrange(8)
        else:
            del data[at:]
        bad = tmp_path / f"{i}.kv"
        bad.write_bytes(data)
        done = run(checkpoint(MODEL), "--json", "--load", bad, requests=REQUESTS,
                   memory_bytes=600 << 20)
        assert done.returncode in (0, 2), (at, done.returncode, done.stderr)
        if done.returncode == 2:  # the first section, which says whose file it is
            assert b"kvfolio generate: --load" in done.stderr and at < 4096
            continue
        assert tokens(generate(checkpoint(MODEL), REQUESTS, "--load", bad)) == expected, at


@pytest.mark.parametrize(("options", "field"), [
    (["--cache-dtype", "bf16"], "group 0 dtype"), (["--block-size", 8], "the smallest block_size"),
    (["--format", "nhd"], "group 0 format"), (["--kernel", "reference", "--format", "granule"],
                                              "engine")])
def test_another_type_layout_or_block_size_is_refused_by_the_name_of_the_field(
        saved, options, field):
    done = run(checkpoint(MODEL), "--load", saved[0], *options, requests=REQUESTS)
    assert done.returncode == 2
    assert f"snapshot: {field} is".encode() in done.stderr, done.stderr


def test_another_model_is_refused(saved):
    done = run(checkpoint(MODEL, max_positions=256), "--load", saved[0], requests=REQUESTS)
    assert done.returncode == 2
    assert b"snapshot: weights is" in done.stderr


def test_files_that_are_none_are_said_to_be(tmp_path):
    noise = tmp_path / "noise"
    noise.write_bytes(b"\x00" * 5000)
    for path, said in ((tmp_path, "not a regular file"), ("/dev/zero", "not a regular file"),
                       (tmp_path / "none", "cannot open"), (noise, "no snapshot")):
        done = run(checkpoint(MODEL), "--load", path, requests=REQUESTS)
        assert done.returncode == 2 and said.encode() in done.stderr, done.stderr
    for path in (tmp_path, tmp_path / "none" / "file"):
        done = run(checkpoint(MODEL), "--save", path, requests=REQUESTS)
        assert done.returncode == 2 and done.stdout == b"", done.stderr


def test_a_save_replaces_a_file_as_a_whole_and_nobody_else_may_read_it(saved, tmp_path):
    path = tmp_path / "cache.kv"
    path.write_bytes(b"old")
    path.chmod(0o666)
    with path.open("rb") as before:
        generate(checkpoint(MODEL), REQUESTS, "--save", path)
        assert before.read() == b"old"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == saved[0].read_bytes(), "the same requests give the same file"
    assert [entry.name for entry in tmp_path.iterdir()] == ["cache.kv"]


def test_what_is_in_the_way_of_a_save_is_named_before_the_work(saved, tmp_path):
    (tmp_path / "link").symlink_to(saved[0])
    os.mkfifo(tmp_path / "pipe")
    before = saved[0].read_bytes()
    for path, said in ((tmp_path / "link", "a symbolic link"), (tmp_path / "pipe", "a pipe"),
                       ("/dev/full", "a device"), (tmp_path, "a directory"),
                       (tmp_path / "none" / "f", "No such file"), ("/proc/f", "/proc/f: cannot")):
        done = run(checkpoint(MODEL), "--save", path, requests=REQUESTS, timeout=60)
        assert done.returncode == 2 and done.stdout == b"", done.stderr
        assert said.encode() in done.stderr, done.stderr
    done = run(checkpoint(MODEL), "--load", tmp_path / "pipe", requests=REQUESTS, timeout=60)
    assert done.returncode == 2 and b"a pipe" in done.stderr, done.stderr
    assert tokens(generate(checkpoint(MODEL), REQUESTS, "--load", tmp_path / "link")) == saved[1]
    assert saved[0].read_bytes() == before


def test_a_medium_without_space_is_said_and_keeps_the_old_file(tmp_path):
    path = tmp_path / "cache.kv"
    path.write_bytes(b"old")
    command = [COMMAND, "generate", "--model", str(checkpoint(MODEL)), "--save", str(path),
               "--requests", "-"]
    # A file of at most 4 KiB; without the signal, the write fails as on a full disk.
    limited = ["sh", "-c", "trap '' XFSZ; ulimit -f 8; exec \"$@\"", "sh", *command]
    done = subprocess.run(limited, input="\n".join(map(json.dumps, REQUESTS)).encode(),
                          capture_output=True, timeout=300, check=False)
    assert done.returncode == 2, done
    assert b"cannot write: File too large" in done.stderr, done.stderr
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_a_terminal_sees_how_much_is_saved(tmp_path):
    process, ours = signals.start_on_a_terminal(
        [COMMAND, "generate", "--model", checkpoint(MODEL), "--prompt-ids", "1,2,3",
         "--save", tmp_path / "cache.kv"])
    text = signals.read_terminal(ours)
    assert process.wait(timeout=300) == 0, text
    assert b"saving the prefix cache: 0 MiB" in text
    assert (tmp_path / "cache.kv").stat().st_size > 0


def test_a_cold_prompt_comes_back_from_host_memory():
    twice = REQUESTS + [request | {"id": request["id"] + "again"} for request in REQUESTS]
    options = ["--num-blocks", 7, "--max-seqs", 1]
    without = generate(checkpoint(MODEL), twice, *options)
    with_tier = generate(checkpoint(MODEL), twice, *options, "--tier", "host:4MiB")
    assert tokens(with_tier) == tokens(without)
    summary = with_tier.summary
    assert summary["tier_loads"] > 0 and summary["tier_stores"] > 0
    assert summary["tier_corrupt"] == 0 and summary["tier_misses"] == {}
    assert summary["tier_hits_tokens"] > 0
    assert summary["prefill_tokens_computed"] < without.summary["prefill_tokens_computed"]


@pytest.mark.parametrize(("tier", "said"), [("host:64", "a budget of 64 bytes"),
                                            ("disk:/tmp", "allowed: disk:DIR,SIZE"),
                                            ("disk:/proc/no/tier,1GiB", "/proc/no/tier"),
                                            ("disk:tier,1KiB", "bytes is 1024"),
                                            ("disk:/dev/null,1GiB", "/dev/null is not a directory"),
                                            ("tape:x", "allowed: host:SIZE, disk:DIR,SIZE"),
                                            ("host:1MiB,disk:d,1GiB", "several tiers are several"),
                                            ("disk:d,1GiB,disk:d,1GiB", "several tiers are several"),
                                            ("redis:h:1,redis:h:1", "several tiers are several"),
                                            ("redis:h:1,h:1", "each server once: h:1 is twice"),
                                            ("host:", "allowed: a size")])
def test_a_tier_that_cannot_be_is_refused(tier, said):
    done = run(checkpoint(MODEL), "--tier", tier, requests=REQUESTS)
    assert done.returncode == 2 and said.encode() in done.stderr, done.stderr


@pytest.mark.parametrize(("tier", "kind"), [("host:1MiB", "host:SIZE"),
                                            ("disk:d,1GiB", "disk:DIR,SIZE"),
                                            ("redis:h:1", "redis:HOST:PORT[,HOST:PORT]")])
def test_a_second_tier_of_a_kind_is_refused(tier, kind):
    done = run(checkpoint(MODEL), "--tier", tier, "--tier", tier, requests=REQUESTS)
    assert done.returncode == 2
    assert f"allowed: one {kind}: there is one in this command already".encode() in done.stderr


def test_the_help_says_how_several_tiers_are_given():
    text = subprocess.run([COMMAND, "generate", "--help"], capture_output=True, text=True,
                          timeout=60, check=True).stdout
    assert "--tier host:1GiB --tier disk:cache,4GiB" in text


# ---- the disk ----

def check(directory, *options):
    return subprocess.run([COMMAND, "tier", "check", f"disk:{directory}", *options],
                          capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A directory that one process filled, and what it answered."""
    path = tmp_path_factory.mktemp("disk") / "tier"
    first = generate(checkpoint(MODEL), REQUESTS, "--tier", f"disk:{path},64MiB")
    assert first.summary["disk"]["stores"] > 0 and first.summary["disk"]["stores_dropped"] == 0
    return path, tokens(first)


@pytest.mark.parametrize("options", [[], ["--num-blocks", 333, "--threads", 1],
                                     ["--tier", "host:1MiB"]])
def test_another_process_reads_from_the_disk_and_computes_one_token_of_each_prompt(disk, options):
    path, expected = disk
    again = generate(checkpoint(MODEL), REQUESTS, *options, "--tier", f"disk:{path},64MiB")
    assert tokens(again) == expected
    assert again.summary["prefill_tokens_computed"] == len(REQUESTS)
    assert again.summary["disk"]["loads"] > 0 and again.summary["tier_corrupt"] == 0


@pytest.mark.parametrize(("model", "options"), [("tied-f32", ["--cache-dtype", "f16"]),
                                                ("tied-f32", ["--block-size", 8]),
                                                ("untied-bf16", [])])
def test_another_model_or_type_finds_nothing_on_the_disk(disk, model, options):
    path, _ = disk
    cold = generate(checkpoint(model), REQUESTS, *options)
    other = generate(checkpoint(model), REQUESTS, *options, "--tier", f"disk:{path},64MiB")
    assert tokens(other) == tokens(cold)
    assert other.summary["disk"]["loads"] == 0
    assert other.summary["prefill_tokens_computed"] == cold.summary["prefill_tokens_computed"]


def test_machines_share_where_they_compute_alike_and_only_there(tmp_path):
    """As docs/tiers.md says of a fleet: the kernel and the products are part of the name."""
    tier = ["--tier", f"disk:{tmp_path / 'tier'},64MiB", "--format", "hnd"]

    def loads(kernel, matmul):
        command = [COMMAND, "generate", "--model", str(checkpoint(MODEL)), "--json", "--requests",
                   "-", "--kernel", kernel, *tier]
        done = subprocess.run(command, input="\n".join(map(json.dumps, REQUESTS)).encode(),
                              capture_output=True, timeout=300, check=True,
                              env=os.environ | {"KVFOLIO_MATMUL": matmul})
        summary = json.loads(done.stdout.splitlines()[-1])["summary"]
        assert (summary["kernel"], summary["matmul"]) == (kernel, matmul)
        return summary["disk"]["loads"]

    assert loads("portable", "baseline") == 0
    assert loads("portable", "baseline") > 0, "another machine that is told to compute alike"
    assert loads("reference", "baseline") == 0, "another kernel"
    summary = generate(checkpoint(MODEL), REQUESTS, "--kernel", "portable", *tier).summary
    if summary["matmul"] != "baseline":
        assert summary["disk"]["loads"] == 0, "other products"


def test_products_that_this_machine_has_not_are_refused():
    done = subprocess.run([COMMAND, "generate", "--model", str(checkpoint(MODEL)), "--prompt-ids",
                           "1,2"], capture_output=True, timeout=60, check=False,
                          env=os.environ | {"KVFOLIO_MATMUL": "sse"})
    assert done.returncode == 2
    assert b'KVFOLIO_MATMUL: "sse", allowed on this machine: auto, baseline' in done.stderr


def test_a_flipped_byte_on_the_disk_is_found_and_costs_no_token(tmp_path):
    path = tmp_path / "tier"
    tier = f"disk:{path},64MiB"
    expected = tokens(generate(checkpoint(MODEL), REQUESTS, "--tier", tier))
    done = check(path)
    assert done.returncode == 0 and b", 0 damaged" in done.stdout, done
    segment = sorted(path.glob("segment-*"))[0]

    def flip(at):
        data = bytearray(segment.read_bytes())
        data[at] ^= 8
        segment.write_bytes(data)

    flip(4096 + 200)  # in the first record
    done = check(path, "--json")
    seen = json.loads(done.stdout)
    assert done.returncode == 1 and seen["damaged"] == 1, done
    assert seen["faults"] == [{"file": segment.name, "offset": 4096,
                               "what": "its header or its checksum is wrong"}]
    again = generate(checkpoint(MODEL), REQUESTS, "--tier", tier)
    assert tokens(again) == expected
    assert again.summary["tier_misses"] == {"corrupt": 1}
    assert again.summary["tier_corrupt"] == again.summary["disk"]["corrupt"] == 1
    assert check(path).returncode == 0, "the load that found it erased it for good"
    size = int.from_bytes(segment.read_bytes()[4096 + 96:4096 + 104], "little")
    flip(8192 + (size - size % 4096) + 200)  # in the second one
    assert check(path, "--erase").returncode == 1
    assert check(path).returncode == 0


def test_the_summary_says_of_each_tier_what_it_did(tmp_path):
    tiers = ["--tier", "host:8MiB", "--tier", f"disk:{tmp_path / 'tier'},64MiB"]
    first = generate(checkpoint(MODEL), REQUESTS, *tiers).summary
    stored = first["disk"]["stores"]
    assert first["host"]["stores"] == stored > 0
    assert first["tier_stores"] == 2 * stored and first["tier_stores_dropped"] == 0
    for name in ("host", "disk"):
        assert first[name]["misses"] == {} and first[name]["up"] is True, first[name]
        for key in ("loads", "stores_dropped", "stores_failed", "timeouts", "corrupt"):
            assert first[name][key] == 0, (name, key)
    again = generate(checkpoint(MODEL), REQUESTS, *tiers).summary
    assert again["disk"]["loads"] > 0 and again["tier_loads"] >= again["disk"]["loads"]
    done = run(checkpoint(MODEL), *tiers, requests=REQUESTS)
    lines = done.stdout.decode(errors="replace").splitlines()
    loaded = again["disk"]["loads"]
    assert "  disk: 0 records stored, " + f"{loaded} loaded" in lines, lines
    assert any(line.startswith("  host memory: ") for line in lines)
    assert done.stderr.count(b"\n") == 1, done.stderr  # which disk it is, and no trouble


def broken_disk(tmp_path, *options, code=0):
    """A run whose directory goes while it is open: no segment can be made any more."""
    path = tmp_path / "tier"
    many = [{"id": f"p{i}", "prompt_ids": [i % 50 + 1, i % 7 + 1] * 90, "max_new_tokens": 2}
            for i in range(120)]
    command = [COMMAND, "generate", "--model", str(checkpoint(MODEL)), "--requests", "-",
               "--max-seqs", "1", *options, "--tier", f"disk:{path},1MiB"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        process.stdin.write("\n".join(map(json.dumps, many)).encode())
        process.stdin.close()
        said = process.stderr.readline()  # it is open, and there is much to do yet
        while path.exists():  # a segment that is made meanwhile is in the way once
            shutil.rmtree(path, ignore_errors=True)
        out, more = process.stdout.read(), process.stderr.read()
        assert process.wait(timeout=120) == code, more
    return out.decode(errors="replace"), (said + more).decode()


def test_a_disk_that_fails_is_said_once_and_in_the_summary(tmp_path):
    out, err = broken_disk(tmp_path)
    assert err.count("--tier disk: a store failed") == 1, err
    assert err.count("--tier disk: it is down") == 1, err
    assert "(errors of the medium: " in err, err
    line = next(line for line in out.splitlines() if line.startswith("  disk: "))
    assert "FAILED" in line and "it is DOWN" in line, line


def test_a_run_whose_stores_failed_says_so_when_asked(tmp_path):
    _, err = broken_disk(tmp_path, "--tier-strict", code=1)
    assert re.search(r"--tier-strict: \d+ stores failed or were dropped", err), err
    tier = ("--tier", f"disk:{tmp_path}/whole,64MiB", "--tier-strict")
    generate(checkpoint(MODEL), REQUESTS, *tier)


def test_a_disk_that_fails_is_in_the_json(tmp_path):
    out, err = broken_disk(tmp_path, "--json")
    summary = json.loads(out.splitlines()[-1])["summary"]
    disk = summary["disk"]
    assert disk["stores_failed"] > 0 and disk["up"] is False
    assert summary["tier_stores_dropped"] == disk["stores_failed"] + disk["stores_dropped"]
    assert summary["tier_stores"] == disk["stores"], "host memory was not asked for"
    assert "--tier disk: it is down" in err


def test_a_directory_in_use_is_refused_by_name(disk):
    path, _ = disk
    with open(path / "lock", "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        tier = f"disk:{path},64MiB"
        for done in (run(checkpoint(MODEL), "--tier", tier, requests=REQUESTS), check(path)):
            assert done.returncode == 2 and done.stdout == b"", done
            assert f"{path} is in use by process {os.getpid()}".encode() in done.stderr, done.stderr


def test_a_directory_of_a_newer_version_is_refused(disk, tmp_path):
    path = tmp_path / "tier"
    path.mkdir()
    (path / "lock").touch()
    (path / "manifest").write_text("kvfolio disk tier\nversion 9\n")
    for done in (run(checkpoint(MODEL), "--tier", f"disk:{path},64MiB", requests=REQUESTS),
                 check(path)):
        assert done.returncode == 2 and b"is of version 9" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["lock", "manifest", "probe", "thesis.tex"])
def test_a_directory_of_other_files_is_refused_and_left_as_it_is(tmp_path, name):
    (tmp_path / name).write_text("mine")
    before = os.stat(tmp_path), os.stat(tmp_path / name)
    for done in (run(checkpoint(MODEL), "--tier", f"disk:{tmp_path},64MiB", requests=REQUESTS),
                 check(tmp_path), check(tmp_path, "--erase")):
        assert done.returncode == 2 and done.stdout == b"", done
        assert b"disk tier: " in done.stderr and b"chmod" not in done.stderr, done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    after = os.stat(tmp_path), os.stat(tmp_path / name)
    assert [each.st_mtime_ns for each in after] == [each.st_mtime_ns for each in before]
    assert (tmp_path / name).read_text() == "mine"


def test_there_is_nothing_to_check_where_there_is_no_tier(tmp_path):
    done = check(tmp_path)
    assert done.returncode == 2 and b"there is none in" in done.stderr, done.stderr


# ---- keys ----

KEY, OTHER = "1f" * 32, "2e" * 32


def test_with_a_key_only_its_owner_finds_what_was_stored(tmp_path, monkeypatch):
    disk, file = f"disk:{tmp_path / 'tier'},64MiB", tmp_path / "cache.kv"
    secret = tmp_path / "secret"
    secret.write_text(KEY + "\n")
    monkeypatch.setenv("KVFOLIO_RECORD_KEY_FILE", str(secret))
    expected = tokens(generate(checkpoint(MODEL), REQUESTS, "--tier", disk, "--save", file))

    def computed(*options):
        result = generate(checkpoint(MODEL), REQUESTS, *options)
        assert tokens(result) == expected
        assert KEY not in json.dumps(result.summary) + result.stderr
        return result.summary["prefill_tokens_computed"]

    everything = computed()
    assert computed("--load", file) == computed("--tier", disk) == len(REQUESTS)
    check = [COMMAND, "tier", "check", f"disk:{tmp_path / 'tier'}"]
    assert subprocess.run(check, capture_output=True, timeout=60).returncode == 0
    # Replaced: the old one is accepted for a while.
    monkeypatch.delenv("KVFOLIO_RECORD_KEY_FILE")
    monkeypatch.setenv("KVFOLIO_RECORD_KEY", OTHER)
    monkeypatch.setenv("KVFOLIO_ACCEPTED_RECORD_KEY", KEY)
    assert computed("--load", file) == computed("--tier", disk) == len(REQUESTS)
    # Another key, or none: nothing is believed, in no medium.
    monkeypatch.delenv("KVFOLIO_ACCEPTED_RECORD_KEY")
    assert computed("--load", file) == everything
    monkeypatch.delenv("KVFOLIO_RECORD_KEY")
    assert computed("--load", file) == everything
    # What another key sealed is no damage, and is not erased as such.
    erased = subprocess.run([*check, "--erase"], capture_output=True, text=True, timeout=60)
    assert erased.returncode == 1 and "NOT VERIFIED: sealed with a key" in erased.stdout
    assert " 0 damaged" in erased.stdout and "not be found" not in erased.stdout
    monkeypatch.setenv("KVFOLIO_RECORD_KEY_FILE", str(secret))
    assert subprocess.run(check, capture_output=True, timeout=60).returncode == 0
    assert computed("--tier", disk) == len(REQUESTS)
    monkeypatch.delenv("KVFOLIO_RECORD_KEY_FILE")
    # A prompt that waits for the disk may find here what another one has computed meanwhile.
    result = generate(checkpoint(MODEL), REQUESTS, "--tier", disk)
    assert tokens(result) == expected and result.summary["tier_loads"] == 0
    assert result.summary["tier_corrupt"] == 0 and result.summary["disk"]["of_another_key"] > 0
    assert "a record is of another key, or of none" in result.stderr and "CORRUPT" not in result.stderr
    # Nor by that run, which stored everything it computed: it is there for who has the key.
    monkeypatch.setenv("KVFOLIO_RECORD_KEY_FILE", str(secret))
    assert computed("--tier", disk) == len(REQUESTS)


@pytest.mark.parametrize("name", ["KVFOLIO_RECORD_KEY", "KVFOLIO_ACCEPTED_RECORD_KEY"])
@pytest.mark.parametrize("value", ["secret", KEY[:-1], KEY + "0", "g" * 64])
def test_what_is_no_key_is_refused_and_not_shown(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv("KVFOLIO_RECORD_KEY", OTHER)
    monkeypatch.setenv(name, value)
    done = run(checkpoint(MODEL), "--tier", f"disk:{tmp_path / 'tier'},64MiB", requests=REQUESTS)
    assert done.returncode == 2
    message = done.stderr.decode()
    assert name + " is no key, allowed: 64 hexadecimal digits" in message
    assert value not in message and OTHER not in message
    assert not (tmp_path / "tier").exists()


def test_a_file_without_a_key_is_named(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    monkeypatch.setenv("KVFOLIO_RECORD_KEY_FILE", str(secret))
    tier = f"disk:{tmp_path / 'tier'},64MiB"
    done = run(checkpoint(MODEL), "--tier", tier, requests=REQUESTS)
    assert done.returncode == 2 and f"{secret}: No such file".encode() in done.stderr
    secret.write_text("hunter2")
    done = run(checkpoint(MODEL), "--tier", tier, requests=REQUESTS)
    assert done.returncode == 2 and f"{secret} has no key".encode() in done.stderr
    assert b"hunter2" not in done.stderr
    secret.write_text(KEY)
    monkeypatch.setenv("KVFOLIO_RECORD_KEY", KEY)
    done = run(checkpoint(MODEL), "--tier", tier, requests=REQUESTS)
    assert done.returncode == 2 and b"are both set: set one" in done.stderr


# What a script took from a file that is not there must not turn the key off.
def test_a_variable_that_is_empty_is_refused_before_the_work(tmp_path, monkeypatch):
    for name, options in (("KVFOLIO_RECORD_KEY", ["--save", tmp_path / "file"]),
                          ("KVFOLIO_RECORD_KEY_FILE", ["--tier", f"disk:{tmp_path / 'tier'},64MiB"])):
        monkeypatch.setenv(name, "")
        done = run(checkpoint(MODEL), *options, requests=REQUESTS)
        assert done.returncode == 2 and f"{name} is empty".encode() in done.stderr
        assert not done.stdout
        monkeypatch.delenv(name)
    monkeypatch.setenv("KVFOLIO_ACCEPTED_RECORD_KEY", KEY)
    done = run(checkpoint(MODEL), "--save", tmp_path / "file", requests=REQUESTS)
    assert done.returncode == 2 and b"KVFOLIO_RECORD_KEY is not" in done.stderr
