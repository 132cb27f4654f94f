"""Bounds what a peer may send by ZMTP, before libzmq reads it: that keeps all parts of a
message until the last one is there.

The bytes are passed on as they are. Only the frames of version 3 are known here, so nothing older is let through:
https://rfc.zeromq.org/spec/23/.
"""

from __future__ import annotations

GREETING = 64
# Places and values in a greeting: both ends of the signature, and the version.
_SIGNATURE = (0, 0xFF), (9, 0x7F), (10, 3)
_MORE, _LONG, _COMMAND = 1, 2, 4
LARGEST_COMMAND = 64 * 1024
MAX_PARTS = 64
OVERHEAD = 64 * 1024
"""Bytes that the parts of a message besides its content may take."""


class RefusedMessageError(Exception):
    """The peer sends more at once than is taken, or no ZMTP 3; the text says which."""


class FrameCounter:
    """Follows one direction of a connection. Pure, but for what it remembers of the stream."""

    def __init__(self, largest: int) -> None:
        """`largest` are the bytes of the content of one message, all parts together."""
        self._most = largest + OVERHEAD
        self._greeting = GREETING
        self._head = bytearray()
        self._left = 0
        self._flags = 0
        self._size = 0
        self._parts = 0
        self._begin = bytearray()

    def feed(self, data: bytes) -> list[int]:
        """Takes in what comes next; the sizes of messages that are complete with it. Raises RefusedMessageError."""
        complete, position = [], 0
        if self._greeting:
            piece = data[: self._greeting]
            self._begin += piece
            self._greeting -= len(piece)
            position = len(piece)
            self._check_greeting()
        while position < len(data):
            if self._left:
                step = min(self._left, len(data) - position)
                self._left -= step
                position += step
            else:
                self._head.append(data[position])
                position += 1
                if not self._read_head():
                    continue
            if self._left == 0 and not self._flags & (_MORE | _COMMAND):
                complete.append(self._size)
                self._size = self._parts = 0
        return complete

    def _check_greeting(self) -> None:
        for position, value in _SIGNATURE:
            if len(self._begin) > position and self._begin[position] != value:
                raise RefusedMessageError("it does not speak ZMTP 3")

    def _read_head(self) -> bool:
        """Returns whether the head of a frame is whole."""
        flags = self._head[0]
        if flags & ~(_MORE | _LONG | _COMMAND):
            raise RefusedMessageError("a frame has flags that there are not")
        if len(self._head) < (9 if flags & _LONG else 2):
            return False
        length = int.from_bytes(self._head[1:])
        self._head.clear()
        self._flags, self._left = flags, length
        if flags & _COMMAND:
            if length > LARGEST_COMMAND:
                raise RefusedMessageError("a command is too large")
            return True
        self._size += length
        self._parts += 1
        if self._size > self._most or self._parts > MAX_PARTS:
            raise RefusedMessageError("a message is too large")
        return True
