"""A terminal of a kernel over the console of a local cluster, from its link to its end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.types.v1 import terminal_pb2
from tests.integration.manager.console.page import PROTOCOL, Page, abort, ended, stalled
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

ATTACH = "/rpc/retinue.manager.v1.KernelService/Attach"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="interactive", command=["sleep", "1000"], slots={"cpu": "0.5", "mem": "128m"}, termination_grace=0
        )
        await session.wait("RUNNING", timeout=NEVER)
        yield session
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


@pytest_asyncio.fixture(loop_scope="session")
async def page(client: Client) -> Page:
    """One that followed a link."""
    link = await client.tokens.create_console_ticket()
    made = Page(link.origin.rstrip("/"))
    assert made.origin.startswith("http://console.localhost:")
    answer = await made.log_in(ticket=link.url.partition("#ticket=")[2])
    assert (answer.status, answer.cookie.partition("=")[0]) == (204, "retinue-console")
    return made


def start(session: Session, *command: str) -> bytes:
    return pb.AttachRequest(
        start=pb.AttachStart(session=session.id, spec=terminal_pb2.CommandSpec(command=command))
    ).SerializeToString()


def running(marker: str) -> bool:
    """Returns whether a command with an argument runs in a kernel, which is a process of this machine."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if process.read_bytes().split(b"\0")[1:2] == [marker.encode()]:
                return True
    return False


def typed(data: bytes) -> bytes:
    return pb.AttachRequest(input=terminal_pb2.CommandInput(stdin=data)).SerializeToString()


async def test_a_command_and_its_exit_code(session: Session, page: Page) -> None:
    output, code = b"", None
    async with page.stream(ATTACH) as stream:
        await stream.send_bytes(start(session, "sh", "-c", "read line; echo got $line; exit 7"))
        await stream.send_bytes(typed(b"hello\n"))
        while code is None:
            response = pb.AttachResponse.FromString(await stream.receive_bytes()).output
            output += response.stdout
            code = response.exited.exit_code if response.HasField("exited") else None
        assert await ended(stream) == {"code": 0, "message": "", "details": ""}
    assert (output, code) == (b"got hello\n", 7)


async def test_a_closed_tab_ends_its_command(session: Session, page: Page) -> None:
    marker = "1000.25"
    async with page.stream(ATTACH) as stream:
        await stream.send_bytes(start(session, "sleep", marker))
        await stream.receive_bytes()
        await eventually(lambda: asyncio.to_thread(running, marker))
    await eventually(lambda: asyncio.to_thread(running, marker), lambda found: not found)


async def test_input_that_is_not_read_waits(session: Session, page: Page) -> None:
    sent = 0
    async with page.stream(ATTACH) as stream:
        await stream.send_bytes(start(session, "sleep", "1000"))
        await stream.receive_bytes()
        piece = typed(bytes(64 << 10))

        async def send() -> None:
            nonlocal sent
            for _ in range(4096):
                await stream.send_bytes(piece)
                sent += 1

        sending = asyncio.create_task(send())
        await stalled(page, lambda: sent)
        assert not sending.done()
        sending.cancel()
        abort(stream)


async def test_a_client_that_does_not_read_is_ended_by_logging_out(session: Session, page: Page) -> None:
    marker = "not-read"
    reader, writer = await page.connect()
    key = base64.b64encode(os.urandom(16)).decode()
    fields = {
        **page.own,
        "Host": page.origin.partition("://")[2],
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": PROTOCOL,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"GET {ATTACH} HTTP/1.1\r\n{head}\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    # From here on nothing is read.
    reader._transport.pause_reading()  # type: ignore[attr-defined]  # noqa: SLF001  # there is no other way to it
    request = start(session, "yes", marker)
    mask = b"\0\0\0\0"
    assert len(request) < 126
    writer.write(struct.pack(">BB", 0x82, 0x80 | len(request)) + mask + request)
    await writer.drain()
    await eventually(lambda: asyncio.to_thread(running, marker))
    assert await page.status() == "0"
    assert (await page.post("/logout", b"")).status == 204
    await eventually(lambda: asyncio.to_thread(running, marker), lambda found: not found)
    writer.transport.abort()
