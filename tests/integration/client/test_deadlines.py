"""Every call of a client with a timeout ends beside a manager that is gone, silent or frozen: all that its classes
have, in both forms.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message import Message

import retinue.client
from retinue.client import DeadlineExceeded, Unavailable, aio
from retinue.client.sessions import Session
from retinue.client.sync.sessions import Session as BlockingSession
from retinue.manager.v1 import endpoint_pb2, session_pb2, session_service_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

TIMEOUT = 2.0
# Far more than the timeout, and less than calls may take by default.
BOUND = 25.0
# They call no manager, or belong to a stream that is open; those are opened here.
LEFT_OUT = {"close", "files", "follow"}

VALUES: dict[str, Any] = {
    "int": 1,
    "Span": 1.0,
    "bytes | memoryview": b"x",
    "Sequence[str]": ["true"],
    "Iterable[str]": ["true"],
    "Mapping[int, int]": {1: 100},
    "tuple[int, int] | None": None,
    "QuotaKind": "user",
    "UserRole": "user",
    "SessionState": "RUNNING",
    "Iterable[session_pb2.SessionSpec]": [session_pb2.SessionSpec()],
}
MODULES = {
    "session_pb2": session_pb2,
    "session_service_pb2": session_service_pb2,
    "epb": endpoint_pb2,
}


def value_for(function: Callable[..., Any], annotation: str, path: Path) -> Any:
    """A value of a type, which only has to be one that is sent."""
    if annotation in VALUES:
        return VALUES[annotation]
    if annotation == "str | os.PathLike[str]":
        return path
    if (match := re.fullmatch(r"(\w+)\.(\w+)", annotation)) is not None:
        module = MODULES.get(match[1]) or function.__globals__.get(match[1])
        if module is not None and issubclass(kind := getattr(module, match[2]), Message):
            return kind()
    assert annotation in {"str", "str | int"}, f"a value of {annotation!r} is missing here, for {function.__qualname__}"
    return "80"


def calls_of(client: Any, session: Any, path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """All calls that classes of a client have, with arguments."""
    groups = [name for name, value in vars(type(client)).items() if isinstance(value, cached_property)]
    owners = [client, client.sessions, session, session.files(), *(getattr(client, name) for name in groups)]
    for owner in owners:
        kind = type(owner)
        for name, function in vars(kind).items():
            if name.startswith("_") or name in LEFT_OUT or not inspect.isfunction(function):
                continue
            # The asynchronous form has the modules of messages.
            source = getattr(asynchronous(kind), name)
            parameters = list(inspect.signature(source).parameters.values())[1:]
            required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
            arguments = [value_for(source, str(parameter.annotation), path) for parameter in required]
            options = {"type": "batch"} if any(p.annotation == "Unpack[SessionOptions]" for p in parameters) else {}
            yield f"{kind.__name__}.{name}", functools.partial(getattr(owner, name), *arguments, **options)


def asynchronous(kind: type) -> type:
    module = inspect.getmodule(kind)
    assert module is not None
    if ".sync." not in module.__name__:
        return kind
    source = getattr(module, f"aio_{module.__name__.rpartition('.')[2]}")
    found: type = getattr(source, kind.__name__)
    return found


async def ends(call: Callable[[], Any]) -> BaseException | None:
    """How a call of the asynchronous form fails."""
    try:
        made = call()
        if inspect.iscoroutine(made):
            await made
        elif hasattr(made, "__aenter__"):
            async with made as opened:
                # What a stream is opened for.
                await (anext(aiter(opened)) if hasattr(opened, "__aiter__") else asyncio.sleep(0))
        else:
            async with contextlib.aclosing(made):
                # The progress of a session begins with what is known.
                _ = await anext(made), await anext(made)
    except Exception as error:  # noqa: BLE001  # compared by the test
        return error
    return None


def ends_blocking(call: Callable[[], Any]) -> BaseException | None:
    """How a call of the blocking form fails."""
    try:
        made = call()
        if hasattr(made, "__enter__"):
            with made as opened:
                if hasattr(opened, "__iter__"):
                    next(iter(opened))
        elif hasattr(made, "__next__"):
            _ = next(made), next(made)
    except Exception as error:  # noqa: BLE001  # compared by the test
        return error
    return None


@contextlib.asynccontextmanager
async def gone() -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def sessions_of(client: aio.Client, blocking: retinue.client.Client) -> tuple[Any, Any]:
    view = session_pb2.Session(id="80", spec=session_pb2.SessionSpec(name="lab"))
    made = Session(client.sessions, view, 1)
    return made, BlockingSession(Session(blocking.sessions._asynchronous, view, 1))  # noqa: SLF001  # as it makes them


async def check_all(client: aio.Client, blocking: retinue.client.Client, path: Path) -> None:
    session, blocking_session = sessions_of(client, blocking)
    names, calls = zip(*calls_of(client, session, path), strict=True)
    blocking_names, blocking_calls = zip(*calls_of(blocking, blocking_session, path), strict=True)
    assert set(names) == set(blocking_names)
    assert {"Sessions.watch", "Sessions.attach", "Files.upload", "Tokens.create", "Client.run"} <= set(names)
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(len(blocking_calls))
    try:
        async with asyncio.timeout(BOUND):
            found = await asyncio.gather(
                *(ends(call) for call in calls),
                *(loop.run_in_executor(pool, ends_blocking, call) for call in blocking_calls),
            )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    wrong = {
        name: error
        for name, error in zip((*names, *blocking_names), found, strict=True)
        if not isinstance(error, DeadlineExceeded | Unavailable)
    }
    assert wrong == {}


@pytest.mark.parametrize("manager", [gone, silent])
async def test_no_manager(manager: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with manager() as endpoint, aio.Client.connect(endpoint, token="t", timeout=TIMEOUT) as client:
        blocking = retinue.client.Client.connect(endpoint, token="t", timeout=TIMEOUT)
        try:
            await check_all(client, blocking, tmp_path / "file")
        finally:
            await asyncio.to_thread(blocking.close)


async def test_a_manager_that_freezes(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert cluster.manager.pid is not None
    async with aio.Client.from_settings(cluster.settings, timeout=TIMEOUT) as client:
        blocking = retinue.client.Client.from_settings(cluster.settings, timeout=TIMEOUT)
        try:
            await client.users.caller()
            await asyncio.to_thread(blocking.users.caller)
            os.kill(cluster.manager.pid, signal.SIGSTOP)
            try:
                await check_all(client, blocking, tmp_path / "file")
            finally:
                os.kill(cluster.manager.pid, signal.SIGCONT)
            # The client is as good as before.
            async with cluster.client() as patient:
                await patient.users.caller()
        finally:
            await asyncio.to_thread(blocking.close)
