"""Idle sessions are warned and ended, and sessions in use are not; on real nodes, with short times."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from http import HTTPStatus

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from retinue.client.aio import Client, Session
from retinue.client.errors import FailedPrecondition, InvalidRequest, NotFound
from retinue.devtools.cluster import Cluster
from retinue.manager.v1 import idle_pb2 as pb
from retinue.manager.v1 import session_pb2
from tests.integration.sessions.web import browser
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECONDS = 120.0
SLOTS = {"cpu": "0.5", "mem": "64m"}


def seconds(number: float) -> Duration:
    duration = Duration()
    duration.FromTimedelta(dt.timedelta(seconds=number))
    return duration


@pytest_asyncio.fixture(loop_scope="session")
async def group(client: Client) -> AsyncIterator[str]:
    """The group whose policy a test sets; it has none afterwards."""
    yield "default"
    await client.resource_groups.update("default", idle_policy=pb.IdlePolicy())
    async for session in client.sessions.list():
        await session.terminate(force=True)
        await session.wait_ended(SECONDS)


async def start(client: Client, *command: str, kind: str = "interactive") -> Session:
    session = await client.sessions.create(type=kind, command=command, slots=SLOTS, termination_grace=0)
    return await session.wait("RUNNING", timeout=SECONDS)


async def story(client: Client, session: Session) -> list[str]:
    """What its journal says of warnings, and its end."""
    entries, known = [], set[str]()
    async with (
        asyncio.timeout(SECONDS),
        aclosing(
            client.sessions.watch(after_revision=session.revision, session_id=session.id, until_ended=True)
        ) as events,
    ):
        async for event in events:
            if event.HasField("pending_reason_changed"):
                now = {condition.type for condition in event.pending_reason_changed.conditions}
                entries += [f"+{name}" for name in now - known] + [f"-{name}" for name in known - now]
                known = now
            elif event.HasField("session_moved"):
                entries.append(event.session_moved.reason)
    return [entry for entry in entries if entry]


def check_of(session: session_pb2.Session, checker: pb.IdleChecker.ValueType) -> pb.IdleCheck:
    return next(check for check in session.idle_checks if check.checker == checker)


async def run(session: Session, command: Iterable[str]) -> None:
    async with session.attach(list(command)) as attachment:
        async for _ in attachment:
            pass


async def extend_once(client: Client, unused: Session, *, asked: bool) -> bool:
    """Has a session that was warned continue, unless that was asked before; returns whether it was asked."""
    warned = (await unused.refresh()).view
    if not warned.conditions or asked:
        return asked
    assert check_of(warned, pb.IDLE_CHECKER_INTERACTION).status == pb.IDLE_STATUS_WARNED
    await client.sessions.extend(unused.id)
    assert (await unused.refresh()).view.conditions == []
    return True


async def test_the_used_stay_and_the_unused_go_after_a_warning(client: Client, group: str) -> None:
    await client.resource_groups.update(
        group, idle_policy=pb.IdlePolicy(interaction_timeout=seconds(10), warning=seconds(5), max_extension=seconds(60))
    )
    serve = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000, bind='127.0.0.1')"
    attended, tunnelled, browsed, batch, kept = await asyncio.gather(
        start(client, "sleep", "1000"),
        client.sessions.create(
            type="interactive", command=["python3", "-c", serve], slots=SLOTS, ports=[("web", "tcp", 8000)],
            termination_grace=0,
        ),
        client.sessions.create(
            type="interactive", command=["python3", "-c", serve], slots=SLOTS, ports=[("web", "http", 8000)],
            termination_grace=0,
        ),
        start(client, "sleep", "1000", kind="batch"),
        start(client, "sleep", "1000"),
    )  # fmt: skip
    await asyncio.gather(*(session.wait("RUNNING", timeout=SECONDS) for session in (tunnelled, browsed)))
    assert (await client.sessions.get(batch.id)).view.idle_checks == []
    extended = (await client.sessions.extend(kept.id, dt.timedelta(seconds=60))).view
    assert check_of(extended, pb.IDLE_CHECKER_INTERACTION).remaining.seconds >= 50
    assert extended.HasField("extension_end_time")
    with pytest.raises(FailedPrecondition, match="at most 1 min from now") as refused:
        await client.sessions.extend(kept.id, dt.timedelta(seconds=61))
    assert (refused.value.reason, refused.value.metadata["most"]) == ("EXTENSION_REFUSED", "60")
    with pytest.raises(FailedPrecondition):
        await client.sessions.extend(batch.id)

    fetched = []

    async def fetch() -> None:
        # Until the server is up there is nothing to be had.
        with contextlib.suppress(FailedPrecondition):
            async with tunnelled.open_port("web") as connection:
                await connection.write(b"GET / HTTP/1.0\r\n\r\n")
                await connection.end_data()
                fetched.extend([data async for data in connection])

    # Its time passes from here on, whatever the others took to start.
    unused = await start(client, "sleep", "1000")
    shown = (await client.sessions.get(unused.id)).view
    assert check_of(shown, pb.IDLE_CHECKER_INTERACTION).limit.seconds == 10
    ending = asyncio.create_task(story(client, unused))
    asked, pages = False, 0
    async with browser() as web:
        ticket = await browsed.create_port_ticket("web")
        async with web.get(ticket.url):
            pass
        while not ending.done():
            await asyncio.gather(run(attended, ["true"]), fetch())
            # Its bytes pass nothing that is Python.
            async with web.get(ticket.origin) as page:
                pages += page.status == HTTPStatus.OK
            asked = await extend_once(client, unused, asked=asked)
            await asyncio.wait((ending,), timeout=0.5)
    assert pages
    assert fetched
    warning = "INTERACTION_WARNING"
    assert await ending == [f"+{warning}", f"-{warning}", f"+{warning}", "IDLE_TIMEOUT", "IDLE_TIMEOUT"]
    await unused.refresh()
    assert unused.view.message.startswith("it was not used for ")
    for session in (attended, tunnelled, browsed, batch, kept):
        assert (await session.refresh()).state == "RUNNING"


async def test_use_under_thresholds_lifetime_and_overrides(client: Client, cluster: Cluster, group: str) -> None:
    user = await client.users.create("idle-user", projects={"default": "member"})
    token = await client.tokens.create(user=user.name, description="idle")
    policy = pb.IdlePolicy(
        warning=seconds(1),
        utilization=pb.UtilizationPolicy(window=seconds(3), thresholds={"cpu": 1.0, "mem": 90.0}),
    )
    await client.resource_groups.update(group, idle_policy=policy)
    await client.idle_overrides.set(user.name, exempt=["lifetime", "utilization"])
    busy_command = ("sh", "-c", "while :; do :; done")
    try:
        async with cluster.client(token.secret) as other:
            assert [override.user async for override in other.idle_overrides.list()] == [user.name]
            quiet, busy, exempt = await asyncio.gather(
                start(client, "sleep", "1000", kind="batch"),
                start(client, *busy_command),
                start(other, "sleep", "1000"),
            )
            with pytest.raises(NotFound):
                await other.sessions.extend(quiet.id)
            assert (await story(client, quiet))[-1] == "IDLE_UTILIZATION"
            await quiet.refresh()
            assert quiet.view.message.startswith("it used cpu ")
            assert "(threshold 1 %), mem " in quiet.view.message
            assert quiet.result == "FAILURE"

            async def use() -> pb.IdleCheck:
                assert (await busy.refresh()).state == "RUNNING"
                return check_of(busy.view, pb.IDLE_CHECKER_UTILIZATION)

            # What it uses is not known while its agent is late.
            await eventually(use, lambda check: check.status == pb.IDLE_STATUS_COUNTING)
            policy.max_lifetime.CopyFrom(seconds(1))
            await client.resource_groups.update(group, idle_policy=policy)
            assert (await story(client, busy))[-1] == "IDLE_LIFETIME"
            assert (await exempt.refresh()).state == "RUNNING"
            assert exempt.view.idle_checks == []
            await exempt.terminate(force=True)
            await exempt.wait_ended(SECONDS)
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
