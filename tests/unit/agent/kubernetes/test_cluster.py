"""The API of a cluster when it refuses, asks for a pause, forgets or talks nonsense;
a server of the test's own answers with what a test gives it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from retinue.agent.conditions import Conditions
from retinue.agent.kubernetes.cluster import (
    MAX_BACKOFF,
    Cluster,
    ClusterError,
    ClusterUnavailableError,
    CompactedError,
    PodExistsError,
)
from retinue.agent.kubernetes.pod_watch import PodWatch
from tests.support.eventually import NEVER
from tests.unit.agent.kubernetes.fake_api import VirtualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.agent.kubernetes.core.pod_state import PodState

LABELS = {"retinue.io/agent": "a", "retinue.io/attempt": "k.1"}


def pod(version: str, phase: str, name: str = "retinue-k.1") -> dict[str, object]:
    metadata = {"name": name, "uid": "u", "resourceVersion": version, "labels": LABELS}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": phase}}


def refusal(code: int, reason: str) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": reason,
    }


class Api:
    """Answers each call by the next of its answers: status, headers, content."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], object]] = []
        self.asked: list[str] = []
        self.tokens: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization", ""))
        self.asked.append(f"{request.method} {request.query.get('resourceVersion', '')}".strip())
        if not self.answers:
            await asyncio.Event().wait()
        status, headers, content = self.answers.pop(0)
        if isinstance(content, list):
            text = "".join(f"{json.dumps(event)}\n" for event in content)
        else:
            text = content if isinstance(content, str) else json.dumps(content)
        return web.Response(status=status, headers=headers | {"Content-Type": "application/json"}, body=text.encode())

    def will(self, status: int, content: object, **headers: str) -> None:
        self.answers.append((status, headers, content))


@pytest.fixture
async def api() -> AsyncIterator[tuple[Api, int]]:
    api, application = Api(), web.Application()
    application.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield api, runner.addresses[0][1]
    await runner.cleanup()


@pytest.fixture
async def cluster(api: tuple[Api, int], tmp_path: Path) -> AsyncIterator[Cluster]:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{api[1]}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    cluster = Cluster(tmp_path / "config", "kernels")
    yield cluster
    await cluster.close()


@pytest.mark.parametrize(
    ("status", "content", "error"),
    [
        (409, refusal(409, "AlreadyExists"), PodExistsError),
        (409, refusal(409, "Conflict"), ClusterError),
        (403, refusal(403, "Forbidden"), ClusterError),
        (410, refusal(410, "Expired"), CompactedError),
        (429, refusal(429, "TooManyRequests"), ClusterUnavailableError),
        (503, "not json", ClusterError),
        (201, "[]", ClusterError),
        (201, {"metadata": {}}, ClusterError),
        (201, "x" * 10_000, ClusterError),
    ],
)
async def test_a_refusal_is_reported_by_its_kind(
    api: tuple[Api, int], cluster: Cluster, status: int, content: object, error: type[ClusterError]
) -> None:
    api[0].will(status, content, **{"Retry-After": "7"})
    with pytest.raises(ClusterError) as raised:
        await cluster.create(Pod(metadata=ObjectMeta(name="retinue-k.1")))
    assert isinstance(raised.value, error)
    assert len(str(raised.value)) < 3000
    if status == 429:
        assert isinstance(raised.value, ClusterUnavailableError)
        assert raised.value.pause == 7


@pytest.mark.usefixtures("cluster")
async def test_a_replaced_token_is_taken_up(api: tuple[Api, int], tmp_path: Path) -> None:
    api[0].will(401, refusal(401, "Unauthorized"))
    api[0].will(200, {"items": [], "metadata": {"resourceVersion": "1"}})
    clock, config = VirtualClock(), tmp_path / "config"
    running = Cluster(config, "kernels", clock.time)
    try:
        with pytest.raises(ClusterUnavailableError, match="Unauthorized"):
            await running.list_all(Pod, {})
        config.write_text(config.read_text().replace('"token": "t"', '"token": "replaced"'))
        await clock.sleep(MAX_BACKOFF)
        await running.list_all(Pod, {})
    finally:
        await running.close()
    assert api[0].tokens == ["Bearer t", "Bearer replaced"]


async def test_what_is_gone_is_no_error_of_its_end(api: tuple[Api, int], cluster: Cluster) -> None:
    for _ in range(3):
        api[0].will(404, refusal(404, "NotFound"))
    assert await cluster.get("retinue-k.1") is None
    assert not await cluster.delete("retinue-k.1", "u")
    await cluster.release("retinue-k.1", "u")


async def test_a_watch_continues_and_begins_again_when_it_is_compacted(api: tuple[Api, int], cluster: Cluster) -> None:
    listed = {"metadata": {"resourceVersion": "5"}, "items": [pod("5", "Pending"), pod("5", "Running", "foreign")]}
    api[0].will(200, listed)
    api[0].will(200, [{"type": "MODIFIED", "object": pod("6", "Running")}])
    api[0].will(200, [{"type": "ERROR", "object": refusal(410, "Expired")}])
    api[0].will(200, {"metadata": {"resourceVersion": "9"}, "items": [pod("9", "Failed")]})
    seen: list[str] = []
    ended = asyncio.Event()

    def changed(state: PodState) -> None:
        seen.append(state.phase)
        if state.phase == "Failed":
            ended.set()

    watch = PodWatch(cluster, "a", changed)
    task = asyncio.create_task(watch.run(Conditions()))
    try:
        async with asyncio.timeout(NEVER):
            await ended.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    # The second watch continues from what the first has shown last.
    assert api[0].asked[:4] == ["GET", "GET 5", "GET 6", "GET"]
    assert seen == ["Pending", "Running", "Failed"]


async def test_an_answer_that_comes_late_takes_nothing_back(api: tuple[Api, int], cluster: Cluster) -> None:
    api[0].will(200, {"metadata": {"resourceVersion": "5"}, "items": []})
    api[0].will(
        200, [{"type": "ADDED", "object": pod("6", "Pending")}, {"type": "MODIFIED", "object": pod("7", "Failed")}]
    )
    seen: list[PodState] = []
    refused = asyncio.Event()

    def changed(state: PodState) -> None:
        seen.append(state)
        if state.phase == "Failed":
            refused.set()

    watch = PodWatch(cluster, "a", changed)
    task = asyncio.create_task(watch.run(Conditions()))
    try:
        async with asyncio.timeout(NEVER):
            await refused.wait()
        # The answer to its creation, which the node has refused meanwhile.
        watch.note(seen[0])
        known = watch.get("k.1")
        assert known is not None
        assert known.phase == "Failed"
        watch.note(replace(seen[0], uid="another"))
        assert watch.get("k.1") == replace(seen[0], uid="another")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
