# SPDX-License-Identifier: Apache-2.0
"""Manager.record: a file of all calls, and what is refused."""

import pathlib
import signal
import subprocess
import sys

import pytest

import kvfolio as kv
from conftest import run_step, tokens


def cache():
    return kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=16, block_size=4)], id_tag=7)


def work(manager):
    sequence, cached = manager.open([1, 2, 3])
    run_step(manager, (sequence, tokens(1, 2, 3)[cached:]))
    manager.close(sequence)


def test_equal_calls_write_equal_files_that_only_their_owner_reads(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(b"older" * 9999)
        manager = cache()
        manager.record(tmp_path / name)
        work(manager)
        manager.record(None)
        work(manager)  # not recorded
    log = (tmp_path / "first").read_bytes()
    assert log == (tmp_path / "second").read_bytes() and log.startswith(b"KVFOPLOG") and len(log) < 5000
    assert (tmp_path / "first").stat().st_mode & 0o777 == 0o600


def test_a_second_path_ends_the_first_log(tmp_path):
    manager = cache()
    manager.record(str(tmp_path / "empty"))
    manager.record(bytes(tmp_path / "whole"))  # nothing was called yet
    work(manager)
    manager.record(None)
    manager.record(None)
    assert 0 < (tmp_path / "empty").stat().st_size < (tmp_path / "whole").stat().st_size


def test_a_manager_that_was_used_and_files_that_cannot_be_are_refused(tmp_path):
    manager = cache()
    for path in (tmp_path, tmp_path / "no" / "log", "/dev/null"):
        with pytest.raises(kv.Unavailable, match=str(path)):
            manager.record(path)
    for path in (7, ["log"]):
        with pytest.raises(TypeError):
            manager.record(path)
    with pytest.raises(ValueError, match="null"):
        manager.record("a\0b")
    manager.record(tmp_path / "log")
    with pytest.raises(kv.Unavailable, match="another log is being written to it"):
        cache().record(tmp_path / "log")
    work(manager)
    with pytest.raises(kv.FailedPrecondition, match="the manager was used before, and its log goes on"):
        manager.record(tmp_path / "late")
    work(manager)
    manager.record(None)
    whole = cache()
    whole.record(tmp_path / "whole")
    work(whole)
    work(whole)
    whole.record(None)
    log = (tmp_path / "log").read_bytes()
    assert log == (tmp_path / "whole").read_bytes()  # as if nothing had been asked
    for path in (tmp_path / "late", tmp_path / "log"):
        with pytest.raises(kv.FailedPrecondition, match="the manager was used before"):
            manager.record(path)
    assert (tmp_path / "log").read_bytes() == log and not (tmp_path / "late").exists()
    work(manager)
    manager.record(None)  # nothing is recorded


def test_a_child_of_fork_writes_nothing_to_the_log_of_its_parent(tmp_path):
    child = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_op_log import *
manager = cache()
manager.record(sys.argv[2])
work(manager)
size = os.path.getsize(sys.argv[2])
for way in ("end", "drop"):
    pid = os.fork()
    if pid == 0:
        work(manager)
        try:
            if way == "end":
                manager.record(None)
                os._exit(1)
            del manager
        except kv.Unavailable as error:
            if "a child of it" not in str(error):
                os._exit(2)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.path.getsize(sys.argv[2]) == size
work(manager)
manager.record(None)
"""
    for path, run in (("forked", child), ("alone", child.replace('("end", "drop")', "()"))):
        ran = subprocess.run([sys.executable, "-c", run, str(pathlib.Path(__file__).parent), str(tmp_path / path)],
                             capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "forked").read_bytes() == (tmp_path / "alone").read_bytes()


def test_a_log_that_cannot_be_written_is_said_at_its_end_and_changes_no_answer(tmp_path):
    child = """
import resource, signal, sys
sys.path.insert(0, sys.argv[1])
from test_op_log import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, resource.RLIM_INFINITY))
manager, other = cache(), cache()
manager.record(sys.argv[2])
for each in [manager] * 2000 + [other] * 2000:
    work(each)
assert manager.counters.to_dict() == other.counters.to_dict()
try:
    manager.record(None)
except kv.Unavailable as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", child, str(pathlib.Path(__file__).parent), str(tmp_path / "log")],
                         capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "cannot write: File too large" in ran.stdout, ran.stdout + ran.stderr


def test_with_flush_each_call_the_file_has_the_call_in_which_a_program_dies(tmp_path):
    child = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_op_log import *
manager = cache()
manager.record(sys.argv[2], flush_each_call=sys.argv[3] == "True")
work(manager)
os.kill(os.getpid(), signal.SIGKILL)
"""
    sizes = []
    for flush in (False, True):
        path = tmp_path / str(flush)
        ran = subprocess.run([sys.executable, "-c", child, str(pathlib.Path(__file__).parent), str(path), str(flush)],
                             timeout=60, check=False)
        assert ran.returncode == -signal.SIGKILL
        sizes.append(path.stat().st_size)
    assert sizes[0] < sizes[1]
