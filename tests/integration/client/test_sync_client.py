"""The library for callers that block, against a real cluster, from the first call to the result."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from retinue.client import Client, LogChunk, NotFound
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.devtools.cluster import Cluster


@pytest.fixture
def blocking(cluster: Cluster) -> Client:
    return Client.from_settings(cluster.settings)


async def test_a_command_runs_to_its_result(blocking: Client) -> None:
    def use() -> None:
        pieces: list[LogChunk] = []
        with blocking as client:
            done = client.run(["sh", "-c", "echo hello; exit 3"], output=pieces.append, slots={"cpu": 0.1})
            assert (done.text, done.exit_code, done.result) == ("hello\n", 3, "FAILED")
            assert b"".join(piece.data for piece in pieces) == b"hello\n"
            assert done.session.spec.kernel.slots["cpu"] == "0.1"

    await asyncio.to_thread(use)


async def test_a_run_that_fails_on_this_side_ends_its_session(blocking: Client) -> None:
    class LeftError(Exception):
        pass

    def stop(chunk: LogChunk) -> None:
        raise LeftError(chunk.data)

    def use() -> None:
        with blocking as client:
            with pytest.raises(LeftError):
                client.run(["sh", "-c", "echo up; exec sleep infinity"], output=stop, name="abandoned")
            assert client.sessions.get("abandoned").wait_ended(NEVER).state == "TERMINATED"

    await asyncio.to_thread(use)


async def test_a_session_is_used_whole(blocking: Client, tmp_path: Path) -> None:
    def use() -> None:
        with blocking as client:
            session = client.sessions.create(type="interactive", slots={"cpu": 1}).wait("RUNNING", timeout=NEVER)
            try:
                assert session.id in [found.id for found in client.sessions.list()]
                with session.attach(["cat"]) as command:
                    command.write(b"typed")
                    command.end_input()
                    assert b"".join(piece.data for piece in command) == b"typed"
                    assert command.exit_code == 0
                with session.code() as code:
                    assert code.execute("6 * 7").value == "42"
                (tmp_path / "sent").write_bytes(b"x" * 100_000)
                session.files().upload(tmp_path / "sent", "kept")
                session.files().download("kept", tmp_path / "got")
                assert (tmp_path / "got").read_bytes() == b"x" * 100_000
                assert next(iter(client.sessions.stats(session.id))).kernels
            finally:
                states = [step.state for step in session.terminate().progress()]
            assert states[-1] == "TERMINATED"

    await asyncio.to_thread(use)


async def test_several_threads_share_a_client(blocking: Client) -> None:
    names: list[str] = []

    def use(number: int) -> None:
        names.append(blocking.run(["sh", "-c", f"echo {number}"], slots={"cpu": 0.1}).text.strip())

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    await eventually(lambda: len(names) == len(threads))
    assert sorted(names) == ["0", "1", "2", "3"]
    await asyncio.to_thread(blocking.close)


async def test_errors_are_those_of_the_library(blocking: Client) -> None:
    def use() -> None:
        with blocking as client, pytest.raises(NotFound):
            client.sessions.get("no-such-session")

    await asyncio.to_thread(use)
