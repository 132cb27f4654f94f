"""A command run in a kernel, for as long as the caller keeps its stream open."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from retinue.client.errors import Unavailable
from retinue.client.transport.bidi_stream import BidiStream
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.types.v1 import terminal_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType

    from retinue.manager.v1 import kernel_service_pb2_grpc

CHUNK = 32 * 1024
"""Most bytes of input in one message."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A piece of what the command printed; `errors` says that it came on standard error,
    which a terminal does not separate.
    """

    data: bytes
    errors: bool = False


class Attachment:
    """One command in a kernel: iterate over what it prints, up to its end; then `exit_code` is set.

    async with session.attach(["python3", "-c", "print(1)"]) as command:
        async for piece in command:
            print(piece.data.decode(), end="")
        print(command.exit_code)

    Leaving the block before the end ends the command, and all that it started, but for processes that are to be kept.
    A detached command runs apart: its iteration ends as soon as it runs, and then `exit_code` is None. One task at a
    time reads; steps that are sent by several are sent one after the other. All methods raise CallError.
    """

    def __init__(self, stub: kernel_service_pb2_grpc.KernelServiceAsyncStub, start: pb.AttachStart) -> None:
        """Sends nothing before the block is entered."""
        self._stub = stub
        self._start = start
        self.exit_code: int | None = None

    async def __aenter__(self) -> Self:
        """Asks for the command to be started."""
        identity = str(uuid.uuid4())
        self._exchange = BidiStream[pb.AttachRequest, pb.AttachResponse](self._stub.Attach, identity)
        await self._exchange.send(pb.AttachRequest(start=self._start))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the command, if it has not ended."""
        self._exchange.cancel()

    async def __aiter__(self) -> AsyncIterator[Printed]:
        """Yields what the command prints, as it comes; reads nothing ahead of the iterating task."""
        while True:
            output = (await self._exchange.receive()).output
            match output.WhichOneof("step"):
                case "started" if self._start.spec.detached:
                    return
                case "stdout":
                    yield Printed(output.stdout)
                case "stderr":
                    yield Printed(output.stderr, errors=True)
                case "exited":
                    self.exit_code = output.exited.exit_code
                    return

    async def write(self, data: bytes) -> None:
        """Sends input to the command; returns when it is sent, which may take until the command reads."""
        for begin in range(0, len(data), CHUNK):
            await self._send(terminal_pb2.CommandInput(stdin=data[begin : begin + CHUNK]))

    async def end_input(self) -> None:
        """Ends the input; a command that has ended reads none."""
        try:
            await self._send(terminal_pb2.CommandInput(end_of_input=terminal_pb2.EndOfInput()))
        except Unavailable:
            if not self._exchange.ended_well:
                raise

    async def resize(self, rows: int, columns: int) -> None:
        """Gives the terminal another size."""
        size = terminal_pb2.TerminalSize(rows=rows, columns=columns)
        await self._send(terminal_pb2.CommandInput(resize=size))

    async def signal(self, name: str) -> None:
        """Sends a signal, for instance `INT`."""
        await self._send(terminal_pb2.CommandInput(signal=name))

    async def _send(self, step: terminal_pb2.CommandInput) -> None:
        await self._exchange.send(pb.AttachRequest(input=step))


def attach_start(
    session: str,
    hostname: str,
    command: Sequence[str],
    *,
    terminal: tuple[int, int] | None,
    environment: Mapping[str, str] | None,
    working_directory: str,
    keep_processes: bool,
    detached: bool,
) -> pb.AttachStart:
    """Returns the first step; `terminal` is rows and columns."""
    size = None if terminal is None else terminal_pb2.TerminalSize(rows=terminal[0], columns=terminal[1])
    spec = terminal_pb2.CommandSpec(
        command=command,
        environment=environment or {},
        working_directory=working_directory,
        terminal=size,
        keep_processes=keep_processes,
        detached=detached,
    )
    return pb.AttachStart(session=session, hostname=hostname, spec=spec)
