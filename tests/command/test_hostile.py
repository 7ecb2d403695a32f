# SPDX-License-Identifier: Apache-2.0
"""Hostile command lines: files that are one file, names that are links, readers that do not read, signals, bytes that
steer a terminal, descriptors that are closed. Nothing of another is destroyed, and nothing half is left."""

import fcntl
import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
from engine import COMMAND, SANITIZED, checkpoint

import signals  # engine put its folder on the path

PROMPT = ["--prompt", "abc", "--max-new-tokens", "3"]
# The thread sanitizer hands a signal over when the call that waits has returned, and open() is begun again.
waits = pytest.mark.skipif(os.environ.get("KVFOLIO_SANITIZED") == "thread", reason="signals come between calls only")


def model(max_positions=512):
    return str(checkpoint("tied-f32", max_positions))


def run(*options, verb=("generate",), **how):
    """A finished process of these words."""
    command = [COMMAND, *verb, *(["--model", model()] if verb == ("generate",) else []), *map(os.fsencode, options)]
    how.setdefault("stdin", subprocess.DEVNULL)
    how.setdefault("stdout", subprocess.PIPE)
    how.setdefault("stderr", subprocess.PIPE)
    return subprocess.run(command, timeout=120, check=False, **how)


def bad(done, *words):
    assert done.returncode == 2, done
    for word in words:
        assert str(word).encode() in done.stderr, done.stderr
    return done.stderr


def files(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir() if path.is_file()}


# ---- one file for two options ----

READS = ["--load", "--perplexity"]
WRITES = ["--save", "--metrics", "--logits", "--oplog"]
PAIRS = [pair for pair in itertools.permutations(READS + WRITES, 2)
         if set(pair) & set(WRITES) and set(pair) != {"--load", "--save"}]


@pytest.mark.parametrize("pair", PAIRS, ids=" ".join)
def test_two_options_that_name_one_file_are_refused_before_any_work(tmp_path, pair):
    (tmp_path / "x").write_bytes(b"of an earlier run")
    (tmp_path / "soft").symlink_to("x")
    (tmp_path / "hard").hardlink_to(tmp_path / "x")
    before = files(tmp_path)
    for other in ("x", "soft", "hard", f"../{tmp_path.name}/x"):
        done = run(*PROMPT, pair[0], tmp_path / "x", pair[1], tmp_path / other)
        bad(done, *pair, "one file")
        assert done.stdout == b"" and files(tmp_path) == before


@pytest.mark.parametrize("pair", list(itertools.combinations(WRITES, 2)), ids=" ".join)
def test_two_options_that_name_one_new_file_are_refused(tmp_path, pair):
    (tmp_path / "dangling").symlink_to("x")
    (tmp_path / "folder").symlink_to(tmp_path)
    for other in ("x", "./x", "dangling", "folder/x"):
        bad(run(*PROMPT, pair[0], tmp_path / "x", pair[1], tmp_path / other), *pair, "one file")
    assert files(tmp_path) == {}


CARRY_ON = ["--load", "x", "--save", "x"]
LONG = ["--prompt", "carry on, " * 20, "--max-new-tokens", "3", "--json"]


def cached_tokens(done):
    assert done.returncode == 0, done
    return [json.loads(line)["cached_tokens"] for line in done.stdout.splitlines() if b"cached_tokens" in line][0]


@pytest.fixture
def carried(tmp_path):
    """A folder with a prefix cache x, and what it has."""
    assert cached_tokens(run(*LONG, "--save", tmp_path / "x")) == 0
    return tmp_path, (tmp_path / "x").read_bytes()


@pytest.mark.parametrize("names", [("x", "x"), ("x", "./x"), ("soft", "x"), ("hard", "x")], ids=" ".join)
def test_a_prefix_cache_is_carried_on_in_one_file(carried, names):
    folder, _ = carried
    (folder / "soft").symlink_to("x")
    (folder / "hard").hardlink_to(folder / "x")
    other = ["--prompt", "another " * 20, "--max-new-tokens", "3", "--json"]
    assert cached_tokens(run(*other, "--load", names[0], "--save", names[1], cwd=folder)) == 0
    for words in (LONG, other):
        assert cached_tokens(run(*words, *CARRY_ON, cwd=folder)) > 100
    assert set(files(folder)) == {"x", "soft", "hard"}
    # No third option may have it.
    bad(run(*LONG, *CARRY_ON, "--metrics", "x", cwd=folder), "--metrics", "one file")
    bad(run(*LONG, "--load", "x", "--save", "soft", cwd=folder), "--save", "symbolic link")


def test_a_damaged_cache_is_not_replaced_by_what_is_left_of_it(carried):
    folder, whole = carried
    for at in (3, len(whole) // 2, len(whole) - 3):
        damaged = bytes([*whole[:at], whole[at] ^ 1, *whole[at + 1:]])
        (folder / "x").write_bytes(damaged)
        done = run(*LONG, *CARRY_ON, cwd=folder)
        bad(done, "--load", "x")
        assert done.stdout == b"" and files(folder) == {"x": damaged}, at
        (folder / "x").write_bytes(whole[:at])
        bad(run(*LONG, *CARRY_ON, cwd=folder), "--load", "x")
        assert files(folder) == {"x": whole[:at]}, at


def test_a_cache_that_cannot_be_written_whole_stays_as_it_was(carried):
    folder, whole = carried
    bad(run(*LONG, *CARRY_ON, cwd=folder, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999))),
        "--save", "x")
    assert files(folder) == {"x": whole}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_a_cache_that_is_carried_on_stays_as_it_was_if_the_run_is_interrupted(tmp_path, how):
    verb = ("generate", "--model", model(1 << 16))
    assert cached_tokens(run(*LONG, "--save", tmp_path / "x", verb=verb)) == 0
    whole = files(tmp_path)
    started = signals.Started([COMMAND, *verb, "--prompt", "y", "--max-new-tokens", "60000", "--load", tmp_path / "x",
                               "--save", tmp_path / "x"])
    assert started.signal(how)[2] == 128 + how
    assert files(tmp_path) == whole


@pytest.mark.parametrize("option", WRITES)
def test_what_is_read_is_not_written(tmp_path, option):
    requests = tmp_path / "requests"
    requests.write_text('{"prompt":"a"}\n')
    bad(run("--requests", requests, option, requests), "--requests", option, "one file")
    with open(requests, "rb") as stdin:
        bad(run("--requests", "-", option, requests, stdin=stdin), "standard input", option)
    assert requests.read_text() == '{"prompt":"a"}\n'
    weights = checkpoint("tied-f32") / "model.safetensors"
    before = weights.read_bytes()
    for name in ("model.safetensors", "config.json"):
        bad(run(*PROMPT, option, checkpoint("tied-f32") / name), "--model", option)
    assert weights.read_bytes() == before


@pytest.mark.parametrize("option", WRITES)
def test_standard_output_and_standard_error_are_files_too(tmp_path, option):
    path = tmp_path / "out"
    with open(path, "wb") as out:
        bad(run(*PROMPT, option, path, stdout=out), "standard output", option)
        done = run(*PROMPT, option, "/dev/stdout", stdout=out)
        bad(done, option)
    with open(path, "wb") as err:
        assert run(*PROMPT, option, path, stderr=err).returncode == 2
    assert b"standard error" in path.read_bytes()


def test_a_folder_of_a_tier_is_no_place_for_files(tmp_path):
    (tmp_path / "tier").mkdir()
    for option in WRITES:
        bad(run(*PROMPT, "--tier", f"disk:{tmp_path}/tier,1MiB", option, tmp_path / "tier" / "x"), option, "--tier")


def test_a_device_may_be_shared():
    done = run(*PROMPT, "--metrics", "/dev/null", "--logits", "/dev/null")
    assert done.returncode == 0, done


# ---- names ----

@pytest.mark.parametrize("option", [*READS, *WRITES, "--requests", "--model"])
def test_an_empty_name_is_refused_before_the_work(tmp_path, option):
    # An empty folder of a model would be the root of the file system.
    words = [] if option == "--requests" else PROMPT
    done = run("generate", *words, option, "", *([] if option == "--model" else ["--model", model()]), verb=(),
               cwd=tmp_path)
    bad(done, option, '""')
    assert done.stdout == b"" and files(tmp_path) == {}
    bad(run("", verb=("inspect",)), '""')
    bad(run("--model", "", verb=("prove",)), "--model", '""')


@pytest.mark.parametrize("option", ["--metrics", "--logits"])
def test_a_link_under_the_name_of_a_part_is_not_followed(tmp_path, option):
    (tmp_path / "precious").write_bytes(b"of another")
    (tmp_path / "x.part").symlink_to("precious")
    (tmp_path / ".x.part").symlink_to("precious")
    done = run(*PROMPT, option, tmp_path / "x")
    assert done.returncode == 0, done
    assert (tmp_path / "precious").read_bytes() == b"of another"
    assert set(files(tmp_path)) == {"x", "x.part", ".x.part", "precious"}


@pytest.mark.parametrize("option", ["--metrics", "--logits"])
def test_a_link_is_followed_also_to_no_file_yet(tmp_path, option):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/x")
    for _ in range(2):
        assert run(*PROMPT, option, tmp_path / "link").returncode == 0
        assert (tmp_path / "link").is_symlink() and list(files(tmp_path / "folder")) == ["x"]
    (tmp_path / "loop").symlink_to("loop")
    bad(run(*PROMPT, option, tmp_path / "loop"), option, "loop")


@pytest.mark.parametrize("option", ["--metrics", "--logits", "--save"])
def test_two_runs_on_one_name_do_not_mix(tmp_path, option):
    path = tmp_path / "x"
    runs = [subprocess.Popen([COMMAND, "generate", "--model", model(), "--prompt", "a" * n, "--max-new-tokens", "50",
                              option, path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            for n in (3, 40, 90, 150)]
    for process in runs:
        assert (process.wait(timeout=120), process.stderr.read()) == (0, b"")
        process.stderr.close()
    assert list(files(tmp_path)) == ["x"]
    whole = set()
    for n in (3, 40, 90, 150):
        assert run("--prompt", "a" * n, "--max-new-tokens", "50", option, tmp_path / "y").returncode == 0
        whole.add(len((tmp_path / "y").read_bytes()))
    assert option == "--metrics" or len(path.read_bytes()) in whole
    if option == "--logits":
        assert np.load(path).shape[1] == 256


def test_two_runs_do_not_write_one_log(tmp_path):
    first = signals.Started([COMMAND, "generate", "--model", model(1 << 16), "--prompt", "x", "--max-new-tokens", "60000",
                             "--oplog", tmp_path / "log"])
    bad(run(*PROMPT, "--oplog", tmp_path / "log"), "--oplog", "another log is being written")
    assert first.signal(signal.SIGTERM)[2] == 143
    assert run(*PROMPT, "--oplog", tmp_path / "log").returncode == 0
    assert run(tmp_path / "log", "--replay", verb=("inspect",)).returncode == 0


def test_what_a_kill_left_is_removed_by_the_next_run_and_what_lives_stays(tmp_path):
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read(8)
    dead, living = (tmp_path / f".kvfolio.{boot}{digits}" for digits in ("89abcdef", "76543210"))
    dead.write_bytes(b"of the dead")
    (tmp_path / ".kvfolio.notes").write_bytes(b"of another program")
    with open(living, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run(*PROMPT, "--metrics", tmp_path / "x").returncode == 0
        assert set(files(tmp_path)) == {"x", ".kvfolio.notes", living.name}


def test_what_may_be_of_another_host_is_removed_when_it_is_a_day_old(tmp_path):
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = "".join("1" if digit == "0" else "0" for digit in file.read(8))
    theirs = tmp_path / f".kvfolio.{boot}89abcdef"
    theirs.write_bytes(b"half")
    for hours, stays in ((23, True), (25, False)):
        os.utime(theirs, (time.time() - hours * 3600,) * 2)
        assert run(*PROMPT, "--metrics", tmp_path / "x").returncode == 0
        assert theirs.exists() == stays


def test_a_file_that_cannot_be_replaced_is_said_before_the_work(tmp_path):
    for option, path in itertools.product(WRITES, (tmp_path, tmp_path / "none" / "x", "/proc/x")):
        done = run(*PROMPT, option, path)
        bad(done, option)
        assert done.stdout == b""


# ---- pipes, devices, readers that do not read ----

@pytest.mark.parametrize("option", ["--metrics", "--logits"])
def test_a_pipe_is_written_as_it_is(tmp_path, option):
    os.mkfifo(tmp_path / "fifo")
    got = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "fifo").read_bytes()))
    reader.start()
    assert run(*PROMPT, option, tmp_path / "fifo").returncode == 0
    reader.join(timeout=60)
    assert run(*PROMPT, option, tmp_path / "file").returncode == 0
    if option == "--logits":
        assert got == [(tmp_path / "file").read_bytes()]
    assert len(got[0]) > 100


ENDS = [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]


@waits
@pytest.mark.parametrize(("number", "code"), ENDS)
@pytest.mark.parametrize("option", ["--metrics", "--logits"])
def test_a_signal_ends_it_while_it_waits_for_the_reader_of_a_pipe(tmp_path, option, number, code):
    os.mkfifo(tmp_path / "fifo")
    process = subprocess.Popen([COMMAND, "generate", "--model", model(), *PROMPT, option, tmp_path / "fifo"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=signals.heed_signals)
    signals.wait_until_it_waits(process)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, b"")


@waits
@pytest.mark.parametrize(("number", "code"), ENDS)
@pytest.mark.parametrize("where", ["stdout", "stderr", "logits", "socket"])
def test_a_signal_ends_it_while_the_reader_does_not_read(tmp_path, where, number, code):
    requests = "\n".join(json.dumps({"id": "x" * 100 + str(i), "prompt": "a"}) for i in range(400)).encode()
    words = ["--max-new-tokens", "100", "--json"]
    ours, theirs = (s.detach() for s in socket.socketpair()) if where == "socket" else os.pipe()
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    if where == "logits":
        os.mkfifo(tmp_path / "fifo")
        words += ["--logits", tmp_path / "fifo"]
        os.close(ours)
        os.close(theirs)
        theirs = None
        ours = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    elif where == "stderr":
        os.set_blocking(theirs, False)
        try:
            while os.write(theirs, b"." * 4096):
                pass
        except BlockingIOError:
            os.set_blocking(theirs, True)
        pipes["stderr"] = theirs
        words += ["--num-blocks", "1"]  # none fits, and a message says so
    else:
        pipes["stdout"] = theirs
    process = subprocess.Popen([COMMAND, "generate", "--model", model(), "--requests", "-", *words],
                               stdin=subprocess.PIPE, preexec_fn=signals.heed_signals, **pipes)
    if theirs is not None:
        os.close(theirs)
    process.stdin.write(requests)
    process.stdin.close()
    signals.wait_until_it_waits(process)
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    if process.stderr:
        process.stderr.close()
    os.close(ours)


def test_a_reader_that_goes_away_takes_no_file_along(tmp_path):
    words = ["--save", tmp_path / "save", "--metrics", tmp_path / "metrics", "--logits", tmp_path / "logits",
             "--oplog", tmp_path / "log"]
    command = " ".join(f"'{word}'" for word in [COMMAND, "generate", "--model", model(), "--prompt", "x", *words])
    for output, code in (("--samples 40", 0), ("--samples 40 --json", 0), ("--num-blocks 1 --json", 1)):
        done = subprocess.run(["bash", "-c", f"set -o pipefail; {command} {output} | head -c 1 >/dev/null"],
                              capture_output=True, timeout=60, check=False)
        assert done.returncode == code, done
        assert set(files(tmp_path)) == {"save", "metrics", "logits", "log"}
        assert b"not ended" not in run(tmp_path / "log", verb=("inspect",)).stdout
        for path in tmp_path.iterdir():
            path.unlink()


def test_standard_output_that_does_not_block_is_waited_for():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    requests = "\n".join(json.dumps({"prompt": "a"}) for _ in range(300)).encode()
    process = subprocess.Popen([COMMAND, "generate", "--model", model(), "--requests", "-", "--json", "--max-new-tokens", "60"],
                               stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    process.stdin.write(requests)
    process.stdin.close()
    signals.wait_until_it_waits(process)
    with open(reader, "rb") as out:
        lines = out.read().splitlines()
    assert (process.wait(timeout=60), process.stderr.read()) == (0, b"")
    process.stderr.close()
    assert len(lines) == 301 and all(json.loads(line) for line in lines)


@pytest.mark.parametrize("option", ["--metrics", "--logits"])
def test_a_full_disk_is_said(option):
    bad(run(*PROMPT, option, "/dev/full"), option, "No space left")


def test_a_full_disk_under_standard_output_is_said():
    with open("/dev/full", "wb") as full:
        bad(run(*PROMPT, stdout=full), "standard output", "No space left")


# ---- signals ----

@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1,
                                    signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF])
def test_no_signal_leaves_a_part_of_a_file(tmp_path, number):
    (tmp_path / "x").write_bytes(b"of an earlier run")
    process = signals.Started([COMMAND, "generate", "--model", model(1 << 16), "--prompt", "x", "--max-new-tokens",
                               "60000", "--logits", tmp_path / "x", "--metrics", tmp_path / "y", "--save", tmp_path / "z"])
    assert process.files_in(tmp_path) == 3
    out, err, code = process.signal(number)
    assert code == 128 + number and out.endswith(b"\n") and err.startswith(b"kvfolio: ")
    assert files(tmp_path) == {"x": b"of an earlier run"}


def test_nohup_is_heeded():
    process = subprocess.Popen([COMMAND, "generate", "--model", model(), "--requests", "-"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    signals.wait_until_it_waits(process)
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(b'{"prompt":"a","max_new_tokens":2}\n', timeout=60)
    assert process.returncode == 0 and b"[2 tokens" in out, err


@pytest.mark.parametrize("option", ["--metrics", "--logits", "--save", "--oplog"])
# Not 0: the thread sanitizer writes a file before main().
@pytest.mark.parametrize("limit", [1, 400])
def test_a_file_that_may_not_grow_is_an_error_and_leaves_nothing(tmp_path, option, limit):
    def small():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = run("--prompt", "abc" * 20, "--max-new-tokens", "30", option, tmp_path / "x", preexec_fn=small)
    bad(done, option, "too large")
    assert option == "--oplog" or files(tmp_path) == {}
    with open(tmp_path / "out", "wb") as out:
        done = run("--prompt", "abc", "--json", stdout=out, preexec_fn=small)
        bad(done, "standard output", "too large")


def with_stack(kib):
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_STACK, (kib << 10, kib << 10))}


@pytest.mark.parametrize("words", [["--version"], ["generate", "--help"], ["generate", "--model", "x", *PROMPT]],
                         ids=" ".join)
def test_a_stack_that_is_too_small_is_said(words):
    for kib in (64, 255):
        bad(run(*words, verb=(), **with_stack(kib)), str(kib << 10), "ulimit -s", str(256 << 10))


@pytest.mark.skipif(SANITIZED, reason="sanitizers make frames larger")
def test_the_smallest_stack_that_is_allowed_is_enough(tmp_path):
    kernels = run("--version", verb=()).stdout.split(b"kernels")[1].decode().split()
    assert "reference" in kernels or "portable" in kernels, kernels
    for kernel, dtype in itertools.product(kernels, ("f32", "bf16", "int8")):
        done = run("--prompt", "abc" * 40, "--max-new-tokens", "20", "--threads", "2", "--kernel", kernel, "--cache-dtype",
                   dtype, "--tier", "host:4MiB", "--tier", f"disk:{tmp_path}/tier,4MiB", "--save", tmp_path / "x",
                   "--oplog", tmp_path / "log", "--metrics", tmp_path / "m", "--verify", **with_stack(256))
        assert done.returncode == 0, done
        for verb in (["inspect", tmp_path / "log", "--replay"], ["inspect", tmp_path / "x", "--index"]):
            assert run(*verb, verb=(), **with_stack(256)).returncode == 0
        shutil.rmtree(tmp_path / "tier")


def test_signals_at_random_moments_leave_nothing_half(tmp_path):
    (tmp_path / "x").write_bytes(b"of an earlier run")
    command = [COMMAND, "generate", "--model", model(), "--prompt", "abc", "--max-new-tokens", "200", "--json",
               "--logits", tmp_path / "x", "--metrics", tmp_path / "y", "--save", tmp_path / "z"]
    codes = set()
    for i in range(60):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=signals.heed_signals)
        while i >= 30 and process.poll() is None and not signals.heeds(process):
            pass  # this half of them has begun main()
        time.sleep(0.003 * (i % 30))
        process.send_signal(signal.SIGTERM if i % 2 else signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        codes.add(process.returncode)
        # Before main() begins, the signal has its way.
        assert process.returncode in (0, 130, 143, -signal.SIGINT, -signal.SIGTERM)
        assert out == b"" or out.endswith(b"\n")
        for name in files(tmp_path):
            assert name in "xyz", name
    assert codes & {130, 143}


# ---- descriptors ----

@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]])
def test_closed_descriptors_take_no_file(tmp_path, closed):
    def close():
        for number in closed:
            os.close(number)

    words = ["--tier", f"disk:{tmp_path}/tier,64MiB", "--save", tmp_path / "save", "--metrics", tmp_path / "metrics",
             "--oplog", tmp_path / "log", "--logits", tmp_path / "logits"]
    command = [COMMAND, "generate", "--model", model(), *PROMPT, *map(str, words)]
    done = subprocess.run(command, preexec_fn=close, timeout=60, check=False)
    assert done.returncode == 0
    for path in (tmp_path / "tier").iterdir():
        if path.is_file():
            content = path.read_bytes()
            assert b"kvfolio generate" not in content and b"tokens/s" not in content, path
    assert run("disk:" + str(tmp_path / "tier"), verb=("tier", "check")).returncode == 0
    assert run(tmp_path / "log", "--replay", verb=("inspect",)).returncode == 0
    assert run(tmp_path / "save", verb=("inspect",)).returncode == 0
    assert np.load(tmp_path / "logits").shape == (5, 256)


@pytest.mark.skipif(SANITIZED, reason="sanitizers open files of their own")
def test_few_descriptors_are_an_error_that_says_so(tmp_path):
    for most in range(3, 12):
        done = run(*PROMPT, "--metrics", tmp_path / "m", "--save", tmp_path / "s",
                   preexec_fn=lambda most=most: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))
        assert done.returncode in (0, 2, 127), done
        assert done.returncode != 2 or b"Too many open files" in done.stderr or b"cannot be read" in done.stderr, done
        if done.returncode:
            assert files(tmp_path) == {}, most


# ---- what a terminal obeys ----

STEERS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
C1 = "\u009b31m\u0085\u007f\x1b[31m"


def harmless(done):
    for text in (done.stdout, done.stderr):
        assert not STEERS.search(text), text
        text.decode()  # UTF-8 throughout
    return done


def test_no_message_steers_a_terminal(tmp_path):
    raw = os.fsencode(C1) + b"\xff\x9b\xc2"
    for words in ([raw], [raw, "--json"], ["generate", "--model", raw, "--prompt", "x"], ["inspect", raw],
                  ["inspect", raw, raw], ["tier", "check", b"disk:" + raw], ["tier", "check", raw],
                  ["bench", raw], ["prove", "--model", raw], ["tier", "check", b"redis:" + raw + b":1"]):
        bad(harmless(run(*words, verb=())))
    for option in [*READS, *WRITES, "--requests", "--tier", "--kernel", "--memory", "--seed"]:
        words = [] if option == "--requests" else PROMPT
        bad(harmless(run(*words, option, raw + b"/x", cwd=tmp_path)))
    folder = tmp_path / C1
    folder.mkdir()
    (folder / "x").write_bytes(b"no snapshot")
    bad(harmless(run(*PROMPT, "--load", folder / "x")))
    for options in ([], ["--replay"], ["--dump"]):
        bad(harmless(run(folder / "x", *options, verb=("inspect",))))


def test_no_message_repeats_a_password():
    for words in (["redis:me:secret@host:1"], ["generate", "--tire", "redis:me:secret@host:1"],
                  ["generate", "--tire=redis:me:secret@host:1"], ["generate", "redis:me:secret@host:1"],
                  ["tier", "check", "redis:me:secret@host:1"], ["tier", "check", "x:me:secret@host:1"],
                  ["generate", "--model", "m", "--tier", "redis:me:secret@host:1"],
                  ["generate", "--model", "m", "--tier", "redis://me:secret@host:1"],
                  ["generate", "--model", "m", "--tier", "disk:x,1MiB", "--tier", "x:me:secret@host:1"]):
        assert b"secret" not in bad(run(*words, verb=()))


def test_no_id_and_no_text_steers_a_terminal():
    requests = [{"id": C1 + str(i), "prompt": C1 + chr(0x80 + i), "max_new_tokens": 40} for i in range(32)]
    text = "\n".join(map(json.dumps, requests)).encode()
    done = harmless(subprocess.run([COMMAND, "generate", "--model", model(), "--requests", "-", "--temperature", "1.5"],
                                   input=text, capture_output=True, timeout=120, check=False))
    assert done.returncode == 0
    done = harmless(subprocess.run([COMMAND, "generate", "--model", model(), "--requests", "-", "--json"],
                                   input=text, capture_output=True, timeout=120, check=False))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["id"] for line in lines[:-1]} == {request["id"] for request in requests}


@pytest.mark.parametrize("number", range(0x80, 0xa0))
def test_a_control_character_whose_bytes_come_one_by_one_steers_nothing(tmp_path, number):
    # So hot that each byte is as likely as any: 1,600 of them have the two in a row about six times in these 32 runs.
    requests = [{"id": str(i), "prompt_ids": [i], "samples": 4, "temperature": 1e6, "max_new_tokens": 200}
                for i in range(2)]
    text = "\n".join(map(json.dumps, requests)).encode()
    done = harmless(subprocess.run([COMMAND, "generate", "--model", model(), "--requests", "-", "--seed", str(number)],
                                   input=text, capture_output=True, timeout=120, check=False))
    assert done.returncode == 0


def test_a_pipe_among_the_weights_is_refused_and_not_waited_for(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model(), folder)
    os.mkfifo(folder / "other.safetensors")
    done = run("generate", "--model", folder, *PROMPT, "--save", tmp_path / "x", verb=())
    bad(done, "other.safetensors", "not a regular file, but a pipe")


# ---- words ----

def test_messages_say_what_is_wrong(tmp_path):
    done = bad(run(*PROMPT, "--tier", "host:8388607TiB"), "host", "at most 1125899906842624")
    assert b"at least" not in done
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_bytes(b"some text")
    for name, options in itertools.product(("empty", "text"), ([], ["--replay"], ["--state-hash"], ["--index"])):
        said = bad(run(tmp_path / name, *options, verb=("inspect",)), name, "bytes")
        assert b"is a snapshot" not in said
    (tmp_path / "requests").write_text('{"prompt":"x","seed":1.0}\n')
    bad(run("--requests", tmp_path / "requests"), '"seed" is 1.0, allowed: a whole number')
    bad(run("--perplexity", "/dev/zero"), "--perplexity", "not a regular file, but a device")
    bad(run("--perplexity", "/proc/self/pagemap"), "--perplexity", "more than the 67108864 bytes")
    bad(run("--seed", "1", "--seed", "2"), "--seed", "once")
    bad(run(*PROMPT, "--json=x"), "--json = x", "without a value")
    bad(run(*PROMPT, "--", "word"), "word")
    bad(run(*PROMPT, "--tier-strict"), "--tier-strict", "--tier")
    bad(run("--model", model(), "--tier", "host:1MiB", verb=("prove",)), "--tier host", "disk:DIR,SIZE")


def test_an_automatic_id_makes_way_for_one_that_a_later_request_gives_itself():
    lines = [{"prompt": "a"}, {"id": "r0", "prompt": "b"}, {"id": "r0_", "prompt": "c"}, {"prompt": "d"}]
    text = "\n".join(map(json.dumps, lines)).encode()
    done = subprocess.run([COMMAND, "generate", "--model", model(), "--requests", "-", "--json"], input=text,
                          capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    ids = {json.loads(line)["id"] for line in done.stdout.splitlines()[:-1]}
    assert ids == {"r0", "r0_", "r0__", "r3"}


def test_all_logits_of_a_request_are_there_also_if_its_prompt_was_saved(tmp_path):
    words = ["--prompt", "abc" * 20, "--max-new-tokens", "3"]
    assert run(*words, "--save", tmp_path / "saved", "--logits", tmp_path / "first").returncode == 0
    assert run(*words, "--load", tmp_path / "saved", "--logits", tmp_path / "again").returncode == 0
    first, again = np.load(tmp_path / "first"), np.load(tmp_path / "again")
    assert first.shape == (62, 256) and first.tobytes() == again.tobytes()
