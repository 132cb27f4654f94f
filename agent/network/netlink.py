"""A route netlink socket inside a network namespace: many requests in one call, and dumps. Blocking.

The messages are pyroute2's; the socket is ours, since pyroute2 enters a namespace only by forking. The kernel works a
batch off while it is being sent, so that its answers are there when the call comes back, and waiting is bounded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyroute2.netlink.rtnl.marshal import MarshalRtnl

from retinue.agent.network import namespaces
from retinue.agent.network.errors import NetworkError
from retinue.rpc import failpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_SOL_NETLINK, _NETLINK_EXT_ACK, _NETLINK_CAP_ACK, _NETLINK_GET_STRICT_CHECK = 270, 11, 10, 12
_REQUEST, _ACK, _DUMP, _ACK_TEXTS = 0x1, 0x4, 0x300, 0x200
_ERROR, _DONE = 2, 3
_INTERRUPTED = 0x10
_DUMP_TRIES = 10
_HEADER = struct.Struct("=IHHII")
_ERRNO = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")
_TEXT_ATTRIBUTE = 1
# One message of the kernel's answer takes about a kilobyte of the socket's buffer, and a batch must not fill it.
_BATCH = 64
_RECEIVE_BYTES = 1 << 18
_TIMEOUT = 30.0

Message = Any
"""A message of pyroute2, not encoded yet, with its own `type`, and its flags but those of this module;
or one that is Packed.
"""


@dataclass(frozen=True, slots=True)
class Packed:
    """A message whose body is encoded already, for those that come in hundreds:
    building them is what programming a network takes.
    """

    kind: int
    flags: int
    body: bytes

    def encode(self, number: int) -> bytes:
        """Returns the whole message, with the sequence number."""
        flags = self.flags | _REQUEST | _ACK
        return _HEADER.pack(_HEADER.size + len(self.body), self.kind, flags, number, 0) + self.body


class RequestError(NetworkError):
    """The kernel refused a request; `code` is an errno."""

    def __init__(self, code: int, text: str) -> None:
        """`text` is the kernel's own, which may be empty."""
        super().__init__(f"{os.strerror(code)} ({errno.errorcode.get(code, code)})" + (f": {text}" if text else ""))
        self.code = code


class Netlink:
    """One socket; use it in one thread at a time."""

    def __init__(self, connection: socket.socket) -> None:
        """Uses the socket, and leaves it to the caller to close it: an open one keeps its namespace alive."""
        self._socket = connection
        self._sequence = 0
        connection.settimeout(_TIMEOUT)
        for option in (_NETLINK_EXT_ACK, _NETLINK_CAP_ACK, _NETLINK_GET_STRICT_CHECK):
            connection.setsockopt(_SOL_NETLINK, option, 1)
        connection.bind((0, 0))

    def send(self, messages: Sequence[Message], failed: Callable[[int, RequestError], None]) -> None:
        """Sends all the messages in order and waits until all are done.

        `failed` is called with the position of a message in the sequence and the error; when it raises, no further
        batch is sent. Raises NetworkError when the socket fails.
        """
        for start in range(0, len(messages), _BATCH):
            batch = messages[start : start + _BATCH]
            first = self._sequence + 1
            self._sequence += len(batch)
            buffer = bytearray()
            for number, message in enumerate(batch, first):
                if isinstance(message, Packed):
                    buffer += message.encode(number)
                    continue
                message["header"]["flags"] |= _REQUEST | _ACK
                message["header"]["sequence_number"] = number
                message.encode()
                buffer += bytes(message.data)
            self._write(buffer)
            failures = []
            awaited = set(range(first, first + len(batch)))
            while awaited:
                for kind, flags, number, payload in self._read():
                    if kind == _ERROR and number in awaited:
                        awaited.discard(number)
                        if (error := _refusal(kind, flags, payload)) is not None:
                            failures.append((start + number - first, error))
            for position, error in failures:
                failed(position, error)

    @failpoints.blocking("netlink", NetworkError, sites=True)
    def request(self, message: Message) -> list[Any]:
        """Returns the kernel's answers to one request, decoded. Raises RequestError;
        NetworkError when the socket fails.
        """
        return self._ask(message, _REQUEST | _ACK)[0]

    @failpoints.blocking("netlink", NetworkError, sites=True)
    def dump(self, message: Message) -> list[Any]:
        """Returns all that the kernel lists for the question, decoded. Raises as `request` does."""
        for _ in range(_DUMP_TRIES):
            answers, whole = self._ask(message, _REQUEST | _DUMP)
            if whole:
                return answers
        raise NetworkError("netlink: what is there changes faster than it can be read")

    def _ask(self, message: Message, flags: int) -> tuple[list[Any], bool]:
        """Returns the answers, and whether nothing changed while they were put together."""
        self._sequence += 1
        message["header"]["flags"] = flags
        message["header"]["sequence_number"] = self._sequence
        message.encode()
        self._write(bytes(message.data))
        decoder = MarshalRtnl()
        answers = bytearray()
        whole = True
        while True:
            for kind, flags_set, number, payload in self._read():
                if number != self._sequence:
                    continue
                whole = whole and not flags_set & _INTERRUPTED
                if kind in {_ERROR, _DONE}:
                    if (error := _refusal(kind, flags_set, payload)) is not None:
                        raise error
                    return list(decoder.parse(bytes(answers))), whole
                answers += _HEADER.pack(_HEADER.size + len(payload), kind, flags_set, number, 0) + payload
                answers += bytes(-len(answers) % 4)

    def _write(self, buffer: bytes | bytearray) -> None:
        try:
            self._socket.send(buffer)
        except OSError as error:
            raise NetworkError(f"netlink: {error}") from error

    def _read(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yields one read's messages: type, flags, sequence number and payload."""
        try:
            received = self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise NetworkError(f"netlink: {error}") from error
        position = 0
        while position + _HEADER.size <= len(received):
            length, kind, flags, number, _ = _HEADER.unpack_from(received, position)
            yield kind, flags, number, received[position + _HEADER.size : position + length]
            position += max(_HEADER.size, length + -length % 4)


def send_steps(
    netlink: Netlink, steps: Sequence[object], messages: Sequence[Message], failed: Callable[[int, RequestError], None]
) -> None:
    """Sends the messages of steps as `Netlink.send` does: each with a point of its step's kind, and by itself,
    while failpoints are switched on.
    """
    if failpoints.active is None:
        netlink.send(messages, failed)
        return
    for number, (step, message) in enumerate(zip(steps, messages, strict=True)):

        def send(number: int = number, message: Message = message) -> None:
            netlink.send([message], lambda _, error: failed(number, error))

        failpoints.active.blocking(f"netlink.{type(step).__name__}", send, NetworkError)


@contextlib.contextmanager
def connected(descriptor: int | None = None) -> Iterator[Netlink]:
    """Yields a socket inside the namespace of the descriptor, by default the process's own. Raises NetworkError."""
    with contextlib.ExitStack() as stack:
        try:
            opened = _open() if descriptor is None else namespaces.run_inside(descriptor, _open)
            netlink = Netlink(stack.enter_context(opened))
        except OSError as error:
            raise NetworkError(f"cannot open a netlink socket: {error}") from error
        yield netlink


def _open() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)


def _refusal(kind: int, flags: int, payload: bytes) -> RequestError | None:
    """Returns the error in an answer's last message, if any.

    It is an errno, then in an error the header of the request, then attributes with the kernel's words.
    """
    code = -_ERRNO.unpack_from(payload)[0] if len(payload) >= _ERRNO.size else 0
    if not code:
        return None
    text, position = "", _ERRNO.size + (_HEADER.size if kind == _ERROR else 0)
    while flags & _ACK_TEXTS and position + _ATTRIBUTE.size <= len(payload):
        length, attribute = _ATTRIBUTE.unpack_from(payload, position)
        if attribute == _TEXT_ATTRIBUTE:
            text = payload[position + _ATTRIBUTE.size : position + length].rstrip(b"\0").decode(errors="replace")
        position += max(_ATTRIBUTE.size, length + -length % 4)
    return RequestError(code, text)
