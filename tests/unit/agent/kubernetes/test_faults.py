"""The pods of a node are followed through every fault of the API, and it is not called more often than agreed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from retinue.agent.conditions import Conditions
from retinue.agent.kubernetes import cluster, node_watch, pod_watch
from retinue.agent.kubernetes.cluster import MAX_BACKOFF, Cluster, ClusterError, ClusterUnavailableError, PodExistsError
from retinue.agent.kubernetes.pod_watch import LIST_INTERVAL, PodWatch
from retinue.rpc.core.reasons import AgentConditionType
from tests.support.eventually import eventually
from tests.unit.agent.kubernetes.fake_api import NAMESPACE, FakeApi, Fault, Raw, VirtualClock, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.agent.kubernetes.core.pod_state import PodState

HOUR = 3600.0
MAX_IDLE = 2
"""Calls a minute that an agent may take that has nothing to do."""
GARBAGE = '{"type":"MODIFIED","obj'
EXPIRED = json.dumps({"type": "ERROR", "object": refusal(410, "Expired")}) + "\n"


def pod(attempt_id: str, **status: object) -> Raw:
    labels = {"retinue.io/agent": "a", "retinue.io/attempt": attempt_id}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"retinue-{attempt_id}", "labels": labels, "finalizers": ["retinue.io/attempt"]},
        "status": {"phase": "Pending"} | status,
    }


class Followed:
    """An API, and what an agent follows of it on a clock that the test does not wait for."""

    def __init__(self, api: FakeApi, clock: VirtualClock, config: Path) -> None:
        self.api = api
        self.clock = clock
        self.cluster = Cluster(config, NAMESPACE, clock.time)
        self.changes: list[PodState] = []
        self.watch = PodWatch(self.cluster, "a", self.changes.append, clock.time, clock.sleep)
        self.conditions = Conditions()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[PodWatch]:
        task = asyncio.create_task(self.watch.run(self.conditions))
        try:
            yield self.watch
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def phase(self, attempt_id: str, wanted: str) -> None:
        def reached() -> bool:
            found = self.watch.get(attempt_id)
            return found is not None and found.phase == wanted

        await eventually(reached)

    async def calls_a_minute(self) -> float:
        """Returns how often the API is called from the second minute to the end of an hour."""
        async with self.following():
            await eventually(lambda: self.clock.now > HOUR)
        settled = [when for when, _ in self.api.calls if 120 < when <= HOUR]
        return len(settled) / ((HOUR - 120) / 60)


@pytest.fixture
async def followed(tmp_path: Path) -> AsyncIterator[Followed]:
    clock = VirtualClock()
    api = FakeApi(clock)
    async with api.serving(tmp_path) as config:
        followed = Followed(api, clock, config)
        yield followed
        await followed.cluster.close()


async def test_an_idle_agent_takes_few_calls(followed: Followed) -> None:
    followed.api.ends_watches = True
    # The lists that come every so often are not on the test's clock, nor what follows the node and its pods.
    others = 1 / (LIST_INTERVAL / 60) + 4 / (node_watch.LIST_INTERVAL / 60)
    assert await followed.calls_a_minute() + others <= MAX_IDLE
    assert {verb for _, verb in followed.api.calls[2:]} == {"watch"}


@pytest.mark.parametrize(
    ("verb", "fault"),
    [
        ("list", Fault(500, refusal(500, "InternalError"))),
        ("list", Fault(429, refusal(429, "TooManyRequests"), (("Retry-After", "1"),))),
        ("list", Fault(200, GARBAGE)),
        ("list", Fault(lost=True)),
        ("watch", Fault(200, GARBAGE)),
        ("watch", Fault(200, EXPIRED)),
        ("watch", Fault(410, refusal(410, "Expired"))),
        ("watch", Fault(429, refusal(429, "TooManyRequests"), (("Retry-After", "1"),))),
        ("watch", Fault(500, refusal(500, "InternalError"))),
        ("watch", Fault(200, "")),
        ("watch", Fault(lost=True)),
    ],
)
async def test_a_fault_that_stays_takes_few_calls(followed: Followed, verb: str, fault: Fault) -> None:
    followed.api.always[verb] = fault
    assert await followed.calls_a_minute() <= MAX_IDLE


@pytest.mark.parametrize("how", ["refused", "event"])
async def test_a_watch_whose_version_is_forgotten_begins_with_a_list(followed: Followed, how: str) -> None:
    followed.api.add(pod("k.1"))
    if how == "refused":
        followed.api.will("watch", Fault(410, refusal(410, "Expired")))
    async with followed.following():
        if how == "event":
            await eventually(lambda: (0.0, "watch") in followed.api.calls)
            followed.api.say(EXPIRED)
        await eventually(lambda: [verb for _, verb in followed.api.calls] == ["list", "watch", "list", "watch"])
        followed.api.set_status("retinue-k.1", phase="Running")
        await followed.phase("k.1", "Running")
    assert not followed.conditions.all()


async def test_a_watch_that_stands_still_loses_nothing(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_watch, "LIST_INTERVAL", 0.3)
    followed.api.stalled = True
    followed.api.add(pod("j.1"))
    async with followed.following() as watch:
        await followed.phase("j.1", "Pending")
        followed.api.add(pod("k.1", phase="Failed"))
        followed.api.drop("retinue-j.1")
        await followed.phase("k.1", "Failed")
        assert set(watch.own()) == {"k.1"}


async def test_an_api_that_freezes_with_an_open_watch_is_noticed(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.api.add(pod("k.1"))
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "WATCH_TIMEOUT", 0)
        patched.setattr(cluster, "CALL_TIMEOUT", 0.3)
        async with followed.following():
            # On a busy machine, an API that is not frozen may take longer than that: then it is asked again.
            await eventually(lambda: "watch" in [verb for _, verb in followed.api.calls])
            followed.api.frozen = True
            (condition,) = await eventually(followed.conditions.all)
            assert condition.type is AgentConditionType.ENGINE_UNRESPONSIVE
            patched.undo()
            followed.api.frozen = False
            followed.api.set_status("retinue-k.1", phase="Running")
            await followed.phase("k.1", "Running")
            assert not followed.conditions.all()


async def test_a_watch_without_changes_is_not_forgotten(followed: Followed) -> None:
    """Most of what happens in a cluster is not about pods of this agent."""
    async with followed.following():
        await eventually(lambda: [verb for _, verb in followed.api.calls] == ["list", "watch"])
        followed.api.mark()
        followed.api.ends_watches = True
        await eventually(lambda: len(followed.api.calls) > 4)
    assert {verb for _, verb in followed.api.calls[1:]} == {"watch"}


async def test_a_deletion_ends_no_other_pod_of_that_name(followed: Followed) -> None:
    followed.api.add(pod("k.1"))
    found = await followed.cluster.get("retinue-k.1")
    assert found is not None
    followed.api.drop("retinue-k.1")
    later = followed.api.add(pod("k.1"))
    assert not await followed.cluster.delete(found.name, found.uid)
    assert followed.api.pods == {"retinue-k.1": later}
    assert "deletionTimestamp" not in later["metadata"]


async def test_a_pause_is_kept_by_every_call(followed: Followed) -> None:
    followed.api.will("create", Fault(429, refusal(429, "TooManyRequests"), (("Retry-After", "7"),)))
    wanted = Pod(metadata=ObjectMeta(name="retinue-k.1"))
    with pytest.raises(ClusterUnavailableError) as refused:
        await followed.cluster.create(wanted)
    assert refused.value.pause == 7
    await followed.clock.sleep(5)
    with pytest.raises(ClusterUnavailableError) as refused:
        await followed.cluster.get("retinue-k.1")
    assert refused.value.pause == 2
    await followed.clock.sleep(2)
    assert await followed.cluster.get("retinue-k.1") is None
    assert followed.api.verbs == ["create", "get"]


async def test_calls_that_fail_grow_rare_and_one_that_succeeds_ends_that(followed: Followed) -> None:
    followed.api.always["get"] = Fault(503, "no server", (("Content-Type", "text/plain"),))
    for _ in range(600):
        with pytest.raises(ClusterUnavailableError):
            await followed.cluster.get("retinue-k.1")
        await followed.clock.sleep(1)
    assert len(followed.api.calls) < 600 / MAX_BACKOFF + 10
    followed.api.always.clear()
    await followed.clock.sleep(MAX_BACKOFF)
    for _ in range(3):
        assert await followed.cluster.get("retinue-k.1") is None


@pytest.mark.parametrize(
    "headers",
    [(("Content-Type", "application/json"),), (("Content-Type", "text/html"),), (("Content-Type", ""),)],
)
async def test_a_proxy_without_a_server_is_an_api_that_is_away(
    followed: Followed, headers: tuple[tuple[str, str], ...]
) -> None:
    followed.api.will("create", Fault(502, "<html>Bad Gateway</html>", headers))
    with pytest.raises(ClusterUnavailableError):
        await followed.cluster.create(Pod(metadata=ObjectMeta(name="retinue-k.1")))


async def test_an_answer_that_is_lost_or_unreadable_leaves_open_what_was_done(followed: Followed) -> None:
    for number, fault in enumerate((Fault(lost=True, done=True), Fault(201, GARBAGE, done=True))):
        wanted = Pod(metadata=ObjectMeta(name=f"retinue-k.{number}"))
        followed.api.will("create", fault)
        with pytest.raises(ClusterUnavailableError):
            await followed.cluster.create(wanted)
        await followed.clock.sleep(MAX_BACKOFF)
        with pytest.raises(PodExistsError):
            await followed.cluster.create(wanted)


async def test_a_pod_that_cannot_be_read_hides_no_other(followed: Followed) -> None:
    strange = pod("s.1", containerStatuses="none", startTime=7)
    followed.api.add(strange)
    followed.api.add({"metadata": {"name": "plain", "uid": ""}})
    followed.api.add(pod("k.1"))
    async with followed.following() as watch:
        await followed.phase("k.1", "Pending")
        followed.api.set_status("retinue-s.1", phase=["?"])
        followed.api.set_status("plain")
        followed.api.set_status("retinue-k.1", phase="Running")
        await followed.phase("k.1", "Running")
        assert [verb for _, verb in followed.api.calls] == ["list", "watch"]
        # Its name and uid are enough to remove it.
        found = await followed.cluster.get("retinue-s.1")
        assert found is not None
        assert found == watch.get("s.1")
        assert (found.uid, found.attempt_id, found.deleted) == (strange["metadata"]["uid"], "s.1", False)
        assert await followed.cluster.delete(found.name, found.uid)
        with pytest.raises(ClusterError):
            await followed.cluster.release(found.name, "another")
        await followed.cluster.release(found.name, found.uid)
        await eventually(lambda: watch.get("s.1") is None)


async def test_events_that_make_no_sense_lose_nothing(followed: Followed) -> None:
    followed.api.add(pod("k.1"))
    async with followed.following():
        for text in (GARBAGE, "\x00\n", "[]\n", '{"type":"ADDED","object":7}\n', '{"type":"ERROR","object":"?"}\n'):
            followed.api.say(f"{text}\n")
            phase = f"after {text[:9]!r}"
            followed.api.set_status("retinue-k.1", phase=phase)
            await followed.phase("k.1", phase)


@pytest.mark.parametrize("content", ["", "\x00", "{}", '{"clusters": 7}', "a: ["])
async def test_a_configuration_that_is_none_is_an_api_that_is_away(tmp_path: Path, content: str) -> None:
    (tmp_path / "kubeconfig").write_text(content)
    with pytest.raises(ClusterUnavailableError):
        await Cluster(tmp_path / "kubeconfig", NAMESPACE).get("retinue-k.1")


async def test_an_api_that_is_away_is_reported_until_it_is_back(tmp_path: Path) -> None:
    clock = VirtualClock()
    api = FakeApi(clock)
    async with api.serving(tmp_path) as config:
        pass
    followed = Followed(api, clock, config)
    async with followed.following() as watch:
        await eventually(lambda: clock.now > 60)
        (condition,) = followed.conditions.all()
        assert condition.type is AgentConditionType.ENGINE_UNRESPONSIVE
        assert not watch.listed.is_set()
        api.add(pod("k.1"))
        async with api.serving(tmp_path):
            await followed.phase("k.1", "Pending")
            assert not followed.conditions.all()
            assert watch.trouble == ""
    await followed.cluster.close()
