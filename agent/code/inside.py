"""What the agent does inside a kernel so that code can run there: put a Python into it, start Jupyter kernels, and find their sockets.

What comes back from inside is the user's word: it is bounded, checked, and no link of the user's is followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.agent.errors import BackendError
from retinue.agent.host import syscalls
from retinue.agent.host.launch_threads import in_own_thread
from retinue.agent.host.processes import alive
from retinue.agent.inside.exec_session import Attachment, AttachmentLostError, Exited, NotRunningError, Printed
from retinue.agent.kernel import code_launcher
from retinue.agent.kernel.core.frames import Start
from retinue.agent.kernel.paths import PYTHON

if TYPE_CHECKING:
    from retinue.agent.host.processes import Process
    from retinue.agent.runtime.contract import Backend

LARGEST_ANSWER = 64 * 1024
ANSWER_TIMEOUT = code_launcher.READY_SECONDS + 10
_DIRECTORY = re.compile(r"\.retinue-code-[A-Za-z0-9_]{1,32}")
_ENOUGH_PROCESS_NUMBERS = 1 << 22


class LanguageMissingError(BackendError):
    """There is no Jupyter kernel of the language; `installed` are those there are."""

    def __init__(self, message: str, installed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.installed = installed


@dataclass(frozen=True, slots=True)
class Launched:
    """A Jupyter kernel that was started: the name of its directory under /tmp, its number inside, and how it is interrupted."""

    directory: str
    pid: int
    by_message: bool


def inject(process: Process, runtime: Path) -> None:
    """Mounts the runtime into a kernel, unless it is there already. Blocks. Raises NotRunningError, BackendError."""
    try:
        namespace = os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NotRunningError("the kernel has ended") from error
    try:
        if not alive(process):
            raise NotRunningError("the kernel has ended")

        def inside() -> None:
            directory = os.open(runtime, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_RDONLY
                mount = syscalls.clone_mount(directory, attributes)
            finally:
                os.close(directory)
            try:
                syscalls.unshare(syscalls.CLONE_FS)
                syscalls.enter(namespace, syscalls.CLONE_NEWNS)
                os.umask(0o022)
                if Path(PYTHON, "bin/python3").exists():
                    return
                Path(PYTHON).mkdir(mode=0o755, parents=True, exist_ok=True)
                target = os.open(PYTHON, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    syscalls.attach_mount(mount, target)
                finally:
                    os.close(target)
            finally:
                os.close(mount)

        in_own_thread(inside)
    except OSError as error:
        raise BackendError(f"the Python for code cannot be put into the kernel: {error}") from error
    finally:
        os.close(namespace)


async def launch(backend: Backend, attempt_id: str, language: str, key: str) -> Launched:
    """Starts the Jupyter kernel of a language. Raises LanguageMissingError, NotRunningError, BackendError."""
    answer = await _ask(backend, attempt_id, {"language": language, "key": key})
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
        raise BackendError("what comes from the kernel makes no sense")
    if not (isinstance(pid, int) and 1 < pid < _ENOUGH_PROCESS_NUMBERS):
        raise BackendError("what comes from the kernel makes no sense")
    return Launched(directory, pid, answer.get("by_message") is True)


async def send_signal(backend: Backend, attempt_id: str, pid: int, number: int) -> None:
    """Sends a signal to a Jupyter kernel, by its number inside. Raises NotRunningError, BackendError."""
    await _ask(backend, attempt_id, {"signal": number, "pid": pid})


async def _ask(backend: Backend, attempt_id: str, request: dict[str, Any]) -> dict[str, Any]:
    """Runs the launcher inside, with the request as its input; its answer."""
    wire = await backend.attach(attempt_id)
    attachment = Attachment(wire)
    output, errors = bytearray(), bytearray()
    program = await asyncio.to_thread(Path(code_launcher.__file__).read_text)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            command = (f"{PYTHON}/bin/python3", "-S", "-E", "-c", program)
            await attachment.start(Start(command, wire.environment, wire.directory, leaves=True))
            await attachment.write(json.dumps(request).encode())
            await attachment.end_input()
            async with contextlib.aclosing(attachment.events()) as events:
                async for event in events:
                    if isinstance(event, Printed):
                        (errors if event.errors else output).extend(event.data)
                    if len(output) + len(errors) > LARGEST_ANSWER:
                        raise BackendError("what comes from the kernel makes no sense")
                    if isinstance(event, Exited) and event.code != 0:
                        raise BackendError(f"code cannot run in the kernel: {errors[-1000:].decode(errors='replace')}")
    except (TimeoutError, AttachmentLostError) as error:
        raise BackendError("the kernel did not answer") from error
    except ValueError as error:
        raise BackendError("what comes from the kernel makes no sense") from error
    finally:
        await attachment.close()
    return parse_answer(output)


def parse_answer(output: bytes | bytearray) -> dict[str, Any]:
    """Returns what a launcher has answered, or whatever runs in its place. Raises BackendError."""
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError) as error:
        raise BackendError("what comes from the kernel makes no sense") from error
    if not isinstance(answer, dict):
        raise BackendError("what comes from the kernel makes no sense")
    return answer


def open_sockets(process: Process, directory: str) -> dict[str, int]:
    """Descriptors by which a Jupyter kernel's sockets are reached, whatever lies at their names later. Blocks.

    Raises NotRunningError when there is no kernel, or none of its sockets.
    """
    found: dict[str, int] = {}
    try:
        root = os.open(f"/proc/{process.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not alive(process):
                raise NotRunningError("the kernel has ended")
            temporary = os.open("tmp", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
            try:
                place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=temporary)
            finally:
                os.close(temporary)
        finally:
            os.close(root)
        try:
            for name in ("shell", "iopub", "stdin", "control"):
                number = code_launcher.PORTS[f"{name}_port"]
                found[name] = os.open(f"s-{number}", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
                if not stat.S_ISSOCK(os.fstat(found[name]).st_mode):
                    raise NotRunningError("a socket of the Jupyter kernel is none")
        finally:
            os.close(place)
    except (OSError, NotRunningError) as error:
        for descriptor in found.values():
            os.close(descriptor)
        raise NotRunningError("the Jupyter kernel has ended") from error
    return found
