"""Commands in the kernels of sessions, and what kernels print."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from retinue.client.errors import CallError
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.client.kernel.attachment import Attachment
    from retinue.client.sessions import Session

# The main kernel of a batch session ends all others with it: it waits until `finish`.
UNTIL_FINISHED = "while [ ! -e finish ]; do sleep 0.1; done"


async def read(command: Attachment, until: bytes | None = None) -> tuple[bytes, bytes]:
    """Returns output and errors up to the end of a command, or until its output has these bytes."""
    out, err = bytearray(), bytearray()
    async with asyncio.timeout(NEVER):
        async for piece in command:
            (err if piece.errors else out).extend(piece.data)
            if until is not None and until in out:
                break
    return bytes(out), bytes(err)


async def ran(session: Session, *command: str, **values: Any) -> tuple[bytes, bytes, int | None]:
    """Runs a command without input; returns its output, its errors and its exit code."""
    async with session.attach(command, **values) as attachment:
        await attachment.end_input()
        out, err = await read(attachment)
        return out, err, attachment.exit_code


async def shell(session: Session, script: str, hostname: str = "") -> str:
    """Runs a script that succeeds; returns what it prints."""
    out, err, code = await ran(session, "sh", "-c", script, hostname=hostname)
    assert code == 0, (out, err, code)
    return out.decode()


async def finish(session: Session) -> None:
    """Lets a main kernel end that waits for it, with `UNTIL_FINISHED`."""
    # The kernel may be gone before it has said that the command has ended.
    with contextlib.suppress(CallError):
        await shell(session, "touch finish")


async def printed(session: Session, hostname: str = "main1") -> str:
    """Returns what a kernel has printed so far, or in all."""
    return b"".join([chunk.data async for chunk in session.logs(hostname)]).decode()


async def until_printed(session: Session, text: bytes) -> None:
    """Waits until the main kernel has printed this."""
    out = bytearray()
    async with asyncio.timeout(NEVER):
        async for chunk in session.logs(follow=True):
            out += chunk.data
            if text in out:
                return
    raise AssertionError(f"it ended without having printed {text!r}: {out.decode()!r}")
