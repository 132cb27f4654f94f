"""What a failure shows of the cluster of its test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retinue.client.errors import NotFound
from tests.support.eventually import eventually
from tests.support.evidence import Evidence
from tests.support.watched_logs import watch

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster


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
