"""What Ctrl-C does to a conversation, whenever it comes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from retinue.client.command.inside.code_prompt import Conversation
from retinue.types.v1 import code_pb2
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

INTERRUPTED = code_pb2.CODE_STATUS_INTERRUPTED


class Endless:
    """A run that says something, or asks, and ends when it is interrupted."""

    def __init__(self, event: code_pb2.CodeEvent) -> None:
        self.event = event
        self.interrupts = 0
        self.asked = asyncio.Event()

    async def run(self, text: str, *, run_id: str, timeout: float | None) -> AsyncIterator[code_pb2.CodeEvent]:  # noqa: ASYNC109  # as the library
        yield self.event
        async with asyncio.timeout(NEVER):
            await self.asked.wait()
        yield code_pb2.CodeEvent(finished=code_pb2.CodeFinished(status=INTERRUPTED))

    async def interrupt(self, run_id: str) -> None:
        self.interrupts += 1
        self.asked.set()


class Pressed:
    """The user presses Ctrl-C while something is shown, or asked."""

    def show(self, event: code_pb2.CodeEvent) -> None:
        if event.stdout:
            os.kill(os.getpid(), signal.SIGINT)

    def ask(self, request: code_pb2.CodeInputRequest) -> str | None:
        os.kill(os.getpid(), signal.SIGINT)
        return "not reached"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize(
    "event",
    [code_pb2.CodeEvent(stdout="much"), code_pb2.CodeEvent(input_request=code_pb2.CodeInputRequest(prompt="who? "))],
    ids=["shown", "asked"],
)
def test_an_interrupt_is_one_of_the_run(loop: asyncio.AbstractEventLoop, event: code_pb2.CodeEvent) -> None:
    code, output, before = Endless(event), Pressed(), signal.getsignal(signal.SIGINT)
    # As much of both as a conversation needs.
    known: Any = (code, output)
    try:
        finished = Conversation(known[0], loop).run("while True: pass", known[1])
    except KeyboardInterrupt:
        pytest.fail("it ended the conversation")
    assert (finished.status, code.interrupts) == (INTERRUPTED, 1)
    assert signal.getsignal(signal.SIGINT) is before
