"""What a failure shows of the cluster of its test."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import pytest

from retinue.client.errors import NotFound
from tests.support.eventually import eventually
from tests.support.evidence import Evidence, tasks
from tests.support.watched_logs import watch

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

ROOT = Path(__file__).parents[2]


async def test_logs_and_states_of_a_cluster_are_shown(cluster: Cluster, client: Client) -> None:
    evidence = Evidence()
    evidence.clusters.add(cluster)
    evidence.begin()
    session = await client.sessions.create(type="batch", command=["true"], name="shown-after-a-failure")
    await session.wait_ended()
    with pytest.raises(NotFound):
        await client.sessions.get("no-session-of-this-name")
    # The manager writes the line after its answer.
    shown = await eventually(
        lambda: dict(evidence.sections()), lambda found: "GetSession NOT_FOUND" in found.get("log logs/manager.log", "")
    )
    assert "shown-after-a-failure" in shown["sessions"]
    for agent in cluster.agents:
        assert agent.id in shown["agents"]


def test_only_what_was_written_since_the_start_is_shown(tmp_path: Path) -> None:
    log, long = tmp_path / "one.log", tmp_path / "two.log"
    log.write_text("before\n")
    long.write_text("")
    evidence = Evidence()
    with watch("one", log), watch("two", long):
        evidence.begin()
        with log.open("a") as file:
            file.write("after\n")
        long.write_text("".join(f"line {number}\n" for number in range(10_000)))
        shown = dict(evidence.sections())
    assert shown["log of one"] == "after\n"
    assert shown["log of two"].endswith("line 9999\n")
    assert len(shown["log of two"]) < 30_000
    assert dict(evidence.sections()) == {}


async def test_a_task_is_ended_among_those_that_cannot_be_shown() -> None:
    class Gone:
        """Leaves a proxy behind."""

    # What a process of many tests holds: a compiled coroutine of gRPC, and the proxy of what has gone.
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    proxy = weakref.proxy(Gone())
    hanging = asyncio.create_task(asyncio.Event().wait(), name="hangs")
    await asyncio.sleep(0)
    shown = tasks(lambda task: task is hanging)
    assert "hangs" in shown, proxy
    with pytest.raises(asyncio.CancelledError):
        await hanging
    await server.stop(None)


def test_evidence_that_cannot_be_had_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.support import evidence\ndef threads():\n    raise OSError('no stacks')\nevidence.threads = threads\n"
    )
    (tmp_path / "test_it.py").write_text("def test_it():\n    raise AssertionError('Timeout')\ndef test_next(): pass\n")
    command = [sys.executable, "-m", "pytest", f"--rootdir={tmp_path}", "-p", "tests.support.evidence", str(tmp_path)]
    # A run of its own: not one of a worker's, nor with the options of the run around it.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**kept, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "1 failed, 1 passed" in done.stdout) == (1, True), done.stdout
    assert "OSError: no stacks" in done.stdout
