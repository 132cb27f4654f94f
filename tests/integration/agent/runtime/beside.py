"""Commands beside a kernel's own: how tests run them, and the processes that there are in the kernel."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.agent.inside.exec_session import Attachment, Exited, Printed, Started
from retinue.agent.kernel.core.frames import Start
from tests.integration.agent.runtime.conftest import first_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.agent.runtime.conftest import Contract


@dataclass
class Seen:
    """What came of a command."""

    started: bool = False
    output: bytes = b""
    errors: bytes = b""
    code: int | None = None
    pieces: list[int] = field(default_factory=list)


@contextlib.asynccontextmanager
async def attached(contract: Contract, *command: str, **values: object) -> AsyncIterator[Attachment]:
    assert contract.current is not None
    wire = await contract.current.kernel("k.1").exec()
    attachment = Attachment(wire)
    environment = wire.environment | values.pop("environment", {})  # type: ignore[operator]
    try:
        directory = str(values.pop("directory", wire.directory))
        await attachment.start(Start(command, environment, directory, **values))  # type: ignore[arg-type]
        yield attachment
    finally:
        await attachment.close()


async def seen(attachment: Attachment, until: bytes | None = None) -> Seen:
    """Reads to the end, or until something was printed."""
    result = Seen()
    async with contextlib.aclosing(attachment.events()) as events:
        async for event in events:
            match event:
                case Started():
                    result.started = True
                case Printed(data, errors):
                    result.pieces.append(len(data))
                    if errors:
                        result.errors += data
                    else:
                        result.output += data
                case Exited(code):
                    result.code = code
            if until is not None and until in result.output:
                break
    return result


async def ran(contract: Contract, *command: str, data: bytes = b"", **values: object) -> Seen:
    """Runs a command to its end, with this input unless it has a terminal."""
    async with attached(contract, *command, **values) as attachment:
        if "size" in values:
            return await seen(attachment)
        writing = asyncio.create_task(_write_all(attachment, data))
        result = await seen(attachment)
        # What it did not read by its end is never taken.
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        return result


async def _write_all(attachment: Attachment, data: bytes) -> None:
    await attachment.write(data)
    await attachment.end_input()


def members(contract: Contract) -> set[int]:
    """Numbers, on the node, of the processes in the kernel's own process namespace."""
    init = first_process(contract, "k.1")
    namespace = os.stat(f"/proc/{init.pid}/ns/pid").st_ino
    found = set()
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.stat(f"/proc/{entry}/ns/pid").st_ino == namespace:
                found.add(int(entry))
    return found
