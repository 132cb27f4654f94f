"""Idle sessions are warned and ended, and sessions in use are not, on real nodes."""

from __future__ import annotations

import asyncio
import datetime as dt
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from retinue.client.errors import FailedPrecondition, InvalidRequest, NotFound
from retinue.manager.v1 import idle_pb2 as pb
from tests.integration.sessions.idle_policies import check_of, let_be_unused, no_policy_afterwards, seconds
from tests.integration.sessions.inside import shell, until_printed
from tests.integration.sessions.journal import warnings
from tests.integration.sessions.web import browser
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client, Session
    from retinue.client.words import SessionType
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLOTS = {"cpu": "0.5", "mem": "64m"}
SERVE = """
import http.server
server = http.server.HTTPServer(("127.0.0.1", 8000), http.server.SimpleHTTPRequestHandler)
print("listening", flush=True)
server.serve_forever()
"""


@pytest_asyncio.fixture(loop_scope="session")
async def group(client: Client) -> AsyncIterator[str]:
    """The group whose policy a test sets; it has none afterwards."""
    async with no_policy_afterwards(client) as name:
        yield name


async def start(client: Client, *command: str, kind: SessionType = "interactive", protocol: str = "") -> Session:
    session = await client.sessions.create(
        type=kind,
        command=command,
        slots=SLOTS,
        termination_grace=0,
        ports=[("web", protocol, 8000)] if protocol else [],
    )
    return await session.wait("RUNNING", timeout=NEVER)


async def until_warned(session: Session, *, warned: bool) -> None:
    """Waits until a session that runs is warned of its end, or is so no more."""
    async with aclosing(session.progress()) as steps:
        async for step in steps:
            assert step.state == "RUNNING", step.view
            if bool(step.view.conditions) is warned:
                return
    raise AssertionError("its progress ended")


async def test_the_used_stay_and_the_unused_go_after_a_warning(client: Client, cluster: Cluster, group: str) -> None:
    """An hour passes in the database only: what is to be done in time has ten minutes, those of the warning."""
    policy = pb.IdlePolicy(interaction_timeout=seconds(3600), warning=seconds(600), max_extension=seconds(3600))
    await client.resource_groups.update(group, idle_policy=policy)
    serve = ("python3", "-c", SERVE)
    attended, tunnelled, browsed, batch, kept, unused = await asyncio.gather(
        start(client, "sleep", "1000"),
        start(client, *serve, protocol="tcp"),
        start(client, *serve, protocol="http"),
        start(client, "sleep", "1000", kind="batch"),
        start(client, "sleep", "1000"),
        start(client, "sleep", "1000"),
    )
    assert (await client.sessions.get(batch.id)).view.idle_checks == []
    extended = (await client.sessions.extend(kept.id, dt.timedelta(seconds=3600))).view
    assert check_of(extended, pb.IDLE_CHECKER_INTERACTION).remaining.seconds >= 3000
    assert extended.HasField("extension_end_time")
    with pytest.raises(FailedPrecondition, match="at most 1 h from now") as refused:
        await client.sessions.extend(kept.id, dt.timedelta(seconds=3601))
    assert (refused.value.reason, refused.value.metadata["most"]) == ("EXTENSION_REFUSED", "3600")
    with pytest.raises(FailedPrecondition):
        await client.sessions.extend(batch.id)
    shown = (await client.sessions.get(unused.id)).view
    assert check_of(shown, pb.IDLE_CHECKER_INTERACTION).limit.seconds == 3600
    for session in (tunnelled, browsed):
        await until_printed(session, b"listening")

    ending = asyncio.create_task(warnings(client, await client.sessions.get(unused.id)))
    async with browser() as web:
        ticket = await browsed.create_port_ticket("web")
        async with web.get(ticket.url) as page:
            assert page.status == HTTPStatus.OK
        used = (attended, tunnelled, browsed)
        await let_be_unused(cluster, 3100, *used, unused, kept)
        for session in (attended, tunnelled, unused):
            await until_warned(session, warned=True)
        # That it was opened in a browser may be noted later.
        noted = asyncio.create_task(until_warned(browsed, warned=True))
        while not noted.done():
            await let_be_unused(cluster, 3100, browsed)
            await asyncio.wait((noted,), timeout=1.0)
        await noted
        warned = (await unused.refresh()).view
        assert check_of(warned, pb.IDLE_CHECKER_INTERACTION).status == pb.IDLE_STATUS_WARNED
        await shell(attended, "true")
        async with tunnelled.open_port("web") as connection:
            await connection.write(b"GET / HTTP/1.0\r\n\r\n")
            await connection.end_data()
            assert [data async for data in connection]
        # Its bytes pass nothing that is Python.
        async with web.get(ticket.origin) as page:
            assert page.status == HTTPStatus.OK
        await client.sessions.extend(unused.id)
        assert (await unused.refresh()).view.conditions == []
        for session in used:
            await until_warned(session, warned=False)
    await let_be_unused(cluster, 3100, unused)
    await until_warned(unused, warned=True)
    await let_be_unused(cluster, 3700, unused, warned=700)
    warning = "INTERACTION_WARNING"
    assert await ending == [f"+{warning}", f"-{warning}", f"+{warning}", "IDLE_TIMEOUT", "IDLE_TIMEOUT"]
    await unused.refresh()
    assert unused.view.message.startswith("it was not used for ")
    for session in (attended, tunnelled, browsed, batch, kept):
        assert (await session.refresh()).state == "RUNNING"


async def test_use_under_thresholds_lifetime_and_overrides(client: Client, cluster: Cluster, group: str) -> None:
    user = await client.users.create("idle-user", projects={"default": "member"})
    token = await client.tokens.create(user=user.name, description="idle")
    await client.idle_overrides.set(user.name, exempt=["interaction", "lifetime", "utilization"])
    try:
        async with cluster.client(token.secret) as other:
            assert [override.user async for override in other.idle_overrides.list()] == [user.name]
            quiet, busy, exempt = await asyncio.gather(
                start(client, "sleep", "1000", kind="batch"),
                start(client, "sh", "-c", "echo on; while :; do :; done"),
                start(other, "sleep", "1000"),
            )
            with pytest.raises(NotFound):
                await other.sessions.extend(quiet.id)
            # Use is observed from the time that a policy wants it, and by then it computes: it may use half a
            # processor, and what others leave it of that is far more than one per cent.
            await until_printed(busy, b"on")
            policy = pb.IdlePolicy(
                warning=seconds(1),
                utilization=pb.UtilizationPolicy(window=seconds(3), thresholds={"cpu": 1.0, "mem": 90.0}),
            )
            await client.resource_groups.update(group, idle_policy=policy)
            assert (await warnings(client, quiet))[-1] == "IDLE_UTILIZATION"
            await quiet.refresh()
            assert quiet.view.message.startswith("it used cpu ")
            assert "(threshold 1 %), mem " in quiet.view.message
            assert quiet.result == "FAILED"

            async def use() -> pb.IdleCheck:
                assert (await busy.refresh()).state == "RUNNING"
                return check_of(busy.view, pb.IDLE_CHECKER_UTILIZATION)

            # What it uses is not known while its agent is late.
            await eventually(use, lambda check: check.status == pb.IDLE_STATUS_COUNTING)

            async def unused_for() -> float:
                assert (await busy.refresh()).state == "RUNNING"
                measured = check_of(busy.view, pb.IDLE_CHECKER_INTERACTION).measured
                return float(measured.removeprefix("it was not used for ").partition(" ")[0])

            # Nobody uses it, and it computes.
            policy.interaction_timeout.CopyFrom(seconds(2))
            await client.resource_groups.update(group, idle_policy=policy)
            await eventually(unused_for, lambda unused: unused > 6.0, ignoring=StopIteration)
            policy.max_lifetime.CopyFrom(seconds(1))
            await client.resource_groups.update(group, idle_policy=policy)
            assert (await warnings(client, busy))[-1] == "IDLE_LIFETIME"
            assert (await exempt.refresh()).state == "RUNNING"
            assert exempt.view.idle_checks == []
            await exempt.terminate(force=True)
            await exempt.wait_ended(NEVER)
    finally:
        await client.users.delete(user.name)


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (pb.IdlePolicy(interaction_timeout=seconds(1)), "interaction_timeout"),
        (pb.IdlePolicy(interaction_timeout=seconds(366 * 86400)), "interaction_timeout"),
        (pb.IdlePolicy(grace_period=seconds(-1)), "grace_period"),
        (pb.IdlePolicy(warning=Duration(seconds=1, nanos=2_000_000_000)), "warning"),
        (pb.IdlePolicy(max_extension=seconds(-1)), "max_extension"),
        (pb.IdlePolicy(max_lifetime=seconds(0.5)), "max_lifetime"),
        (pb.IdlePolicy(utilization=pb.UtilizationPolicy(thresholds={"cpu": 5})), "utilization.window"),
        (pb.IdlePolicy(utilization=pb.UtilizationPolicy(window=seconds(5))), "utilization.thresholds"),
        (pb.IdlePolicy(utilization=pb.UtilizationPolicy(window=seconds(5), thresholds={"x": 5})), "utilization.thresholds['x']"),
        (pb.IdlePolicy(utilization=pb.UtilizationPolicy(window=seconds(5), thresholds={"cpu": 0})), "utilization.thresholds['cpu']"),
        (pb.IdlePolicy(utilization=pb.UtilizationPolicy(window=seconds(5), thresholds={"cpu": float("nan")})), "utilization.thresholds['cpu']"),
        (pb.IdlePolicy(utilization=pb.UtilizationPolicy(window=seconds(5), thresholds={"cpu": 101})), "utilization.thresholds['cpu']"),
        (pb.IdlePolicy(utilization=pb.UtilizationPolicy(window=seconds(5), thresholds={"cpu": 5}, operator=9)), "utilization.operator"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_a_wrong_policy_is_refused(client: Client, policy: pb.IdlePolicy, field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await client.resource_groups.update("default", idle_policy=policy)
    assert [violation.field for violation in raised.value.violations] == [f"resource_group.idle_policy.{field}"]


async def test_a_wrong_extension_is_refused(client: Client) -> None:
    for duration in (dt.timedelta(0), dt.timedelta(days=366), dt.timedelta(seconds=-1)):
        with pytest.raises(InvalidRequest) as raised:
            await client.sessions.extend("nobody", duration)
        assert [violation.field for violation in raised.value.violations] == ["duration"]
    with pytest.raises(NotFound):
        await client.sessions.extend("nobody")
    waiting = await client.sessions.create(type="batch", command=["true"], slots={"cpu": "64"})
    with pytest.raises(FailedPrecondition) as refused:
        await client.sessions.extend(waiting.id)
    assert (refused.value.reason, refused.value.metadata["state"]) == ("STATE_FORBIDS", "PENDING")
    await waiting.terminate()
