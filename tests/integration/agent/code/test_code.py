"""Code in running sessions, from a client through the manager and the agent into a Jupyter kernel and back."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.agent.kernel.python_runtime import build_runtime
from retinue.client.errors import FailedPrecondition, InvalidRequest, NotFound, Unavailable
from retinue.client.kernel.code import Code, gathered
from retinue.types.v1 import code_pb2
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

# By scripts/install, where native processes see it.
INSTALLED = "/var/cache/retinue/jupyterlab/share/jupyter"


@pytest.fixture(scope="session", autouse=True)
def runtime() -> Path:
    return build_runtime()


@contextlib.asynccontextmanager
async def interactive(client: Client, time_limit: float = 3600, **environment: str) -> AsyncIterator[Session]:
    session = await client.sessions.create(
        type="interactive",
        slots={"cpu": "1", "mem": "512m"},
        environment={"GREETING": "hello", **environment},
        time_limit=time_limit,
        termination_grace=0,
    )
    try:
        await session.wait("RUNNING", timeout=NEVER)
        yield session
    finally:
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.client() as client, interactive(client) as session:
        yield session


@pytest_asyncio.fixture(loop_scope="session")
async def code(session: Session) -> AsyncIterator[Code]:
    async with asyncio.timeout(NEVER), session.code() as code:
        yield code


async def test_state_is_kept_between_runs_and_streams(session: Session) -> None:
    async with asyncio.timeout(NEVER):
        async with session.code() as code:
            assert (await code.execute("x = 6")).status == "OK"
            assert (await code.execute("x * 7")).value == "42"
        async with session.code() as code:
            result = await code.execute(
                "import os, sys; print(x, os.environ['GREETING'], os.getcwd()); print('no', file=sys.stderr)"
            )
    assert (result.stdout, result.stderr) == ("6 hello /home/work\n", "no\n")


async def test_a_run_whose_caller_leaves_is_interrupted(session: Session) -> None:
    async with asyncio.timeout(NEVER):
        async with session.code() as code:
            running = asyncio.create_task(code.execute("import time\nopen('begun', 'w').close()\ntime.sleep(10**6)"))
            while not any(entry.path == "begun" for entry in await session.files().list()):
                await asyncio.sleep(0.05)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            # It would wait behind the other.
            assert (await code.execute("6 * 7")).value == "42"
            # Also when the stream is left with it.
            running = asyncio.create_task(code.execute("open('again', 'w').close()\ntime.sleep(10**6)"))
            while not any(entry.path == "again" for entry in await session.files().list()):
                await asyncio.sleep(0.05)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        async with session.code() as code:
            assert (await code.execute("7 * 7")).value == "49"


async def test_errors_say_what_and_where(code: Code) -> None:
    result = await code.execute("def f():\n    return 1 / 0\nf()")
    assert (result.status, result.exit_code, result.error_name) == ("ERROR", 1, "ZeroDivisionError")
    assert "f()" in "".join(result.traceback)


async def test_output_comes_while_it_runs(code: Code) -> None:
    program = "import time\nfor n in range(2):\n    print('line', n, flush=True); input() if n == 0 else None"
    seen = []
    async for event in code.run(program):
        seen.append(event.WhichOneof("event"))
        if event.HasField("input_request"):
            # The first line is here, and the program still waits.
            assert "stdout" in seen
            await code.answer(event.run_id, "")
    assert seen[0] == "started"
    assert seen[-1] == "finished"


async def test_input_and_passwords(code: Code) -> None:
    asked = []
    events = []
    async for event in code.run("import getpass\nprint(input('name? ') + getpass.getpass('secret? '))"):
        events.append(event)
        if event.HasField("input_request"):
            asked.append((event.input_request.prompt, event.input_request.password))
            await code.answer(event.run_id, "ab")
    assert asked == [("name? ", False), ("secret? ", True)]
    assert gathered(events).stdout == "abab\n"


async def test_media_with_their_types(code: Code) -> None:
    program = """
from IPython.display import display, HTML, Image
import base64
dot = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
display(HTML('<b>bold</b>')); display(Image(data=base64.b64decode(dot), format='png'))
"""
    result = await code.execute(program)
    html, png = result.media
    assert html["text/html"] == b"<b>bold</b>"
    assert png["image/png"].startswith(b"\x89PNG\r\n")


async def test_much_output_comes_whole_and_holds_up_nothing(code: Code) -> None:
    # More messages than wait anywhere, and more in one than is taken.
    result = await code.execute("for n in range(3000): print(n, flush=True)")
    assert (result.status, result.stdout) == ("OK", "".join(f"{n}\n" for n in range(3000)))
    result = await code.execute("print('x' * 20_000_000, end='')\nprint('end')")
    assert result.status == "OK"
    assert result.stdout.endswith("xend\n")
    seen, asked = 0, False
    async with contextlib.aclosing(code.run("while True: print('x' * 1000)")) as endless:
        async for event in endless:
            seen += len(event.stdout)
            if seen > 5_000_000 and not asked:
                asked = True
                await code.interrupt(event.run_id)
    assert event.finished.status == code_pb2.CODE_STATUS_INTERRUPTED
    assert (await code.execute("print('still here')")).stdout == "still here\n"


async def test_an_interrupt_keeps_state(code: Code) -> None:
    await code.execute("kept = 1")
    run_id = str(uuid.uuid4())
    async for event in code.run("import time\nprint('on', flush=True)\ntime.sleep(1000)", run_id=run_id):
        last = event
        if event.stdout:
            await code.interrupt(run_id)
    assert last.finished.status == code_pb2.CODE_STATUS_INTERRUPTED
    assert last.finished.error_name == "KeyboardInterrupt"
    assert (await code.execute("kept")).value == "1"


async def test_an_interrupt_before_the_code_begins_is_not_lost(code: Code) -> None:
    for _ in range(10):
        async for event in code.run("while True: pass"):
            last = event
            if event.HasField("started"):
                await code.interrupt(event.run_id)
        assert last.finished.status == code_pb2.CODE_STATUS_INTERRUPTED
    assert (await code.execute("1")).value == "1"


async def test_what_no_client_follows_is_interrupted_or_ended_by_force(session: Session) -> None:
    async def leave_running(program: str) -> None:
        async with session.code() as gone, contextlib.aclosing(gone.run(program)) as events:
            async for event in events:
                if event.stdout:
                    break

    async with asyncio.timeout(NEVER), session.code() as code:
        await code.execute("kept = 1")
        await leave_running("import time\nprint('on', flush=True)\ntime.sleep(1000)")
        await code.interrupt()
        assert (await code.execute("kept")).value == "1"
        deaf = "while True:\n    try:\n        time.sleep(1)\n    except KeyboardInterrupt:\n        print('no')"
        await leave_running(f"print('on', flush=True)\n{deaf}")
        await code.interrupt(force=True)
        assert (await code.execute("kept")).error_name == "NameError"
        # Nothing runs: nothing is done.
        await code.interrupt(force=True)
        await code.finish()
    async with session.code() as code:
        assert (await code.execute("1")).value == "1"


async def test_a_timeout_interrupts(code: Code) -> None:
    # Before it runs, there is nothing to interrupt: the kernel is there, and has what it needs.
    await code.execute("import time")
    result = await code.execute("time.sleep(1000)", timeout=2)
    assert (result.status, result.error_name) == ("TIMED_OUT", "KeyboardInterrupt")


async def test_completion(code: Code) -> None:
    await code.execute("a_long_name = [1]")
    found = await code.complete("a_long_na")
    assert "a_long_name" in found.matches
    assert (found.start, found.end) == (0, 9)


async def test_runs_of_several_clients_are_done_in_order(session: Session) -> None:
    async with asyncio.timeout(NEVER), session.code() as one, session.code() as two:
        await one.execute("order = []")
        first, second = one.run("input(); order.append(1)"), one.run("order.append(2)")
        async with contextlib.aclosing(first), contextlib.aclosing(second):
            asked = await anext(first)
            while not asked.HasField("input_request"):
                asked = await anext(first)
            assert (await anext(second)).queued.ahead == 1
            await two.answer(asked.run_id, "")
            third = await two.execute("order.append(3); order")
            assert third.value == "[1, 2, 3]"


async def test_a_run_is_resumed_by_its_id(session: Session) -> None:
    run_id = str(uuid.uuid4())
    async with asyncio.timeout(NEVER):
        async with session.code() as code:
            async for event in code.run("print('first', flush=True)\ninput()\nprint('last')", run_id=run_id):
                if event.HasField("input_request"):
                    seen = event.offset
                    break
        async with session.code() as other:
            await other.answer(run_id, "go")
            events = [event async for event in other.resume(run_id, seen + 1)]
            assert [event.offset for event in events] == list(range(seen + 1, seen + 1 + len(events)))
            assert gathered(events).stdout.endswith("last\n")
            # The same id does not run twice.
            again = await other.execute("raise SystemExit", run_id=run_id)
            assert again.stdout.startswith("first")


async def test_batch_mode(code: Code) -> None:
    def phases(events: list[code_pb2.CodeEvent]) -> list[tuple[str, int]]:
        return [
            (code_pb2.CodePhase.Name(e.phase_finished.phase).removeprefix("CODE_PHASE_"), e.phase_finished.exit_code)
            for e in events
            if e.HasField("phase_finished")
        ]

    events = [event async for event in code.batch(clean="exit 9", build="echo made > it", execute="cat it; exit 3")]
    assert phases(events) == [("CLEAN", 9), ("BUILD", 0), ("EXEC", 3)]
    assert (gathered(events).status, gathered(events).exit_code, gathered(events).stdout) == ("ERROR", 3, "made\n")
    events = [event async for event in code.batch(build="echo bad >&2; exit 2", execute="echo never")]
    assert phases(events) == [("BUILD", 2), ("EXEC", 127)]
    assert (gathered(events).stdout, gathered(events).stderr) == ("", "bad\n")
    events = [event async for event in code.batch(execute="sleep 1000", timeout=0.3)]
    assert gathered(events).status == "TIMED_OUT"
    # What does not run any more is not reported to have succeeded.
    events.clear()
    async for event in code.batch(clean="echo on; sleep 1000", build="echo never", execute="echo never"):
        events.append(event)
        if event.stdout:
            await code.interrupt(event.run_id)
    assert phases(events) == [("CLEAN", 130), ("BUILD", 127), ("EXEC", 127)]
    assert (gathered(events).status, gathered(events).exit_code) == ("INTERRUPTED", 127)


async def test_the_usual_commands(code: Code) -> None:
    await code.execute("open('main.py', 'w').write('print(\"main ran\")')")
    events = [event async for event in code.batch(clean="*", build="*", execute="*")]
    assert gathered(events).stdout == "main ran\n"


async def test_a_lost_process_is_reported_and_replaced(code: Code) -> None:
    await code.execute("gone = 1")
    result = await code.execute("import os; os._exit(3)")
    assert result.status == "PROCESS_LOST"
    assert (await code.execute("gone")).error_name == "NameError"


@pytest.mark.attack("endless-output", "hostile-code")
async def test_what_code_does_to_itself_stays_with_it(client: Client) -> None:
    async with interactive(client) as session, asyncio.timeout(NEVER), session.code() as code:
        # Output without an end is kept within bounds, and it is said what is missing.
        run_id = str(uuid.uuid4())
        flood = "while True: print('x' * 20_000, flush=True)"
        seen, asked = 0, False
        async with contextlib.aclosing(code.run(flood, run_id=run_id)) as endless:
            async for event in endless:
                seen += len(event.stdout)
                if seen > 6 << 20 and not asked:
                    asked = True
                    await code.interrupt(run_id)
        kept = [event async for event in code.resume(run_id)]
        assert kept[0].log.message.endswith("events are not kept any more")
        assert sum(len(event.stdout) for event in kept) <= 4 << 20
        assert kept[-1].finished.status == code_pb2.CODE_STATUS_INTERRUPTED
        # Its first process is not its own to end.
        assert (await code.execute("import os, signal; os.kill(1, signal.SIGKILL)")).error_name == "PermissionError"
        # More memory than it has costs it its variables, and no other kernel anything.
        assert (await code.execute("kept = 'x' * (1 << 30)")).status == "PROCESS_LOST"
        assert (await code.execute("6 * 7")).value == "42"
        assert (await session.refresh()).state == "RUNNING"


async def test_any_installed_kernel_is_a_language(session: Session) -> None:
    """Bash, by a Jupyter kernel written to the user's own place in the session."""
    source = (Path(__file__).parent / "shell_kernel.py").read_text()
    async with asyncio.timeout(NEVER):
        async with session.code() as python:
            made = await python.execute(
                "import json, os, sys\n"
                "place = os.path.expanduser('~/.local/share/jupyter/kernels/shell')\n"
                "os.makedirs(place, exist_ok=True)\n"
                f"open(place + '/kernel.py', 'w').write({source!r})\n"
                "argv = [sys.executable, place + '/kernel.py', '-f', '{connection_file}']\n"
                "json.dump({'argv': argv, 'language': 'bash', 'display_name': 'Shell'}, open(place + '/kernel.json', 'w'))"
            )
            assert made.status == "OK", made
        for language in ("shell", "bash"):
            async with session.code(language) as shell:
                assert (await shell.execute("echo $((6 * 7)); hostname")).stdout == "42\nmain1\n"


async def test_bash_as_it_is_installed(client: Client) -> None:
    """By bash_kernel from PyPI, which scripts/install puts beside JupyterLab: state, streams, completion,
    interrupts, exit codes.
    """
    async with (
        interactive(client, JUPYTER_PATH=INSTALLED) as session,
        asyncio.timeout(NEVER),
        session.code("bash") as bash,
    ):
        assert (await bash.execute('answer=42; twice() { echo "$1$1"; }; cd /usr')).status == "OK"
        result = await bash.execute('twice "$answer"; pwd; hostname')
        assert result.stdout.split() == ["4242", "/usr", "main1"]
        failed = await bash.execute("(exit 3)")
        assert (failed.status, failed.error_value) == ("ERROR", "3")
        run_id = str(uuid.uuid4())
        # The first line comes while it still runs.
        async for event in bash.run("echo on; sleep 1000", run_id=run_id):
            last = event
            if "on" in event.stdout:
                await bash.interrupt(run_id)
        assert last.finished.status == code_pb2.CODE_STATUS_INTERRUPTED
        assert (await bash.execute('echo "$answer"')).stdout.strip() == "42"
        assert "twice" in (await bash.complete("twi")).matches
        # Beside it, and in the same files, there is Python.
        async with session.code() as python:
            assert (await python.execute("6 * 7")).value == "42"


async def test_refusals(cluster: Cluster, client: Client, session: Session) -> None:
    async with asyncio.timeout(NEVER):
        with pytest.raises(FailedPrecondition, match="cobol"):
            async with session.code("COBOL") as code:
                await code.execute("x")
        for wrong in ("", "x" * 36, "../../etc/passwd"):
            with pytest.raises(InvalidRequest):
                await all_of(session, partial(Code.resume, run_id=wrong))
        with pytest.raises(NotFound):
            await all_of(session, lambda code: code.resume(str(uuid.uuid4())))
        with pytest.raises(InvalidRequest):
            async with session.code() as code:
                await code.execute("x" * (1 << 20) + "x")
        batch = await client.sessions.create(
            type="batch", command=["sleep", "1000"], slots={"cpu": "0.1", "mem": "32m"}, termination_grace=0
        )
        try:
            await batch.wait("RUNNING", timeout=NEVER)
            with pytest.raises(FailedPrecondition) as refused:
                async with batch.code():
                    pass
            assert refused.value.reason == "FEATURE_UNAVAILABLE"
        finally:
            await batch.terminate(force=True)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("terminated", "TERMINATED_BY_USER"),
        ("ended by force", "TERMINATED_BY_USER"),
        ("out of time", "TIME_LIMIT_EXCEEDED"),
        ("failed", "COMMAND_FAILED, exit code 137"),
    ],
)
async def test_what_runs_or_waits_in_a_session_that_ends_names_the_end(client: Client, how: str, words: str) -> None:
    # Time enough to begin; when it is not, the refusal is the same.
    limit = 10 if how == "out of time" else 3600
    async with interactive(client, limit) as session, asyncio.timeout(NEVER):
        async with session.code() as code, asyncio.TaskGroup() as group:
            running = group.create_task(refused(code, "open('begun', 'w').close()\nimport time\ntime.sleep(10**6)"))
            while not any(entry.path == "begun" for entry in await session.files().list()):
                await asyncio.sleep(0.05)
            waiting = group.create_task(refused(code, "1"))
            await end(session, how)
            for failure in (await running, await waiting, await refused(code, "2")):
                assert words in str(failure), failure
        with pytest.raises(FailedPrecondition, match=words):
            async with session.code():
                pass


async def refused(code: Code, program: str) -> FailedPrecondition:
    with pytest.raises(FailedPrecondition) as error:
        await code.execute(program)
    return error.value


async def end(session: Session, how: str) -> None:
    if how in {"terminated", "ended by force"}:
        await session.terminate(force=how == "ended by force")
    elif how == "failed":
        with pytest.raises(FailedPrecondition, match="exit code 137"):
            await end_all_processes(session)


async def end_all_processes(session: Session) -> None:
    async with session.attach(["sh", "-c", "kill -9 -1"]) as command:
        async for _ in command:
            pass


async def test_what_runs_in_a_session_that_is_restarted_ends(client: Client) -> None:
    async with interactive(client) as session, asyncio.timeout(NEVER):
        async with session.code() as code:
            running = asyncio.create_task(refused(code, "open('begun', 'w').close()\nimport time\ntime.sleep(10**6)"))
            while not any(entry.path == "begun" for entry in await session.files().list()):
                await asyncio.sleep(0.05)
            await session.restart(force=True)
            assert "kernel main1" in str(await running)

        async def run_again() -> str:
            async with session.code() as code:
                return (await code.execute("6 * 7")).value

        assert await eventually(run_again, ignoring=FailedPrecondition) == "42"


async def test_a_session_that_waits_says_so(client: Client) -> None:
    session = await client.sessions.create(type="interactive", slots={"cpu": "100000", "mem": "32m"})
    try:
        with pytest.raises(FailedPrecondition, match=r"is PENDING.*wait until it is RUNNING"):
            async with session.code():
                pass
    finally:
        await session.terminate(force=True)


async def test_the_sockets_are_the_kernels_own(code: Code) -> None:
    """Only the kernel's user can enter their directory; links in their place are not followed."""
    result = await code.execute(
        "import glob, os, stat\n"
        "place, = glob.glob('/tmp/.retinue-code-*')[-1:]\n"
        "print(oct(stat.S_IMODE(os.stat(place).st_mode)), oct(stat.S_IMODE(os.stat(place + '/connection.json').st_mode)))"
    )
    assert result.stdout == "0o700 0o600\n"


async def test_variables_live_over_a_restart_of_the_agent(cluster: Cluster, client: Client) -> None:
    async with interactive(client) as session:
        index = [agent.id for agent in cluster.agents].index(session.kernels[0].agent)
        run_id = str(uuid.uuid4())
        async with asyncio.timeout(NEVER):
            with pytest.raises(Unavailable):
                await killed_meanwhile(cluster, index, session, run_id)
            await cluster.start_agent(index)
            with pytest.raises(NotFound):
                await all_of(await reachable(session), lambda code: code.resume(run_id))
            await let_continue(session, run_id)
            async with session.code() as code:
                assert (await code.execute("kept == __import__('os').getpid()")).value == "True"


async def reachable(session: Session) -> Session:
    """The session, once its agent can be reached again."""

    async def reach() -> Session:
        async with session.code():
            return session

    return await eventually(reach, ignoring=Unavailable)


async def killed_meanwhile(cluster: Cluster, index: int, session: Session, run_id: str) -> None:
    async with session.code() as code:
        await code.execute("kept = __import__('os').getpid()")
        async for event in code.run(f"print('on', flush=True)\n{until_continued(run_id)}", run_id=run_id):
            if event.stdout:
                await cluster.agents[index].process.kill()


def until_continued(run_id: str) -> str:
    """Returns lines that wait until the test lets the run continue: it has not ended when something else does."""
    return f"import os, time\nwhile not os.path.exists('/home/work/{run_id}'): time.sleep(0.02)"


async def let_continue(session: Session, run_id: str) -> None:
    async with session.attach(["touch", f"/home/work/{run_id}"]) as command:
        async for _ in command:
            pass
    assert command.exit_code == 0


async def all_of(session: Session, started: Callable[[Code], AsyncIterator[code_pb2.CodeEvent]]) -> None:
    async with session.code() as code:
        async for _ in started(code):
            pass


async def test_a_run_continues_over_a_restart_of_the_manager(cluster: Cluster, session: Session) -> None:
    run_id = str(uuid.uuid4())
    seen: list[code_pb2.CodeEvent] = []
    async with asyncio.timeout(NEVER):
        with pytest.raises(Unavailable):
            await without_manager(cluster, session, run_id, seen)
        await cluster.start_manager()
        await let_continue(session, run_id)
        async with session.code() as code:
            rest = [event async for event in code.resume(run_id, seen[-1].offset + 1)]
    result = gathered([*seen, *rest])
    assert (result.status, result.stdout) == ("OK", "".join(f"{n}\n" for n in range(40)))


async def without_manager(cluster: Cluster, session: Session, run_id: str, seen: list[code_pb2.CodeEvent]) -> None:
    half = "for n in range({}, {}):\n    print(n, flush=True)"
    program = f"{half.format(0, 20)}\n{until_continued(run_id)}\n{half.format(20, 40)}"
    async with session.code() as code:
        async for event in code.run(program, run_id=run_id):
            seen.append(event)
            if event.stdout:
                await cluster.manager.kill()
