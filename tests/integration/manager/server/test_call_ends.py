"""A server outlives whatever its callers do: each test has one in a process of its own, and looks at how that ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from tests.integration.manager.call_server import CREATE, LOGS, TUNNEL, WAIT
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

METADATA = (("authorization", "Bearer rtn_" + "a" * 43),)
ROOT = Path(__file__).parents[4]


@dataclass
class Running:
    """A server in a process of its own."""

    address: str
    process: asyncio.subprocess.Process

    def channel(self) -> Any:
        return grpc.aio.insecure_channel(self.address, (("grpc.use_local_subchannel_pool", 1),))

    async def answers(self) -> None:
        async with self.channel() as channel:
            assert await channel.unary_unary(CREATE)(b"here", metadata=METADATA, timeout=NEVER) == b"here"

    async def answers_or_not(self) -> bool:
        """Whether a call is answered."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self.answers()
            return True
        return False


@asynccontextmanager
async def serving(module: str = "tests.integration.manager.call_server") -> AsyncIterator[Running]:
    """Starts the server, and checks at the end that it has lived on and was not surprised by anything."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    try:
        port = int(await process.stdout.readline())
        running = Running(f"127.0.0.1:{port}", process)
        yield running
        if process.returncode is None:
            await running.answers()
    finally:
        if process.returncode is None:
            process.terminate()
        code = await process.wait()
        log = (await errors).decode()
    assert code == 0, log
    assert "never retrieved" not in log
    assert "incident" not in log


async def test_unread_streams_that_are_cancelled() -> None:
    async with serving() as running:
        for _ in range(2):
            async with running.channel() as channel:
                calls = [channel.unary_stream(LOGS)(b"", metadata=METADATA) for _ in range(30)]
                calls += [channel.stream_stream(TUNNEL)(metadata=METADATA) for _ in range(30)]
                for call in calls:
                    await call.read()
                for call in calls:
                    call.cancel()
            # Left behind as well, with the connection.
            channel = running.channel()
            for call in [channel.unary_stream(LOGS)(b"", metadata=METADATA) for _ in range(30)]:
                await call.read()
            await channel.close()


async def test_requests_still_come_when_a_stream_is_cancelled() -> None:
    async with serving() as running, running.channel() as channel:

        async def go() -> None:
            call = channel.stream_stream(TUNNEL)(metadata=METADATA)
            for _ in range(20):
                await call.write(b"y" * 1000)
            await call.read()
            call.cancel()

        await asyncio.gather(*(go() for _ in range(60)))


async def test_plain_creations_and_waits() -> None:
    async with serving() as running, running.channel() as channel:

        async def go() -> None:
            for _ in range(25):
                await channel.unary_unary(CREATE)(b"", metadata=METADATA)
                wait = channel.unary_stream(WAIT)(b"", metadata=METADATA)
                # The client stops reading once it knows enough.
                assert await wait.read() == b"first"
                assert await wait.read() == b"last"
                wait.cancel()

        await asyncio.gather(*(go() for _ in range(12)))
