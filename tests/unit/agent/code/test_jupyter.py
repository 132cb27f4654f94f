"""Runs end, and those after them continue, whatever of a Jupyter kernel's messages is lost or too large.
The kernel here is one of few words.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest_asyncio
import zmq
import zmq.asyncio
from jupyter_client.session import Session

from retinue.agent.code import jupyter
from retinue.agent.code.core.events import Event, Finished, Notice, RunRequest, Status, Text
from retinue.agent.code.jupyter import Jupyter
from retinue.agent.code.runs import Run
from retinue.agent.inside.sockets import KernelSocket
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

KEY = "key"


class TerseKernel:
    """Answers every request; what it publishes of a run is `published`, by the code,
    and `huge` in its answer is more than is taken.
    """

    def __init__(self, context: zmq.asyncio.Context, directory: Path) -> None:
        self._session = Session(key=KEY.encode(), signature_scheme="hmac-sha256")
        kinds = {"shell": zmq.ROUTER, "control": zmq.ROUTER, "stdin": zmq.ROUTER, "iopub": zmq.XPUB}
        self.sockets = {name: context.socket(kind) for name, kind in kinds.items()}
        for name, socket in self.sockets.items():
            socket.linger = 0
            socket.bind(f"ipc://{directory}/{name}")
        self.targets = {name: KernelSocket(os.open(directory / name, os.O_PATH)) for name in kinds}

    async def answer(self, channel: str) -> None:
        while True:
            identities, frames = self._session.feed_identities(await self.sockets[channel].recv_multipart())
            request = self._session.deserialize(frames)
            kind, code = request["header"]["msg_type"], request["content"].get("code", "")
            if kind == "kernel_info_request" or "quiet" not in code:
                await self._publish("status", {"execution_state": "busy"}, request)
                if "flood" in code:
                    await self._publish("stream", {"name": "stdout", "text": "x" * (jupyter.LARGEST_PART + 1)}, request)
                await self._publish("stream", {"name": "stdout", "text": code}, request)
                await self._publish("status", {"execution_state": "idle"}, request)
            if "unanswered" in code:
                continue
            content: dict[str, Any] = {"status": "ok"}
            if "huge" in code:
                content["payload"] = "x" * (jupyter.LARGEST_PART + 1)
            reply = self._session.msg(kind.replace("request", "reply"), content, parent=request["header"])
            await self.sockets[channel].send_multipart([*identities, *self._session.serialize(reply)])

    async def _publish(self, kind: str, content: dict[str, Any], request: dict[str, Any]) -> None:
        message = self._session.msg(kind, content, parent=request["header"])
        await self.sockets["iopub"].send_multipart([b"topic", *self._session.serialize(message)])


@pytest_asyncio.fixture
async def conversation(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Jupyter]:
    monkeypatch.setattr(jupyter, "LARGEST_PART", 100_000)
    monkeypatch.setattr(jupyter, "IDLE_STEP", 0.02)
    context = zmq.asyncio.Context()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        kernel = TerseKernel(context, Path(directory))
        answering = [asyncio.create_task(kernel.answer(channel)) for channel in ("shell", "control")]
        talk = Jupyter(context, KEY, kernel.targets)
        try:
            await talk.open(fresh=True)
            yield talk
        finally:
            await talk.close()
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)
            for socket in kernel.sockets.values():
                socket.close()
            context.term()


async def ran(talk: Jupyter, code: str) -> list[Event]:
    """The events of a run."""
    run = Run(RunRequest("r", code))
    async with asyncio.timeout(NEVER):
        execution = await talk.execute(run, code)
        await execution.done.wait()
    run.append(talk.result(run))
    return [item.event async for events in run.read(0) for item in events]


def summary(events: list[Event]) -> tuple[str, str, Status]:
    """What was printed, what was remarked, and how it ended."""
    finished = events[-1]
    assert isinstance(finished, Finished)
    printed = "".join(event.text for event in events if isinstance(event, Text) and not event.errors)
    return printed, "".join(event.message for event in events if isinstance(event, Notice)), finished.status


async def test_a_run_ends_where_the_word_of_its_end_is_lost(conversation: Jupyter) -> None:
    printed, remark, status = summary(await ran(conversation, "quiet"))
    assert (printed, status) == ("", Status.OK)
    assert "lost" in remark
    assert summary(await ran(conversation, "next")) == ("next", "", Status.OK)


async def test_what_is_too_large_is_left_out_and_that_is_reported(conversation: Jupyter) -> None:
    printed, remark, status = summary(await ran(conversation, "flood"))
    assert ("x" not in printed, status) == (True, Status.OK)
    assert "more than" in remark
    assert summary(await ran(conversation, "next")) == ("next", "", Status.OK)


async def test_an_answer_that_is_too_large_is_an_error(conversation: Jupyter) -> None:
    events = await ran(conversation, "huge")
    assert summary(events)[2] == Status.ERROR
    assert isinstance(events[-1], Finished)
    assert "larger than" in events[-1].error_value
    assert summary(await ran(conversation, "next")) == ("next", "", Status.OK)


async def test_a_run_that_is_not_answered_ends_with_an_error(conversation: Jupyter) -> None:
    printed, _, status = summary(await ran(conversation, "unanswered"))
    assert (printed, status) == ("unanswered", Status.ERROR)
    assert summary(await ran(conversation, "next")) == ("next", "", Status.OK)


async def test_events_stop_before_their_receivers_close(conversation: Jupyter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else libzmq waits for a receiver while it holds the lock that stopping the events takes,
    and the agent with it.
    """
    closed: list[bool] = []
    disable_monitor = zmq.asyncio.Socket.disable_monitor

    def checked(socket: zmq.asyncio.Socket) -> None:
        if (receiver := socket._monitor_socket) is not None:  # noqa: SLF001  # it has no other name
            closed.append(receiver.closed)
        disable_monitor(socket)

    monkeypatch.setattr(zmq.asyncio.Socket, "disable_monitor", checked)
    await conversation.close()
    assert closed == [False, False, False]
