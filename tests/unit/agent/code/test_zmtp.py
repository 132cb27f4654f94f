"""What a kernel sends to the agent by ZeroMQ is bounded before libzmq keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.code.core.zmtp import LARGEST_COMMAND, MAX_PARTS, OVERHEAD, FrameCounter, RefusedMessageError
from retinue.agent.code.relay import Relay
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
LARGEST = 16 << 20
PART = 15 << 20


def frame(content: bytes, flags: int = 0) -> bytes:
    if len(content) < 256:
        return bytes((flags, len(content))) + content
    return bytes((flags | 2,)) + len(content).to_bytes(8) + content


class At:
    """A socket at a path."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    async def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, self._path)
        return connection

    def close(self) -> None:
        """Holds nothing."""


def ready(kind: bytes) -> bytes:
    return frame(b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4) + kind, 4)


@given(
    st.lists(st.lists(st.integers(0, 700), min_size=1, max_size=4), max_size=6),
    st.lists(st.integers(1, 97), min_size=1, max_size=20),
)
def test_messages_are_counted_however_they_are_cut(messages: list[list[int]], cuts: list[int]) -> None:
    stream = GREETING + ready(b"PUB")
    for sizes in messages:
        for number, size in enumerate(sizes):
            stream += frame(b"x" * size, flags=number < len(sizes) - 1)
        stream += frame(b"\x04PING", 4)
    counter, found, position = FrameCounter(10_000), [], 0
    for step in cuts * len(stream):
        found += counter.feed(stream[position : position + step])
        position += step
        if position >= len(stream):
            break
    assert found == [sum(sizes) for sizes in messages]


@pytest.mark.parametrize(
    "stream",
    [
        b"\x01\x00" + bytes(62),
        GREETING[:10] + b"\x01" + GREETING[11:],
        GREETING[:9] + b"\x00" + GREETING[10:],
        GREETING + b"\x08\x00",
        GREETING + b"\x02" + (10_001 + OVERHEAD).to_bytes(8),
        GREETING + b"\x03" + b"\xff" * 8,
        GREETING + frame(b"x" * (OVERHEAD + 9000), 1) + frame(b"x" * 1001, 1),
        GREETING + frame(b"", 1) * (MAX_PARTS + 1),
        GREETING + b"\x06" + (LARGEST_COMMAND + 1).to_bytes(8),
    ],
)
def test_what_is_refused(stream: bytes) -> None:
    with pytest.raises(RefusedMessageError):
        FrameCounter(10_000).feed(stream)


class Room(asyncio.Event):
    """Knows whether anything waits for it."""

    is_awaited = False

    async def wait(self) -> Literal[True]:
        self.is_awaited = True
        return await super().wait()


class Hostile:
    """Speaks ZMTP and sends a piece again and again until it is cut off or not read any more."""

    def __init__(self, path: Path, begin: bytes, piece: bytes, count: int) -> None:
        self.sent = 0
        self.done = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._work = begin, piece, count
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begin, piece, count = self._work
        connection, _ = self._listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(begin)
            for _ in range(count):
                view = memoryview(piece)
                while view:
                    taken = connection.send(view)
                    self.sent += taken
                    view = view[taken:]
        self.done.set()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.attack("hostile-code")
@pytest.mark.parametrize(
    ("piece", "count"),
    [
        (b"\x03" + PART.to_bytes(8) + bytes(PART), 40),
        # Whole messages that are not read.
        (frame(bytes(1 << 20)), 200),
        (frame(b"") * 50_000, 200),
    ],
    ids=["parts without end", "messages", "empty messages"],
)
async def test_the_agent_does_not_grow(directory: Path, piece: bytes, count: int) -> None:
    context = zmq.asyncio.Context()
    listener = context.socket(zmq.SUB)
    listener.linger = 0
    listener.setsockopt(zmq.RCVHWM, 64)
    listener.setsockopt(zmq.RECONNECT_IVL, -1)
    listener.subscribe(b"")
    hostile = Hostile(directory / "s", GREETING + ready(b"PUB"), piece, count)
    relay = Relay(At(directory / "s"), LARGEST)
    relay._changed = room = Room()  # noqa: SLF001  # it reads on once there is room
    before = resident()
    try:
        await relay.open()
        listener.connect(relay.address)
        # It is cut off, or no more is read: with empty messages, long before as much was sent.
        await eventually(lambda: hostile.done.is_set() or room.is_awaited)
        assert hostile.sent < min(LARGEST + PART + (4 << 20), count * len(piece))
        # What could be kept otherwise is 200 MiB of messages, or 64 bytes for each of ten million.
        assert resident() - before < 96 << 20
    finally:
        listener.close()
        await relay.close()
        hostile.close()
        context.term()


async def test_what_is_taken_makes_room(directory: Path) -> None:
    context = zmq.asyncio.Context()
    listener = context.socket(zmq.SUB)
    listener.linger = 0
    listener.subscribe(b"")
    hostile = Hostile(directory / "s", GREETING + ready(b"PUB"), frame(bytes(1 << 20)), 40)
    relay = Relay(At(directory / "s"), 4 << 20)
    try:
        await relay.open()
        listener.connect(relay.address)
        for _ in range(40):
            assert len((await listener.recv_multipart())[0]) == 1 << 20
            relay.taken()
    finally:
        listener.close()
        await relay.close()
        hostile.close()
        context.term()
