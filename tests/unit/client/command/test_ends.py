"""How the program ends when it is interrupted, terminated, or not read: quietly, with the code that shells have."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import NEVER
from tests.support.forked_programs import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterator

# Interrupts itself when it begins to import a module, as a user does who is quick.
_INTERRUPTED_AT = """
import os, signal, sys
from retinue.client.command import main

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == module:
            print("reached", flush=True)
            os.kill(os.getpid(), signal.SIGINT)

module, *sys.argv[1:] = sys.argv[1:]
sys.meta_path.insert(0, Interrupting())
main()
"""


@pytest.fixture
def environment(tmp_path: Path, ca_file: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
    settings = {"RETINUE_ENDPOINT": "127.0.0.1:1", "RETINUE_TOKEN": "secret", "RETINUE_CA": str(ca_file)}
    return {**kept, **settings, "RETINUE_CONTEXTS": str(tmp_path / "contexts.yaml")}


@pytest.mark.parametrize(
    "module",
    [
        "retinue.client.command.application",
        "click",
        "retinue.client.command.sessions.listing",
        "asyncio",
        "google.protobuf.message",
        "grpc",
        "retinue.client.client",
    ],
)
def test_an_interrupt_while_modules_are_loaded_ends_it_quietly(module: str, environment: dict[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_AT, module, "ls"],
        capture_output=True,
        text=True,
        timeout=NEVER,
        check=False,
        env=environment,
    )
    assert (ended.returncode, ended.stdout) == (130, "reached\n")
    assert ended.stderr.strip() == ""


# Interrupts itself while the event loop is made, or begins.
_INTERRUPTED_IN = """
import asyncio, os, signal, sys
from retinue.client.command import main

def interrupted(*arguments, **options):
    setattr(asyncio.SelectorEventLoop, name, original)
    print("reached", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    return original(*arguments, **options)

name, *sys.argv[1:] = sys.argv[1:]
original = getattr(asyncio.SelectorEventLoop, name)
setattr(asyncio.SelectorEventLoop, name, interrupted)
main()
"""


@pytest.mark.parametrize("method", ["_make_self_pipe", "create_task", "run_until_complete"])
def test_an_interrupt_while_the_loop_is_made_ends_it_quietly(method: str, environment: dict[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IN, method, "ls"],
        capture_output=True,
        text=True,
        timeout=NEVER,
        check=False,
        env=environment,
    )
    assert (ended.returncode, ended.stdout) == (130, "reached\n")
    assert ended.stderr.strip() == ""


@pytest.fixture
def silent() -> Iterator[tuple[str, threading.Event]]:
    """A port that takes connections and says nothing, like a manager that is frozen; and whether it has taken one."""
    connected = threading.Event()
    taken: list[socket.socket] = []

    def take() -> None:
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:
                return
            connected.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", connected
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(NEVER)
    for connection in taken:
        connection.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_call_that_waits(
    number: signal.Signals, code: int, silent: tuple[str, threading.Event], environment: dict[str, str]
) -> None:
    endpoint, connected = silent
    with subprocess.Popen(
        [PROGRAM, "ls"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "RETINUE_ENDPOINT": endpoint},
    ) as process:
        assert connected.wait(NEVER)
        process.send_signal(number)
        out, errors = process.communicate(timeout=NEVER)
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in errors


def test_a_manager_that_does_not_answer_is_named_after_some_seconds(
    silent: tuple[str, threading.Event], environment: dict[str, str]
) -> None:
    with subprocess.Popen(
        [PROGRAM, "ls"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "RETINUE_ENDPOINT": silent[0]},
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"retinue: {silent[0]} does not answer; still trying, Ctrl-C ends it\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=NEVER)
    assert process.returncode == 130


@pytest.mark.parametrize("arguments", [["help"], ["help", "run"], ["run", "--help"], ["contexts", "ls"]])
def test_a_reader_that_left_ends_it_quietly(arguments: list[str], environment: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as out:
        ended = subprocess.run(
            [PROGRAM, *arguments], stdout=out, stderr=subprocess.PIPE, timeout=NEVER, check=False, env=environment
        )
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", [["help"], ["contexts", "ls"]])
def test_a_full_disk_is_said(arguments: list[str], environment: dict[str, str]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=NEVER, check=False, env=environment
        )
    assert (ended.returncode, ended.stderr) == (1, b"retinue: standard output: No space left on device\n")


_PRINTED = "a\u2026 \u251c\u2500 \u2514\u2500 \u00e9 \udcff \U0001f600"


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii", b"a~ |- `- \\u00e9 \\udcff \\ud83d\\ude00"),
        ("latin-1", b"a~ |- `- \xe9 \\udcff \\ud83d\\ude00"),
        ("utf-8", "a\u2026 \u251c\u2500 \u2514\u2500 \u00e9 \\udcff \U0001f600".encode()),
    ],
)
def test_any_text_can_be_printed_in_any_encoding(encoding: str, expected: bytes) -> None:
    program = f"from retinue.client.command.shell import streams; streams.prepare(); print({_PRINTED!a})"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        timeout=NEVER,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert (ended.stderr, ended.stdout.rstrip()) == (b"", expected)
