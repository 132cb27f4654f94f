"""Runs inside a kernel, in the Python that is put there: what code prints, in pieces that are all taken,
however much it is.

`ipykernel` sends what was printed within 0.2 s as one message, and a message for which there is no room is dropped
without a word. Here printing waits until there is room, as for any program that prints into a pipe.
"""

from __future__ import annotations

from typing import Any

import zmq
from ipykernel.iostream import OutStream

PIECE = 32 * 1024
"""Characters in one message, of which 1,000 may wait in here to be taken."""


class Output(OutStream):  # type: ignore[misc]  # ipykernel is in the kernel's Python, not in the agent's
    """Standard output or error of code."""

    def __init__(self, session: Any, pub_thread: Any, name: str, **options: Any) -> None:
        """As `ipykernel` makes it."""
        self._unsent = 0
        super().__init__(session, pub_thread, name, **options)
        # Sockets belong to their threads.
        pub_thread.schedule(lambda: pub_thread.socket.setsockopt(zmq.XPUB_NODROP, 1))

    def write(self, string: str) -> int | None:
        """Waits while too much is not sent yet."""
        if not isinstance(string, str) or len(string) < PIECE:
            self._write(string)
        else:
            for begin in range(0, len(string), PIECE):
                self._write(string[begin : begin + PIECE])
        return len(string)

    def _write(self, string: str) -> None:
        super().write(string)
        self._unsent += len(string)
        if self._unsent >= PIECE:
            self.flush()

    def _flush(self) -> None:
        self._unsent = 0
        super()._flush()
