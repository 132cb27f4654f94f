"""An agent in memory with the managers that dial it, in virtual time."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from tests.integration.agent.manager_side import INCARNATION, Conversation
from tests.link.memory_agent import AGENT, MemoryAgent
from tests.link.virtual_time import run
from tests.link.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

K1, K2 = "11111111-0000-4000-8000-000000000001", "11111111-0000-4000-8000-000000000002"
A1, A2 = f"{K1}.1", f"{K2}.1"


class Node(MemoryAgent):
    """An agent, and the managers that dial it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.wire = Wire(self.serve)

    async def converse(self, term: int = 1, interval: float = 1.0, incarnation: str = INCARNATION) -> Conversation:
        """Returns an open stream."""
        manager = self.dial()
        await manager.open(AGENT, term, interval, incarnation)
        return manager

    def dial(self) -> Conversation:
        """Returns a stream on which nothing was said."""
        return Conversation(self.wire.open("", ""))

    async def restart(self) -> None:
        """The process dies, and is started again."""
        self.wire.cut()
        await self.kill()
        await self.start()


def on_node(test: Callable[[Node], Awaitable[None]]) -> None:
    """Runs in virtual time, on a node of its own; the agent's side of no stream may fail."""

    async def live() -> None:
        with tempfile.TemporaryDirectory() as directory:
            node = Node(Path(directory))
            await node.start()
            try:
                async with asyncio.timeout(3600):
                    await test(node)
                assert [stream.failure for stream in node.wire.streams if stream.failure] == []
            finally:
                node.wire.cut()
                await node.kill()

    run(live())


async def error_of(manager: Conversation) -> tuple[grpc.StatusCode, str]:
    """Takes messages in, without an answer to any, until the stream ends with an error; returns its code and reason."""
    try:
        while True:
            await manager.read()
    except grpc.aio.AioRpcError as error:
        return error.code(), (error.details() or "").partition(":")[0]


async def until_removed(manager: Conversation, attempt_id: str) -> None:
    """Takes messages in until the attempt is gone."""
    await manager.until(lambda: attempt_id in manager.removed)
