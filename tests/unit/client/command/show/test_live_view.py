"""Live views belong to the foreground of a terminal: in its background a program prints lines, and draws nothing."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

from tests.support.eventually import NEVER

# Leads a session of a terminal, and puts what shows progress into the foreground or the background.
_LEADER = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
from rich.console import Console
from retinue.client.command.show.progress import open_progress
from retinue.manager.v1 import session_pb2 as pb

def show(progress, state):
    progress.show(pb.Session(spec=pb.SessionSpec(name="play"), state=state))

def in_background():
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.setpgid(0, 0)
    progress = open_progress(Console())
    show(progress, pb.SESSION_STATE_PENDING)
    show(progress, pb.SESSION_STATE_RUNNING)
    show(progress, pb.SESSION_STATE_TERMINATED)
    os._exit(0)

def moved_there_and_back():
    progress = open_progress(Console())
    show(progress, pb.SESSION_STATE_PENDING)
    live = progress._live
    live.refresh()
    live.refresh()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    while os.getpgid(child) != child:
        pass
    with live._lock:
        os.tcsetpgrp(0, child)
        os.write(1, b"<background>")
        live.refresh()
    show(progress, pb.SESSION_STATE_RUNNING)
    with live._lock:
        live.refresh()
        os.write(1, b"<foreground>")
        os.tcsetpgrp(0, os.getpgrp())
    live.refresh()
    progress.close()
    os.close(writing)
    os.waitpid(child, 0)
    return 0

code = globals()[sys.argv[1]]()
os.write(1, b"<end>")
sys.exit(code)
"""


def _shown_by(function: str) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", _LEADER, function],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        shown = b""
        # A terminal without programs cannot be read.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 4096):
                shown += piece
        process.wait(NEVER)
    os.close(ours)
    text = shown.decode()
    assert process.returncode == 0, text
    assert text.endswith("<end>")
    return text


def test_in_the_background_there_are_lines_only() -> None:
    shown = _shown_by("in_background")
    assert "\x1b" not in shown.replace("\x1b[?25h", "")
    assert [line.split(" after ")[0] for line in shown.splitlines()] == [
        "play: PENDING",
        "play: RUNNING",
        "play: TERMINATED",
        "<end>",
    ]


def test_a_view_that_is_moved_to_the_background_stands_still_until_it_comes_back() -> None:
    shown = _shown_by("moved_there_and_back")
    before, rest = shown.split("<background>")
    behind, after = rest.split("<foreground>")
    assert "\x1b[2K" in before
    assert behind.splitlines() == ["play: RUNNING"]
    # What others printed meanwhile is not drawn over.
    assert "\x1b[1A" not in after[: after.index("play")]


def test_the_cursor_stays_visible() -> None:
    shown = _shown_by("moved_there_and_back")
    assert shown.rindex("\x1b[?25h", 0, shown.index("<background>")) > shown.index("\x1b[?25l")
