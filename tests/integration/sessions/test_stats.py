"""What kernels use, from their nodes through the manager to a client and its table."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from retinue.client.aio import Client
from retinue.client.errors import InvalidRequest, NotFound
from retinue.manager.v1 import kernel_service_pb2 as pb
from tests.integration.client.command.conftest import Program, environment, retinue
from tests.integration.sessions.inside import ran
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.devtools.cluster import Cluster

__all__ = ["environment", "retinue"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

BUSY = "while :; do :; done"


async def test_a_sessions_kernels_until_it_ends(client: Client, retinue: Program) -> None:
    session = await client.sessions.create(
        type="interactive", name="for-stats", command=["sh", "-c", BUSY], sub_command=["sleep", "1000"], cluster_size=2,
        cluster_mode="multi-node", slots={"cpu": "0.5", "mem": "64m"}, termination_grace=0,
    )  # fmt: skip
    await session.wait("RUNNING", timeout=NEVER)
    # Those at both kernels: an agent may have measured nothing yet, and be late.
    looks: list[dict[str, pb.KernelStats]] = []
    last: dict[str, pb.KernelStats] = {}
    ended: dict[str, pb.KernelStats] | None = None

    def grown(hostname: str, amount: str) -> float:
        first, now = (getattr(look[hostname].usage, amount) for look in (looks[0], looks[-1]))
        return float((now.ToNanoseconds() - first.ToNanoseconds()) / 1e9 if amount.endswith("_time") else now - first)

    def is_counted() -> bool:
        return (
            grown("main1", "sent_bytes") >= 1000
            and grown("sub1", "received_bytes") >= 1000
            and grown("main1", "cpu_time") > 0.5
        )

    async with asyncio.timeout(NEVER), aclosing(client.sessions.stats(session.id, interval=1)) as responses:
        async for response in responses:
            look = {kernel.hostname: kernel for kernel in response.kernels}
            if last:
                ended = look
            if set(look) != {"main1", "sub1"}:
                continue
            looks.append(look)
            if len(looks) == 1:
                # Some traffic between them.
                send = "import socket; socket.socket(2, 2).sendto(b'x' * 1000, ('sub1', 9))"
                await ran(session, "python3", "-c", send)
            # Looks that were taken while it was sent come first.
            if not last and is_counted():
                last = look
                used = {name: grown(name, "cpu_time") for name in look}
                assert used["main1"] < grown("main1", "sample_time"), "half a processor is its limit"
                assert used["sub1"] < used["main1"], "it sleeps"
                top = await eventually(
                    lambda: retinue("top", "--once", "--interval", "1s", session.name),
                    lambda shown: len(shown.out.splitlines()) == 3,
                )
                as_json = await retinue("top", "--once", "-o", "json", "-k", "sub1", session.name)
                await session.terminate(force=True)
    assert ended == {}, "it ends with the session, after a last look"
    assert {kernel.agent for kernel in last.values()} == {kernel.agent for kernel in session.kernels}
    for kernel in last.values():
        assert kernel.usage.memory_limit_bytes == 64 << 20
        assert 0 < kernel.usage.memory_bytes < 64 << 20
        assert kernel.usage.HasField("read_bytes")
        assert kernel.usage.HasField("received_bytes")
        assert kernel.usage.tasks >= 1
    lines = top.out.splitlines()
    assert lines[0].split()[:4] == ["SESSION", "KERNEL", "CPU", "MEMORY"]
    assert [line.split()[:2] for line in lines[1:]] == [["for-stats", "main1"], ["for-stats", "sub1"]]
    assert lines[1].split()[2].endswith("%")
    assert [kernel["hostname"] for kernel in json.loads(as_json.out)["kernels"]] == ["sub1"]


async def test_all_of_the_callers_and_of_no_other_user(client: Client, cluster: Cluster) -> None:
    session = await client.sessions.create(type="interactive", slots={"cpu": "0.2", "mem": "32m"}, termination_grace=0)
    await session.wait("RUNNING", timeout=NEVER)
    user = await client.users.create("stats-user", projects={"default": "member"})
    token = await client.tokens.create(user=user.name, description="stats")
    settings = cluster.settings
    try:
        async with aclosing(client.sessions.stats()) as responses:
            async for response in responses:
                # Its agent may have measured nothing yet.
                if session.id in {kernel.session_id for kernel in response.kernels}:
                    break
            else:
                raise AssertionError("the statistics ended")
        async with Client.connect(settings.endpoint, token=token.secret, ca=settings.ca) as other:
            async with aclosing(other.sessions.stats()) as responses:
                assert list((await anext(responses)).kernels) == []
            with pytest.raises(NotFound):
                await anext(other.sessions.stats(session.id))
    finally:
        await client.users.delete(user.name)
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


async def test_samples_of_the_last_hour_are_there_without_having_been_asked_for(
    client: Client, cluster: Cluster
) -> None:
    session = await client.sessions.create(
        type="interactive", command=["sh", "-c", BUSY], cluster_size=2, slots={"cpu": "0.2", "mem": "32m"},
        termination_grace=0,
    )  # fmt: skip
    await session.wait("RUNNING", timeout=NEVER)
    user = await client.users.create("samples-user", projects={"default": "member"})
    token = await client.tokens.create(user=user.name, description="samples")
    settings = cluster.settings

    async def samples(hostname: str = "", **values: Any) -> dict[str, pb.KernelUsageSamples]:
        listed = client.sessions.usage_samples(session.id, hostname, **values)
        return {kernel.hostname: kernel async for kernel in listed}

    def newest(found: dict[str, pb.KernelUsageSamples]) -> datetime:
        return found["main1"].samples[-1].sample_time.ToDatetime(UTC)

    try:
        found = await eventually(samples, lambda found: all(len(kernel.samples) >= 2 for kernel in found.values()))
        assert list(found) == ["main1", "sub1"]
        assert {kernel.agent for kernel in found.values()} == {kernel.agent for kernel in session.kernels}
        assert {kernel.attempt for kernel in found.values()} == {1}
        for kernel in found.values():
            assert kernel.samples[-1].memory_bytes > 0
            assert kernel.samples[-1].HasField("received_bytes")
            assert not kernel.samples[-1].HasField("gpu_percent")
        first, *_, last = found["main1"].samples
        assert last.cpu_time.ToNanoseconds() > first.cpu_time.ToNanoseconds()
        assert list(await samples("sub1")) == ["sub1"]
        assert [len(kernel.samples) for kernel in (await samples("main1", interval=3600)).values()] in ([1], [2])
        since = newest(found)
        assert (await samples("main1", since=since))["main1"].samples[0] == last
        async with Client.connect(settings.endpoint, token=token.secret, ca=settings.ca) as other:
            with pytest.raises(NotFound):
                await anext(other.sessions.usage_samples(session.id))
    finally:
        await client.users.delete(user.name)
        await session.terminate(force=True)
        await session.wait_ended(NEVER)
    ended = await samples()
    assert ended["main1"].samples[0] == first, "they stay after the end"


async def test_a_kernel_that_never_ran_has_no_samples(client: Client) -> None:
    session = await client.sessions.create(type="batch", command=["true"], slots={"cpu": "100000"})
    try:
        kernels = [kernel async for kernel in client.sessions.usage_samples(session.id)]
        assert kernels == [pb.KernelUsageSamples(hostname="main1")]
    finally:
        await session.terminate(force=True)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"hostname": "main1"}, "hostname"),
        ({"interval": 0.5}, "interval"),
        ({"interval": timedelta(days=1).total_seconds()}, "interval"),
    ],
)
async def test_bad_requests(client: Client, values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await anext(client.sessions.stats(**values))
    assert [violation.field for violation in caught.value.violations] == [field]
