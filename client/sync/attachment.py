"""The form of `retinue.client.kernel.attachment` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client.blocking import iterate, run
from retinue.client.kernel import attachment as aio_attachment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import TYPE_CHECKING, Self

    from retinue.client.kernel.attachment import Printed


class Attachment:
    """One command in a kernel: iterate over what it prints, up to its end; then `exit_code` is set.

    with session.attach(["python3", "-c", "print(1)"]) as command:
        for piece in command:
            print(piece.data.decode(), end="")
        print(command.exit_code)

    Leaving the block before the end ends the command, and all that it started, but for processes that are to be kept.
    A detached command runs apart: its iteration ends as soon as it runs, and then `exit_code` is None. One task at a
    time reads; steps that are sent by several are sent one after the other. All methods raise CallError.
    """

    def __init__(self, asynchronous: aio_attachment.Attachment) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    @property
    def exit_code(self) -> int | None:
        """Returns the `exit_code` of the asynchronous form."""
        return self._asynchronous.exit_code

    def __enter__(self) -> Self:
        """Asks for the command to be started."""
        run(self._asynchronous.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the command, if it has not ended."""
        run(self._asynchronous.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Printed]:
        """Yields what the command prints, as it comes; reads nothing ahead of the iterating task."""
        return iterate(aiter(self._asynchronous))

    def write(self, data: bytes) -> None:
        """Sends input to the command; returns when it is sent, which may take until the command reads."""
        run(self._asynchronous.write(data))

    def end_input(self) -> None:
        """Ends the input."""
        run(self._asynchronous.end_input())

    def resize(self, rows: int, columns: int) -> None:
        """Gives the terminal another size."""
        run(self._asynchronous.resize(rows, columns))

    def signal(self, name: str) -> None:
        """Sends a signal, for instance `INT`."""
        run(self._asynchronous.signal(name))
