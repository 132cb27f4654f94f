"""A helper inside a kernel is believed as far as one of ours goes, and costs others nothing."""

from __future__ import annotations

import asyncio

import pytest

from retinue.agent.inside.exec_session import (
    FRAMES_AT_A_TIME,
    Attachment,
    AttachmentLostError,
    ExecStream,
    Exited,
    Printed,
    Started,
)
from retinue.agent.kernel.core import frames

pytestmark = pytest.mark.asyncio


class Helper:
    """All that a helper sends, which is there at once; a Channel."""

    def __init__(self, *said: bytes) -> None:
        self._reader = asyncio.StreamReader()
        self._reader.feed_data(b"".join(said))
        self._reader.feed_eof()
        self.taken = bytearray()

    async def readexactly(self, count: int) -> bytes:
        return await self._reader.readexactly(count)

    async def send(self, data: bytes) -> None:
        self.taken += data

    async def close(self) -> None:
        """Nothing is open."""


async def _ended() -> None:
    """Nothing is left."""


def attached(helper: Helper) -> Attachment:
    return Attachment(ExecStream(helper, _ended, {}))


def number(kind: bytes, value: int) -> bytes:
    return frames.frame(kind, frames.NUMBER.pack(value))


STARTED = frames.frame(frames.STARTED, b"")


async def test_a_command_is_followed_to_its_end() -> None:
    said = (STARTED, frames.frame(frames.OUTPUT, b"out"), frames.frame(frames.ERRORS, b"err"), number(frames.EXITED, 3))
    events = [event async for event in attached(Helper(*said)).events()]
    assert events == [Started(), Printed(b"out", errors=False), Printed(b"err", errors=True), Exited(3)]


@pytest.mark.parametrize(
    "said",
    [
        # Of none is there an end, if one is let pass.
        frames.frame(frames.OUTPUT, b""),
        STARTED * 2,
        number(frames.TAKEN, 0),
        # More input than there was.
        number(frames.TAKEN, 2),
        number(frames.TAKEN, 1) * 2,
        frames.frame(b"?", b"words"),
    ],
)
async def test_what_no_helper_sends_ends_it(said: bytes) -> None:
    with pytest.raises(AttachmentLostError, match="makes no sense"):
        async for _ in attached(Helper(said)).events():
            pass


async def test_a_refusal_has_few_words() -> None:
    with pytest.raises(AttachmentLostError) as lost:
        async for _ in attached(Helper(frames.frame(frames.REFUSED, b"x" * frames.LARGEST))).events():
            pass
    assert str(lost.value) == "x" * 1000


async def test_input_is_sent_as_it_is_taken() -> None:
    helper = Helper(number(frames.TAKEN, frames.WINDOW), number(frames.TAKEN, 2), number(frames.EXITED, 0))
    session = attached(helper)
    writing = asyncio.create_task(session.write(b"x" * (frames.WINDOW + 1)))
    # It waits for what is taken.
    await asyncio.sleep(0)
    assert len(helper.taken) == frames.HEADER.size + frames.WINDOW
    events = session.events()
    with pytest.raises(AttachmentLostError):
        # A byte of input, and one for the end of it, but nothing before that was sent.
        await anext(events)
    writing.cancel()


async def test_a_flood_of_small_frames_leaves_others_their_turn() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    count = 100 * FRAMES_AT_A_TIME
    helper = Helper(frames.frame(frames.OUTPUT, b"x") * count, number(frames.EXITED, 0))
    assert len([event async for event in attached(helper).events()]) == count + 1
    task.cancel()
    assert turns >= 100
