"""What every runtime does in the same way: the suite that a new one starts from.

A runtime takes part by a module that provides the fixture `harness` and imports the tests from here. It needs to run a
few commands only: none (idle), `true`, `sleep 1000`, `echo WORDS`, `env` and `sh -c "exit N"`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.errors import KernelRuntimeError, NotRunningError, PortClosedError, UnknownAttemptError
from retinue.agent.inside.exec_session import Attachment, Exited, Printed
from retinue.agent.inside.upload import DigestError, UploadHeader
from retinue.agent.inside.workdir import MissingError, PathError
from retinue.agent.kernel.core.frames import Start
from retinue.agent.network.sockets import LOOPBACK
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.agent.attempts import AttemptSpec, ObservedAttempt
    from retinue.agent.runtime.contract import Runtime
    from retinue.agent.runtime.kernel import Kernel, WorkDirectory

HOSTS = "127.0.0.1\tlocalhost\n"
CLOSED_PORT = 4711


class Harness(Protocol):
    """Opens runtimes of one kind at one place, one after another, as an agent does when it is restarted."""

    async def open(self) -> Runtime:
        """Closes the runtime that is open, and opens the next one."""
        ...

    def spec(self, name: str, *command: str) -> AttemptSpec:
        """Returns what the attempt NAME.1 is made of."""
        ...

    async def until(self, attempt_id: str, *phases: Phase) -> ObservedAttempt:
        """Waits for changes that the runtime notifies of, until the attempt is in one of the phases."""
        ...


async def held(harness: Harness, *command: str) -> Runtime:
    """Prepares an attempt: some kinds continue with it by themselves."""
    runtime = await harness.open()
    await runtime.prepare(harness.spec("k", *command), HOSTS)
    await harness.until("k.1", Phase.CREATED, Phase.FAILED)
    return runtime


async def running(harness: Harness, *command: str) -> tuple[Runtime, Kernel]:
    runtime = await held(harness, *command)
    await runtime.start("k.1")
    await harness.until("k.1", Phase.RUNNING, Phase.EXITED)
    return runtime, runtime.kernel("k.1")


async def end(harness: Harness, runtime: Runtime) -> None:
    await runtime.kill("k.1")
    await harness.until("k.1", Phase.EXITED)


@pytest.mark.parametrize(("command", "code"), [(("true",), 0), (("sh", "-c", "exit 3"), 3)])
async def test_a_command_runs_from_start_to_its_end(harness: Harness, command: tuple[str, ...], code: int) -> None:
    runtime = await held(harness, *command)
    prepared = runtime.observe()["k.1"]
    assert (prepared.phase, prepared.held, prepared.start_time) == (Phase.CREATED, True, None)
    await runtime.start("k.1")
    ended = await harness.until("k.1", Phase.EXITED)
    assert (ended.exit_code, ended.reason) == (code, "EXITED")
    assert ended.start_time is not None
    assert ended.end_time is not None
    assert ended.start_time <= ended.end_time
    await runtime.remove("k.1")
    assert not runtime.observe()


async def test_a_variable_may_have_any_name(harness: Harness) -> None:
    variables = {"discovery.type": "single-node", "-u": "PATH", "--": "2", "1st": "3", "two words": "=", "X": ""}
    variables["USER"] = "ann"
    runtime = await harness.open()
    await runtime.prepare(replace(harness.spec("k", "env"), environment=variables), HOSTS)
    await harness.until("k.1", Phase.CREATED, Phase.FAILED)
    await runtime.start("k.1")
    await harness.until("k.1", Phase.EXITED)
    printed = b"".join([piece.data async for piece in runtime.output("k.1").stream(0, follow=False)]).decode()
    # Who goes by another name does so in both variables that programs look at.
    assert {f"{name}={value}" for name, value in (variables | {"LOGNAME": "ann"}).items()} <= set(printed.splitlines())


async def test_an_attempt_is_prepared_and_started_once_ever(harness: Harness) -> None:
    runtime = await harness.open()
    wanted = harness.spec("k", "echo", "once")
    await asyncio.gather(*(runtime.prepare(wanted, HOSTS) for _ in range(5)))
    await harness.until("k.1", Phase.CREATED, Phase.FAILED)
    await asyncio.gather(*(runtime.start("k.1") for _ in range(5)))
    await harness.until("k.1", Phase.EXITED)
    runtime = await harness.open()
    await runtime.prepare(wanted, HOSTS)
    assert runtime.observe()["k.1"].phase is Phase.EXITED
    pieces = [piece.data async for piece in runtime.output("k.1").stream(0, follow=False)]
    assert b"".join(pieces) == b"once\n"
    await runtime.remove("k.1")
    runtime = await harness.open()
    await runtime.prepare(wanted, HOSTS)
    refused = runtime.observe()["k.1"]
    assert (refused.phase, refused.reason) == (Phase.FAILED, "ALREADY_REMOVED")


async def test_what_is_prepared_stays_held_while_the_agent_restarts(harness: Harness) -> None:
    runtime = await held(harness, "true")
    await runtime.mark_attached("k.1")
    runtime = await harness.open()
    prepared = runtime.observe()["k.1"]
    assert (prepared.phase, prepared.attached, prepared.start_time) == (Phase.CREATED, True, None)
    await runtime.start("k.1")
    assert (await harness.until("k.1", Phase.EXITED)).exit_code == 0


async def test_what_the_node_offers_is_not_less_for_its_own_attempts(harness: Harness) -> None:
    runtime = await harness.open()
    offered = runtime.capacity
    assert offered is None or all(amount >= 0 for amount in offered.values())
    runtime = await held(harness)
    assert runtime.capacity == offered
    await runtime.start("k.1")
    await harness.until("k.1", Phase.RUNNING)
    assert runtime.capacity == offered
    await end(harness, runtime)
    await runtime.remove("k.1")
    assert runtime.capacity == offered


async def test_a_declined_attempt_never_runs(harness: Harness) -> None:
    runtime = await harness.open()
    await runtime.decline(harness.spec("k", "true"), Phase.EXITED, "STOPPED", "not wanted any more")
    await runtime.prepare(harness.spec("k", "true"), HOSTS)
    runtime = await harness.open()
    declined = runtime.observe()["k.1"]
    assert (declined.phase, declined.reason, declined.exit_code) == (Phase.EXITED, "STOPPED", None)
    with pytest.raises(NotRunningError):
        runtime.kernel("k.1").network_attachment()
    await runtime.remove("k.1")
    assert not runtime.observe()


async def test_a_stop_asks_and_a_kill_ends(harness: Harness) -> None:
    runtime, _ = await running(harness)
    await runtime.stop("k.1", NEVER)
    stopped = await harness.until("k.1", Phase.EXITED)
    assert (stopped.reason, stopped.exit_code) == ("STOPPED", 143)


async def test_what_an_attempt_had_used_is_known_after_its_end(harness: Harness) -> None:
    runtime, _ = await running(harness)
    assert runtime.observe()["k.1"].usage is None
    await end(harness, runtime)
    used = runtime.observe()["k.1"].usage
    assert used is not None
    assert (used.cpu or 0) > 0
    assert (used.memory_peak or 0) > 0
    runtime = await harness.open()
    assert runtime.observe()["k.1"].usage == used


async def test_what_was_never_released_has_used_nothing(harness: Harness) -> None:
    runtime = await held(harness, "true")
    await runtime.stop("k.1", NEVER)
    await end(harness, runtime)
    assert runtime.observe()["k.1"].usage is None


async def test_what_is_held_is_due_to_be_killed_at_once(harness: Harness) -> None:
    runtime = await held(harness, "true")
    await runtime.stop("k.1", NEVER)
    stopping = runtime.observe()["k.1"]
    assert (stopping.phase, stopping.stop_grace) == (Phase.STOPPING, 0.0)
    assert stopping.kill_at is not None
    await runtime.kill("k.1")
    killed = await harness.until("k.1", Phase.EXITED)
    assert (killed.reason, killed.exit_code, killed.kill_at) == ("STOPPED", None, None)


async def test_only_what_has_ended_is_removed(harness: Harness) -> None:
    runtime, _ = await running(harness)
    with pytest.raises(KernelRuntimeError):
        await runtime.remove("k.1")
    assert runtime.observe()["k.1"].phase is Phase.RUNNING
    await end(harness, runtime)
    await runtime.remove("k.1")
    with pytest.raises(UnknownAttemptError):
        runtime.output("k.1")


async def test_an_unknown_attempt_is_refused(harness: Harness) -> None:
    runtime = await harness.open()
    for refused in (runtime.start, runtime.kill, runtime.remove, runtime.mark_attached):
        with pytest.raises(UnknownAttemptError):
            await refused("other.1")
    with pytest.raises(UnknownAttemptError):
        await runtime.stop("other.1", 1)
    with pytest.raises(UnknownAttemptError):
        runtime.kernel("other.1")
    with pytest.raises(UnknownAttemptError):
        runtime.output("other.1")


async def test_a_kernel_is_reached_by_handles_until_it_ends(harness: Harness) -> None:
    runtime, kernel = await running(harness)
    with kernel.network_attachment().opened() as namespace:
        assert namespace >= 0
    assert kernel.usage() is not None
    with pytest.raises(PortClosedError):
        await kernel.connect(CLOSED_PORT, LOOPBACK)
    assert not (await kernel.look_at_app("web")).runs
    assert not await kernel.app_programs("web")
    target, ending = kernel.fence_target(), asyncio.create_task(kernel.wait_ended())
    await asyncio.sleep(0)
    assert not ending.done()
    assert runtime.kernel("k.1").fence_target() == target
    await end(harness, runtime)
    await ending
    await kernel.wait_ended()
    # An old handle is as good as a new one.
    assert kernel.usage() is None
    with pytest.raises(NotRunningError):
        await kernel.connect(CLOSED_PORT, LOOPBACK)
    ended = runtime.kernel("k.1")
    assert (ended.fence_target(), ended.usage()) == (None, None)
    with pytest.raises(NotRunningError):
        ended.files()
    with pytest.raises(NotRunningError):
        await ended.exec()
    with pytest.raises(NotRunningError):
        await ended.look_at_app("web")


async def test_a_command_is_run_beside_the_attempts_own(harness: Harness) -> None:
    runtime, kernel = await running(harness)
    outputs = list[bytes]()
    for command, code in ((("echo", "two words"), 0), (("sh", "-c", "exit 5"), 5), (("env",), 0)):
        channel = await kernel.exec()
        session = Attachment(channel)
        printed, exited = b"", None
        try:
            await session.start(Start(command, channel.environment, channel.directory))
            async with contextlib.aclosing(session.events()) as events:
                async for event in events:
                    if isinstance(event, Printed):
                        printed += event.data
                    elif isinstance(event, Exited):
                        exited = event.code
        finally:
            await session.close()
        outputs.append(printed)
        assert exited == code
    assert outputs[:2] == [b"two words\n", b""]
    # The variables of a login, which scripts expect.
    login = dict(line.split("=", 1) for line in outputs[2].decode().splitlines() if "=" in line)
    assert login["USER"] == login["LOGNAME"] != ""
    assert (login["HOME"], login["SHELL"] in {"/bin/sh", "/bin/bash"}) == ("/home/work", True)
    await end(harness, runtime)


async def listed(files: WorkDirectory) -> set[str]:
    async with contextlib.aclosing(files.entries("", recursive=True)) as batches:
        return {entry.path async for batch in batches for entry in batch}


async def test_a_work_directory_is_listed_read_and_written(harness: Harness) -> None:
    runtime, kernel = await running(harness)
    files, content = kernel.files(), b"print('hello')\n"
    announced = UploadHeader("src/main.py", len(content), 0o640, hashlib.sha256(content).digest())
    await files.remove_stale_uploads()
    await files.make_directory("made", 0o750)
    upload = await files.begin_upload(announced, resume=False)
    await upload.write(content[:5])
    await upload.close()
    # Nothing is seen of it before all of it is there, and it continues where it stopped.
    assert await listed(files) == {"made"}
    upload = await files.begin_upload(announced, resume=True)
    assert (upload.offset, upload.complete) == (5, False)
    await upload.write(content[5:])
    assert upload.complete
    await upload.store()
    await upload.close()
    assert await listed(files) == {"made", "src", "src/main.py"}
    await files.make_link("made/latest", "../src/main.py")
    assert await listed(files) == {"made", "made/latest", "src", "src/main.py"}
    file = await files.open("src/main.py")
    try:
        assert (file.entry.size, file.entry.mode) == (len(content), 0o640)
        assert await file.read(100, 5) == content[5:]
    finally:
        file.close()
    wrong = await files.begin_upload(UploadHeader("wrong", 4, 0, hashlib.sha256(b"good").digest()), resume=False)
    await wrong.write(b"evil")
    with pytest.raises(DigestError):
        await wrong.store()
    await wrong.close()
    with pytest.raises(MissingError):
        await files.open("wrong")
    for path in ("../secret", "/etc/passwd", "a//b"):
        with pytest.raises(PathError):
            await files.open(path)
    await end(harness, runtime)
