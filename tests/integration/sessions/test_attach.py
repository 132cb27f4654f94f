"""Commands in running kernels, from a client through the manager and the agent into the kernel and back."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
import pytest_asyncio

from retinue.client.aio import Client
from retinue.client.errors import (
    CallError,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    ResourceExhausted,
    Unauthenticated,
)
from retinue.client.sessions import Session
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.types.v1 import terminal_pb2
from tests.integration.sessions.inside import ran, read
from tests.integration.sessions.memory import memory_of
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="interactive",
            command=["sh", "-c", "sleep 1000"],
            cluster_size=2,
            cluster_mode="multi-node",
            slots={"cpu": "0.5", "mem": "128m"},
            environment={"GREETING": "hello there"},
            termination_grace=0,
        )
        await session.wait("RUNNING", timeout=NEVER)
        yield session
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


async def test_any_kernel_of_the_session(session: Session) -> None:
    for hostname, expected in (("", b"main1\n"), ("main1", b"main1\n"), ("sub1", b"sub1\n")):
        assert await ran(session, "hostname", hostname=hostname) == (expected, b"", 0)
    out, err, code = await ran(
        session,
        *("sh", "-c", 'echo "$GREETING $BACKENDAI_CLUSTER_HOST $MORE"; pwd; getent ahostsv4 sub1 >&2; exit 3'),
        environment={"MORE": "too"},
        working_directory="/tmp",  # noqa: S108
    )
    assert (out, code) == (b"hello there main1 too\n/tmp\n", 3)
    assert b"sub1" in err


async def test_a_shell_on_a_terminal(session: Session) -> None:
    async with session.attach(terminal=(33, 77), environment={"TERM": "xterm"}) as shell:
        await shell.write(b"stty size; tty\n")
        await read(shell, b"33 77")
        await shell.resize(44, 88)
        await shell.write(b"stty size\n")
        await read(shell, b"44 88")
        await shell.write(b"exit 5\n")
        await read(shell)
        assert shell.exit_code == 5


async def test_input_and_output_whole(session: Session) -> None:
    data = os.urandom(3 << 20)
    async with session.attach(["cat"]) as command:

        async def write() -> None:
            await command.write(data)
            await command.end_input()

        writing = asyncio.create_task(write())
        out, _ = await read(command)
        await writing
    assert out == data
    assert command.exit_code == 0


async def test_the_end_of_requests_is_the_end_of_input(session: Session) -> None:
    async with session.attach(["cat"]) as command:
        await command.write(b"all")
        await command._exchange.end_requests()  # noqa: SLF001  # as clients in other languages do
        assert await read(command) == (b"all", b"")


async def processes(session: Session, word: str) -> int:
    """How many processes of the main kernel have the word in their command line."""
    script = f'cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" "\\n" | grep -c "^{word}$"'
    out, _, _ = await ran(session, "sh", "-c", script)
    return int(out)


async def test_nothing_is_left_of_a_caller_who_went_away(session: Session) -> None:
    async with session.attach(["sh", "-c", "trap '' HUP; sleep 4321 & setsid sleep 4321 & echo on; wait"]) as command:
        await read(command, b"on")
        # They are the shell's own copies until they have become what they are to be.
        await eventually(lambda: processes(session, "4321"), lambda number: number == 2)
    await eventually(lambda: processes(session, "4321"), lambda number: number == 0)


@pytest.mark.attack("slow-readers")
async def test_a_client_that_does_not_read_delays_no_other(session: Session, client: Client, cluster: Cluster) -> None:
    before = await memory_of(cluster)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            greedy = await stack.enter_async_context(session.attach(["yes"]))
            await read(greedy, b"y\n")
        for _ in range(10):
            assert await ran(session, "echo", "on") == (b"on\n", b"", 0)
            await client.sessions.get(session.id)
        after = await memory_of(cluster)
    # Without a bound, four programs that print all the time fill that in a second.
    assert sum(after) - sum(before) < 64 << 20


@pytest.mark.attack("odd-commands")
@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"hostname": "sub9"}, "hostname"),
        ({"command": ["a\0b"]}, "start.spec.command[0]"),
        ({"command": [""]}, "start.spec.command[0]"),
        ({"command": ["x"] * 1025}, "start.spec.command"),
        ({"command": ["x"], "environment": {"A=B": ""}}, "start.spec.environment['A=B']"),
        ({"command": ["x"], "working_directory": "here"}, "start.spec.working_directory"),
        ({"terminal": (0, 80)}, "start.spec.terminal.rows"),
        ({"terminal": (24, 65535)}, "start.spec.terminal.columns"),
    ],
)
async def test_bad_starts(session: Session, values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        async with session.attach(**values) as command:
            await read(command)
    assert [violation.field for violation in caught.value.violations] == [field]


def step(**values: Any) -> pb.AttachRequest:
    return pb.AttachRequest(input=terminal_pb2.CommandInput(**values))


@pytest.mark.attack("odd-commands")
@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.AttachRequest(), "step"),
        (pb.AttachRequest(start=pb.AttachStart()), "start"),
        (step(), "input.step"),
        (step(signal="NOTHING"), "input.signal"),
        (step(resize=terminal_pb2.TerminalSize(rows=0, columns=1)), "input.resize.rows"),
        (step(stdin=b"x" * (64 * 1024 + 1)), "input.stdin"),
    ],
)
async def test_bad_steps(session: Session, request_: pb.AttachRequest, field: str) -> None:
    async with session.attach(["cat"]) as command:
        await command._exchange.send(request_)  # noqa: SLF001  # what the library does not send
        with pytest.raises(InvalidRequest) as caught:
            await read(command)
    assert [violation.field for violation in caught.value.violations] == [field]


async def test_a_step_before_the_start(session: Session, client: Client) -> None:
    call: Any = client.sessions._kernels.Attach()  # noqa: SLF001
    await call.write(step(stdin=b"x"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.attack("commands-where-none-run", "expired-and-revoked-tokens")
async def test_only_what_runs_and_only_ones_own(session: Session, client: Client, cluster: Cluster) -> None:
    waiting = await client.sessions.create(type="interactive", slots={"cpu": "64"})
    with pytest.raises(FailedPrecondition) as caught:
        await ran(waiting, "true")
    assert caught.value.reason == "STATE_FORBIDS"
    await waiting.terminate()
    with pytest.raises(NotFound):
        await ran(Session(client.sessions, _renamed(waiting, "0" * 8 + "-0000-4000-8000-" + "0" * 12), 0), "true")
    user = await client.users.create("attach-user", projects={"default": "admin"})
    token = await client.tokens.create(user=user.name, description="attach")
    try:
        settings = cluster.settings
        async with Client.connect(settings.endpoint, token=token.secret, ca=settings.ca) as other:
            # Not even administrators of the project.
            assert (await other.sessions.get(session.id)).id == session.id
            with pytest.raises(NotFound):
                await ran(await other.sessions.get(session.id), "true")
            own = await other.sessions.create(
                type="interactive", slots={"cpu": "0.2", "mem": "64m"}, termination_grace=0
            )
            await own.wait("RUNNING", timeout=NEVER)
            async with own.attach(["sleep", "1000"]) as command:
                await client.tokens.revoke(token.token.id)
                with pytest.raises(Unauthenticated):
                    await read(command)
        mine = await client.sessions.get(own.id)
        async with mine.attach(["sleep", "1000"]) as command:
            await mine.terminate(force=True)
            with pytest.raises(CallError) as ended:
                await read(command)
            assert ended.value.reason in ("STATE_FORBIDS", "UNAVAILABLE")
        await mine.wait_ended(NEVER)
        with pytest.raises(FailedPrecondition):
            await ran(mine, "true")
    finally:
        await client.users.delete(user.name)


def _renamed(session: Session, session_id: str) -> Any:
    view = type(session.view)()
    view.CopyFrom(session.view)
    view.id = session_id
    return view


@pytest.mark.attack("many-streams")
async def test_so_many_in_one_kernel(session: Session) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(32):
            command = await stack.enter_async_context(session.attach(["sh", "-c", "echo on; sleep 1000"], "sub1"))
            await read(command, b"on")
        with pytest.raises(ResourceExhausted) as caught:
            await ran(session, "true", hostname="sub1")
        assert (caught.value.reason, caught.value.metadata) == ("STREAM_LIMIT", {"limit": "32"})
        assert await ran(session, "echo", "on") == (b"on\n", b"", 0)
