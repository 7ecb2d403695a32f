# SPDX-License-Identifier: Apache-2.0
"""Ends the command before it is done. Its standard output is a pipe that holds 1,500 bytes and that nobody reads
before the test does: the command waits at one of its first rows, so it cannot be done before its end comes."""

import fcntl
import mmap
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios
import time
import weakref

ROOM = 1500
FILLED = mmap.PAGESIZE - ROOM


def heed_signals():
    """A test may itself run with SIGINT ignored, which a child inherits."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def heeds(process):
    """Whether it has come so far that it handles SIGTERM."""
    caught = re.search(r"^SigCgt:\s*(\w+)", pathlib.Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def sleeps(process):
    """Whether all of its threads wait for something."""
    try:
        states = [stat.read_text().rpartition(")")[2].split()[0]
                  for stat in pathlib.Path(f"/proc/{process.pid}/task").glob("*/stat")]
    except OSError:  # a thread that ended meanwhile
        return False
    return set(states) == {"S"}


def wait_until_it_waits(process):
    """Returns when the process handles signals and has slept at ten looks in a row."""
    deadline = time.monotonic() + 300
    looks = 0
    while looks < 10:
        assert process.poll() is None and time.monotonic() < deadline, "it does not wait"
        looks = looks + 1 if heeds(process) and sleeps(process) else 0
        time.sleep(0.01)


class Started:
    """A command that has printed something."""

    def __init__(self, command, text=b""):
        """`text` is its standard input."""
        self.reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE)
        os.write(writer, b"." * FILLED)
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=writer,
                                        stderr=subprocess.PIPE, preexec_fn=heed_signals)
        os.close(writer)
        weakref.finalize(self, self.process.kill)  # where a test fails before it ends the command
        self.process.stdin.write(text)
        self.process.stdin.close()
        deadline = time.monotonic() + 300
        while struct.unpack("i", fcntl.ioctl(self.reader, termios.FIONREAD, b"\0" * 4))[0] == FILLED:
            assert self.process.poll() is None and time.monotonic() < deadline, "it printed nothing"
            time.sleep(0.001)

    def files_in(self, folder):
        """How many regular files in this folder it has open, also those without a name."""
        open_files = [os.readlink(file) for file in pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir()]
        return sum(name.startswith(f"{folder}/") for name in open_files)

    def signal(self, number=signal.SIGINT):
        """Output, messages and exit code of one that gets a signal."""
        self.process.send_signal(number)
        out = b""
        while piece := os.read(self.reader, 1 << 16):
            out += piece
        os.close(self.reader)
        return out[FILLED:], *self._ended()

    def leave(self):
        """Output up to here, messages and exit code of one whose reader goes away."""
        out = os.read(self.reader, 1 << 16)
        os.close(self.reader)
        return out[FILLED:], *self._ended()

    def _ended(self):
        err = self.process.stderr.read()
        self.process.stderr.close()
        return err, self.process.wait(timeout=300)


def start_on_a_terminal(command):
    """Standard output and standard error are a terminal: the process, and the other end of it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=theirs,
                               stderr=theirs, preexec_fn=heed_signals)
    os.close(theirs)
    return process, ours


def read_terminal(ours):
    """All that comes until the process is gone."""
    text = b""
    try:
        while piece := os.read(ours, 1 << 16):
            text += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    return text
