"""Runs the program `retinue` again and again without loading it each time: a process that has loaded what it uses
forks for each command line. What runs has streams, environment, exit code and end of a program of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("retinue")
MAX_REQUEST = 1 << 17
STREAMS = 3
"""What comes with a request: input, output and errors; then a pipe that gets the process and its status."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run ended and what it printed."""

    code: int
    out: str
    err: str


class ForkedPrograms:
    """Starts the process with the first run, and ends it with `close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    async def run(self, arguments: tuple[str, ...], environment: Mapping[str, str]) -> Outcome:
        """Runs one command line without input; kills it when the caller is cancelled."""
        (out, its_out), (err, its_err), (status, its_status) = (os.pipe() for _ in range(STREAMS))
        request = json.dumps([arguments, dict(environment), os.getcwd()]).encode()
        assert len(request) < MAX_REQUEST
        with open(os.devnull, "rb") as nothing:  # noqa: ASYNC230  # it blocks never
            socket.send_fds(self._started(), [request], [nothing.fileno(), its_out, its_err, its_status])
        for descriptor in (its_out, its_err, its_status):
            os.close(descriptor)
        reader = await _reader(status)
        pid = int(await reader.readline())
        ended = False
        try:
            outputs = [asyncio.create_task(_all(descriptor)) for descriptor in (out, err)]
            code = int(await reader.readline())
            ended = True
            texts = [(await output).decode() for output in outputs]
        finally:
            if not ended:
                os.kill(pid, signal.SIGKILL)
        return Outcome(code, *texts)

    def _started(self) -> socket.socket:
        if self._requests is None:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(theirs.fileno())], cwd=ROOT, pass_fds=[theirs.fileno()]
                )
        return self._requests

    def close(self) -> None:
        """Ends the process."""
        if self._requests is not None and self._process is not None:
            self._requests.close()
            self._process.wait()
        self._requests = self._process = None


FORKED = ForkedPrograms()
"""One for all tests of a process."""


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _all(descriptor: int) -> bytes:
    return await (await _reader(descriptor)).read()


def load() -> None:
    """Loads all that commands load."""
    package = importlib.import_module("retinue.client.command")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for name in ("grpc.aio", "rich.live", "yaml"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def serve(requests: socket.socket) -> tuple[list[str], dict[str, str], str] | None:
    """Forks for each request. Returns in each process that was forked with what it is to run;
    in this one when nobody asks any more.
    """
    waking, woken = os.pipe()
    for descriptor in (waking, woken):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    running: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(waking, selectors.EVENT_READ)
        while True:
            ready = [key.fd for key, _ in selector.select()]
            if waking in ready:
                os.read(waking, 4096)
                _report(running)
            if requests.fileno() not in ready:
                continue
            message, descriptors, *_ = socket.recv_fds(requests, MAX_REQUEST, STREAMS + 1)
            if not message:
                return None
            *streams, status = descriptors
            pid = os.fork()
            if not pid:
                break
            for descriptor in streams:
                os.close(descriptor)
            running[pid] = status
            os.write(status, b"%d\n" % pid)
    for descriptor in (waking, woken, status, *running.values()):
        os.close(descriptor)
    requests.close()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    arguments, environment, directory = json.loads(message)
    return arguments, environment, directory


def _report(running: dict[int, int]) -> None:
    """Says of each process that has ended how it did."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            status = running.pop(found[0])
            # Who asked may be gone.
            with contextlib.suppress(BrokenPipeError):
                os.write(status, b"%d\n" % os.waitstatus_to_exitcode(found[1]))
            os.close(status)


def main() -> None:
    """The process that forks, and each that it has forked."""
    load()
    if (run := serve(socket.socket(fileno=int(sys.argv[1])))) is None:
        return
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments, environment, directory = run
    sys.argv[:] = [str(PROGRAM), *arguments]
    os.environ.clear()
    os.environ.update({"GRPC_VERBOSITY": "NONE"} | environment)
    os.chdir(directory)
    importlib.import_module("retinue.client.command").main()


if __name__ == "__main__":
    main()
