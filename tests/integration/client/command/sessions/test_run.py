"""`retinue run`: output, progress, exit codes, interrupts."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.integration.client.command.conftest import Program, line_with
from tests.support.eventually import NEVER
from tests.support.forked_programs import PROGRAM

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_output_progress_and_exit_code_go_their_own_ways(retinue: Program) -> None:
    ran = await retinue("run", "--name", "own-ways", "--", "sh", "-c", "echo to out; echo to err >&2; exit 3")
    assert (ran.code, ran.out) == (3, "to out\n")
    assert "to err\n" in ran.err
    lines = ran.err.replace("to err\n", "").splitlines()
    # Other users of the cluster may make it wait.
    identity, running, end = [line for line in lines if "own-ways: PENDING" not in line]
    assert re.fullmatch(r"own-ways: [0-9a-f-]{36}", identity)
    assert running == "own-ways: RUNNING"
    assert end.startswith("own-ways: TERMINATED FAILED, exit code 3")
    assert "\x1b" not in ran.err


async def test_quiet_leaves_output_and_what_is_wrong(retinue: Program) -> None:
    ran = await retinue("run", "-q", "--", "sh", "-c", "echo to out; echo to err >&2; exit 3")
    assert (ran.code, ran.out, ran.err) == (3, "to out\n", "to err\n")
    ended = await retinue("run", "-q", "--name", "too-long", "--time-limit", "1s", "--", "sleep", "600")
    assert ended.code != 0
    assert ended.err.splitlines()[-1].startswith("too-long: TERMINATED")
    assert "TIME_LIMIT" in ended.err


async def test_logs_go_to_the_streams_that_they_came_from(retinue: Program) -> None:
    printed = await retinue("run", "--name", "streams", "--", "sh", "-c", "echo to out; echo to err >&2; echo more")
    assert (printed.code, printed.out) == (0, "to out\nmore\n")
    for arguments, out, err in (
        ((), "to out\nmore\n", "to err\n"),
        (("--stream", "stdout"), "to out\nmore\n", ""),
        (("--stream", "stderr"), "", "to err\n"),
        (("--all",), "main1  | to out\nmain1  | more\n", "main1  | to err\n"),
    ):
        ran = await retinue("logs", "streams", *arguments)
        assert (ran.code, ran.out, ran.err) == (0, out, err)


async def test_a_cluster_session_finds_its_subs_by_name(retinue: Program) -> None:
    ran = await retinue(
        *("run", "--size", "3", "--mode", "multi-node", "--slots", "cpu=2,mem=128m", "-e", "GREETING=hello there"),
        *("--sub-command", "sh -c 'echo from a sub; sleep 600'", "--grace", "1s", "--label", "team=x"),
        *("--", "sh", "-c", 'getent ahostsv4 sub1 sub2 | grep -c STREAM; echo "$GREETING"'),
    )
    assert (ran.code, ran.out) == (0, "2\nhello there\n")


async def test_much_output_comes_whole(retinue: Program) -> None:
    ran = await retinue("run", "--", "seq", "1", "200000")
    assert ran.code == 0
    assert ran.out == "".join(f"{number}\n" for number in range(1, 200001))


async def test_an_unknown_command_ends_as_a_shell_would(retinue: Program) -> None:
    assert (await retinue("run", "--", "no-such-program")).code == 127
    in_one_word = await retinue("run", "echo hi")
    assert in_one_word.code == 127
    assert "did you mean `retinue run -- echo hi`" in in_one_word.err


async def test_an_interactive_session_is_left_alone_once_it_runs(retinue: Program, client: Client) -> None:
    ran = await retinue("run", "--name", "stays", "--type", "interactive")
    assert (ran.code, ran.out) == (0, "")
    assert "stays: RUNNING" in ran.err
    assert "`retinue exec -it stays` opens a shell" in ran.err
    assert (await client.sessions.get("stays")).state == "RUNNING"


async def test_detached_prints_the_id_only(retinue: Program, client: Client) -> None:
    ran = await retinue("run", "-d", "--", "sleep", "600")
    assert ran.code == 0
    assert (await client.sessions.get(ran.out.strip())).id == ran.out.strip()
    as_json = json.loads((await retinue("run", "-d", "-o", "json", "--", "true")).out)
    assert as_json["spec"]["kernel"]["command"] == ["true"]


async def test_a_dry_run_makes_nothing(retinue: Program, client: Client) -> None:
    ran = await retinue("run", "--dry-run", "--name", "not-made", "-o", "json", "--", "true")
    assert ran.code == 0
    checked = json.loads(ran.out)
    assert checked["session"]["spec"]["name"] == "not-made"
    assert checked["preview"]["kernels"][0]["hostname"] == "main1"
    assert not {"id", "reason", "etag"} & checked["session"].keys(), "it is not there, and waits for nothing"
    refused = await retinue("run", "--dry-run", "--fail-fast", "--slots", "cpu=4000", "--", "true")
    assert refused.code == 6
    assert "EXCEEDS_LARGEST_AGENT" in refused.out
    assert "QUEUED" not in refused.out
    assert [session.name async for session in client.sessions.list(show_ended=True) if session.name == "not-made"] == []


async def test_what_can_never_fit_ends_with_6_if_asked(retinue: Program, client: Client) -> None:
    ran = await retinue("run", "--fail-fast", "--name", "huge", "--slots", "cpu=4000", "--", "true")
    assert ran.code == 6
    assert "never fit" in ran.err
    found = [session async for session in client.sessions.list(filter='name = "huge"', show_ended=True)]
    await found[0].wait_ended(timeout=NEVER)
    assert found[0].state == "CANCELLED"


async def test_what_can_never_fit_says_how_to_leave(retinue: Program, client: Client) -> None:
    process = await retinue.start("run", "--name", "hopeless", "--slots", "cpu=4000", "--", "true")
    await line_with(process.stderr, "it waits until the cluster can hold it; Ctrl-C ends it")
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(NEVER):
        assert await process.wait() == 130
    assert [session.state async for session in client.sessions.list(filter='name = "hopeless"', show_ended=True)] == [
        "CANCELLED"
    ]


async def test_bad_requests_name_the_field(retinue: Program) -> None:
    ran = await retinue("run", "--name", "No Name", "--slots", "cpu=-1", "--", "true")
    assert ran.code == 1
    assert "  --name 'No Name': " in ran.err
    assert "  --slots cpu=-1: " in ran.err
    assert "INVALID_FIELD" in ran.err


@pytest.mark.parametrize(
    "arguments", [("run", "--type", "batch"), ("run", "--size", "0"), ("run", "--slots", "cpu"), ("run", "--nonsense")]
)
async def test_wrong_usage_ends_with_2(retinue: Program, arguments: tuple[str, ...]) -> None:
    assert (await retinue(*arguments)).code == 2


async def test_the_first_interrupt_ends_the_session(retinue: Program, client: Client) -> None:
    process = await retinue.start("run", "--name", "interrupted", "--grace", "5s", "--", "sleep", "600")
    await line_with(process.stderr, "interrupted: RUNNING")
    process.send_signal(signal.SIGINT)
    await line_with(process.stderr, "terminating session interrupted")
    async with asyncio.timeout(NEVER):
        _, err = await process.communicate()
    found = [session async for session in client.sessions.list(filter='name = "interrupted"', show_ended=True)]
    ended = found[0]
    assert ended.state == "TERMINATED"
    assert process.returncode == (ended.exit_code if ended.exit_code is not None else 130)
    assert b"interrupted: TERMINATED" in err


async def test_the_second_interrupt_leaves_the_rest_to_the_manager(retinue: Program, client: Client) -> None:
    stubborn = "trap '' TERM; echo deaf; while true; do sleep 1; done"
    process = await retinue.start("run", "--name", "stubborn", "--grace", "300s", "--", "sh", "-c", stubborn)
    await line_with(process.stdout, "deaf")
    await line_with(process.stderr, "stubborn: RUNNING")
    process.send_signal(signal.SIGINT)
    await line_with(process.stderr, "stubborn: TERMINATING")
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(NEVER):
        await process.communicate()
    assert process.returncode == 130
    assert (await client.sessions.get("stubborn")).state == "TERMINATING"


async def test_output_continues_over_a_restart_of_the_manager(retinue: Program, cluster: Cluster) -> None:
    script = "for n in $(seq 1 40); do echo line $n; sleep 0.1; done; exit 4"
    process = await retinue.start("run", "--name", "outlives", "--", "sh", "-c", script)
    await line_with(process.stdout, "line 3")
    await cluster.manager.kill()
    await cluster.start_manager()
    async with asyncio.timeout(NEVER):
        out, err = await process.communicate()
    assert process.returncode == 4, err.decode()
    assert out.decode() == "".join(f"line {number}\n" for number in range(4, 41))


class Terminal:
    """The program at a terminal of its own."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self.master = master
        self.seen = b""
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self.master, 65536)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self.master)
        self.seen += data
        self._changed.set()

    async def shows(self, text: bytes) -> None:
        try:
            async with asyncio.timeout(NEVER):
                while text not in self.seen:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"no {text!r} in {self.seen!r}") from None

    def types(self, text: bytes) -> None:
        os.write(self.master, text)

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.master)
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        os.close(self.master)


async def _at_terminal(retinue: Program, *arguments: str, **environment: str) -> Terminal:
    master, slave = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *arguments,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**retinue.environment, "TERM": "xterm-256color", "COLUMNS": "120", **environment},
            start_new_session=True,
        )
    finally:
        os.close(slave)
    return Terminal(process, master)


async def test_a_terminal_gets_a_live_view_and_a_question_on_interrupt(retinue: Program, client: Client) -> None:
    terminal = await _at_terminal(retinue, "run", "--name", "live", "--", "sh", "-c", "echo out here; sleep 600")
    try:
        # Either may come first.
        for text in (b"out here", b"live: RUNNING"):
            await terminal.shows(text)
        assert b"\x1b[" in terminal.seen
        terminal.process.send_signal(signal.SIGINT)
        await terminal.shows(b"[d]etach")
        terminal.types(b"c\n")
        await terminal.shows(b"continuing")
        terminal.seen = b""
        terminal.process.send_signal(signal.SIGINT)
        await terminal.shows(b"[d]etach")
        terminal.types(b"d\n")
        async with asyncio.timeout(NEVER):
            assert await terminal.process.wait() == 0
        await terminal.shows(b"left running")
    finally:
        await terminal.close()
    assert (await client.sessions.get("live")).state == "RUNNING"


async def test_no_color_means_none(retinue: Program) -> None:
    await retinue("run", "--type", "interactive")
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        terminal = await _at_terminal(retinue, "ls", **variables)
        try:
            async with asyncio.timeout(NEVER):
                assert await terminal.process.wait() == 0
            await terminal.shows(b"RUNNING")
            assert (b"\x1b[32m" in terminal.seen) is coloured
        finally:
            await terminal.close()
