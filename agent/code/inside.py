"""Prepares a kernel so that code can run in it: provides a Python, starts Jupyter kernels, and finds their sockets.

What comes back from inside is the user's word: it is bounded, checked, and no link of the user's is followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.agent.errors import KernelRuntimeError, NotRunningError, PausedError
from retinue.agent.inside.exec_session import Attachment, AttachmentLostError, Exited, Printed
from retinue.agent.kernel import code_launcher
from retinue.agent.kernel.core.frames import Start
from retinue.agent.kernel.paths import PYTHON

if TYPE_CHECKING:
    from retinue.agent.runtime.kernel import Kernel, KernelSocket

CHANNELS = ("shell", "iopub", "stdin", "control")
TEMPORARY = "/tmp"  # noqa: S108  # where the launcher makes its directory, in the kernel
LARGEST_ANSWER = 64 * 1024
ANSWER_TIMEOUT = code_launcher.READY_SECONDS + 10
_DIRECTORY = re.compile(r"\.retinue-code-[A-Za-z0-9_]{1,32}")
_ENOUGH_PROCESS_NUMBERS = 1 << 22


class LanguageMissingError(KernelRuntimeError):
    """There is no Jupyter kernel of the language; `installed` are those there are."""

    def __init__(self, message: str, installed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.installed = installed


@dataclass(frozen=True, slots=True)
class Launched:
    """A Jupyter kernel that was started: the name of its directory under /tmp, its number inside,
    and how it is interrupted.
    """

    directory: str
    pid: int
    by_message: bool


async def launch(kernel: Kernel, language: str, key: str) -> Launched:
    """Starts the Jupyter kernel of a language. Raises LanguageMissingError, NotRunningError, KernelRuntimeError."""
    answer = await _ask(kernel, {"language": language, "key": key})
    if "error" in answer:
        listed = answer.get("installed")
        names = tuple(str(name) for name in listed if isinstance(name, str)) if isinstance(listed, list) else ()
        if answer["error"] == "missing":
            raise LanguageMissingError(
                f"there is no Jupyter kernel for {language!r} in main1 (there is: {', '.join(names)}): add one to the image, "
                "so that a `kernel.json` lies beneath /usr/local/share/jupyter/kernels",
                names,
            )
        raise LanguageMissingError(str(answer["error"]), names)
    directory, pid = answer.get("directory"), answer.get("pid")
    if not (isinstance(directory, str) and _DIRECTORY.fullmatch(directory)):
        raise KernelRuntimeError("what comes from the kernel makes no sense")
    if not (isinstance(pid, int) and 1 < pid < _ENOUGH_PROCESS_NUMBERS):
        raise KernelRuntimeError("what comes from the kernel makes no sense")
    return Launched(directory, pid, answer.get("by_message") is True)


async def send_signal(kernel: Kernel, pid: int, number: int) -> None:
    """Sends a signal to a Jupyter kernel, by its number inside. Raises NotRunningError, KernelRuntimeError."""
    await _ask(kernel, {"signal": number, "pid": pid})


async def _ask(kernel: Kernel, request: dict[str, Any]) -> dict[str, Any]:
    """Runs the launcher inside, with the request as its input; its answer."""
    wire = await kernel.exec()
    attachment = Attachment(wire)
    output, errors = bytearray(), bytearray()
    program = await asyncio.to_thread(Path(code_launcher.__file__).read_text)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            command = (f"{PYTHON}/bin/python3", "-S", "-I", "-c", program)
            await attachment.start(Start(command, wire.environment, wire.directory, leaves=True))
            await attachment.write(json.dumps(request).encode())
            await attachment.end_input()
            async with contextlib.aclosing(attachment.events()) as events:
                async for event in events:
                    if isinstance(event, Printed):
                        (errors if event.errors else output).extend(event.data)
                    if len(output) + len(errors) > LARGEST_ANSWER:
                        raise KernelRuntimeError("what comes from the kernel makes no sense")
                    if isinstance(event, Exited) and event.code != 0:
                        raise KernelRuntimeError(
                            f"code cannot run in the kernel: {errors[-1000:].decode(errors='replace')}"
                        )
    except (TimeoutError, AttachmentLostError) as error:
        raise KernelRuntimeError("the kernel did not answer") from error
    except ValueError as error:
        raise KernelRuntimeError("what comes from the kernel makes no sense") from error
    finally:
        await attachment.close()
    return parse_answer(output)


def parse_answer(output: bytes | bytearray) -> dict[str, Any]:
    """Returns what a launcher has answered, or whatever runs in its place. Raises KernelRuntimeError."""
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError) as error:
        raise KernelRuntimeError("what comes from the kernel makes no sense") from error
    if not isinstance(answer, dict):
        raise KernelRuntimeError("what comes from the kernel makes no sense")
    return answer


async def open_sockets(kernel: Kernel, directory: str) -> dict[str, KernelSocket]:
    """Returns a Jupyter kernel's sockets by channel. Raises NotRunningError when there is no kernel,
    or none of its sockets.
    """
    numbers = [code_launcher.PORTS[f"{name}_port"] for name in CHANNELS]
    try:
        found = await kernel.open_sockets(f"{TEMPORARY}/{directory}", tuple(f"s-{number}" for number in numbers))
    except PausedError:
        raise
    except NotRunningError as error:
        raise NotRunningError("the Jupyter kernel has ended") from error
    return dict(zip(CHANNELS, found, strict=True))
