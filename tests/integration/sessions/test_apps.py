"""Programs that are started in a session on demand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from retinue.client.errors import FailedPrecondition, InvalidRequest, NotFound, Unavailable
from retinue.manager.v1 import app_service_pb2, session_pb2
from retinue.types.v1 import app_pb2 as pb
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERVER = """
import os, socket, sys, time
print("hello", os.getpid(), *sys.argv[1:], os.environ.get("COLOUR"), os.environ["BACKENDAI_CLUSTER_HOST"], os.getcwd(), flush=True)
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    with listening.accept()[0] as connection:
        connection.sendall(b"%d" % os.getpid())
"""
STUBBORN = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
if os.fork():
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    time.sleep(1)
"""
APPS = [
    session_pb2.AppDefinition(
        name="web",
        command=["python3", "-c", SERVER, "{port}", "{session}"],
        environment={"COLOUR": "red"},
        working_directory="/usr",
        allowed_arguments=["--debug", "--level"],
        allowed_environment=["COLOUR"],
    ),
    session_pb2.AppDefinition(
        name="told",
        command=["sh", "-c", 'echo "$1 $TOLD_URL $RETINUE_PORT_TOLD_HOST $RETINUE_PORT_TOLD_URL"', "sh", "{host}"],
        environment={"TOLD_URL": "{url}"},
    ),
    session_pb2.AppDefinition(name="broken", command=["sh", "-c", "echo this is why; exit 3"]),
    session_pb2.AppDefinition(name="missing", command=["/no/such/program"]),
    session_pb2.AppDefinition(name="slow", command=["sleep", "1000"]),
    session_pb2.AppDefinition(name="stubborn", command=["python3", "-c", STUBBORN, "{port}"]),
]
PORTS = [
    ("web", "http", 7001),
    ("told", "http", 7006),
    ("broken", "tcp", 7002),
    ("missing", "tcp", 7003),
    ("slow", "tcp", 7004),
    ("stubborn", "tcp", 7005),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="interactive",
            slots={"cpu": "0.5", "mem": "128m"},
            termination_grace=0,
            ports=PORTS,
            apps=APPS,
        )
        await session.wait("RUNNING", timeout=NEVER)
        yield session
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


async def answer(session: Session) -> bytes:
    async with session.open_port("web") as connection:
        return b"".join([data async for data in connection])


async def test_started_once_and_over_the_restart_of_its_agent(session: Session, cluster: Cluster) -> None:
    assert (await session.app("web")).state == pb.APP_STATE_STOPPED
    started = await asyncio.gather(
        *(session.start_app("web", ["--debug", "--level=3"], environment={"COLOUR": "blue"}) for _ in range(4))
    )
    assert {(status.state, status.port) for status in started} == {(pb.APP_STATE_RUNNING, 7001)}
    number = await answer(session)
    expected = b"hello %b 7001 %b --debug --level=3 blue main1 /usr\n" % (number, session.id.encode())
    assert (await session.app("web")).log == expected
    where = (await session.refresh()).kernels[0].agent
    agent = [agent.id for agent in cluster.agents].index(where)
    await cluster.agents[agent].process.kill()
    await cluster.start_agent(agent)
    again = await eventually(lambda: session.start_app("web"), ignoring=Unavailable)
    assert again.state == pb.APP_STATE_RUNNING
    assert await answer(session) == number


async def test_programs_know_their_address(session: Session) -> None:
    ticket = await session.create_port_ticket("told")
    with pytest.raises(FailedPrecondition) as caught:
        await session.start_app("told")
    host = urlsplit(ticket.origin).hostname
    # It has ended, and said what it was told.
    assert f"{host} {ticket.origin} {host} {ticket.origin}" in str(caught.value)


async def test_stopped_and_started_again(session: Session) -> None:
    first = await session.start_app("web")
    assert first.state == pb.APP_STATE_RUNNING
    number = await answer(session)
    # A process that reads the log, or has it open, is not the program.
    async with session.attach(["tail", "-n", "+1", "-f", "/tmp/.retinue-web.log"]) as reader:  # noqa: S108  # in the kernel
        pieces = aiter(reader)
        assert (await anext(pieces)).data
        for _ in range(2):
            assert (await session.stop_app("web")).state == pb.APP_STATE_STOPPED
        assert (await session.app("web")).state == pb.APP_STATE_STOPPED
        with pytest.raises(FailedPrecondition) as closed:
            await answer(session)
        assert closed.value.reason == "PORT_CLOSED"
        assert (await session.start_app("web")).state == pb.APP_STATE_RUNNING
        assert await answer(session) != number
        # It reads on.
        assert (await anext(pieces)).data
    # What does not want to is killed, with what it has started.
    assert (await session.start_app("stubborn")).state == pb.APP_STATE_RUNNING
    stopping = asyncio.create_task(session.stop_app("stubborn", grace=20))
    await eventually(lambda: session.app("stubborn"), lambda status: status.log == b"no\nno\n")
    # Both were asked, and stay; who has no patience kills them.
    for stopped in (await session.stop_app("stubborn", grace=0), await stopping):
        assert (stopped.state, stopped.log) == (pb.APP_STATE_STOPPED, b"no\nno\n")
    assert (await session.start_app("stubborn")).state == pb.APP_STATE_RUNNING
    assert (await session.stop_app("stubborn", grace=0.5)).state == pb.APP_STATE_STOPPED
    for grace in (-1.0, 20.1):
        with pytest.raises(InvalidRequest) as wrong:
            await session.stop_app("web", grace=grace)
        assert [violation.field for violation in wrong.value.violations] == ["grace"]


async def test_what_does_not_start(session: Session) -> None:
    with pytest.raises(FailedPrecondition, match="ended before it answered at port 7002: this is why") as caught:
        await session.start_app("broken")
    assert caught.value.reason == "APP_FAILED"
    assert await session.app("broken") == pb.AppStatus(state=pb.APP_STATE_STOPPED, port=7002, log=b"this is why\n")
    with pytest.raises(FailedPrecondition, match="/no/such/program: No such file"):
        await session.start_app("missing")


async def test_what_takes_long(session: Session) -> None:
    stub: Any = session._sessions._apps  # noqa: SLF001  # the library always waits
    request = app_service_pb2.StartAppRequest(session=session.id, app="slow")
    request.wait.FromMilliseconds(300)
    for _ in range(2):
        assert (await stub.StartApp(request)).status.state == pb.APP_STATE_STARTING
    lines = "for place in /proc/[0-9]*; do tr '\\0' ' ' <$place/cmdline; echo; done"

    async def running() -> int:
        async with session.attach(["sh", "-c", lines]) as command:
            found = b"".join([piece.data async for piece in command]).splitlines()
        return [line.split() for line in found].count([b"sleep", b"1000"])

    # It is a copy of what starts it until it has become what it is to be.
    assert await eventually(running) == 1


@pytest.mark.parametrize(
    ("arguments", "environment", "fields"),
    [
        (["--other"], {}, ["arguments[0]"]),
        (["--debug", "x"], {}, ["arguments[1]"]),
        ([], {"LD_PRELOAD": "x"}, ["environment['LD_PRELOAD']"]),
        ([], {"RETINUE_X": "x"}, ["environment['RETINUE_X']"]),
        (["a\0b"], {}, ["arguments[0]"]),
        (["--more"], {"MORE": ""}, ["arguments[0]", "environment['MORE']"]),
    ],
)
async def test_only_what_the_definition_allows(
    session: Session, arguments: list[str], environment: dict[str, str], fields: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await session.start_app("web", arguments, environment=environment)
    assert [violation.field for violation in caught.value.violations] == fields


async def test_only_ones_own_and_only_what_is_defined(session: Session, client: Client, cluster: Cluster) -> None:
    for call in (session.start_app, session.app, session.stop_app):
        with pytest.raises(NotFound, match="no such app: there is web, told, broken"):
            await call("other")
    user = await client.users.create("service-user", projects={"default": "admin"})
    try:
        token = await client.tokens.create(user=user.name, description="services")
        async with cluster.client(token.secret) as other:
            for forbidden in (other.sessions.start_app, other.sessions.app, other.sessions.stop_app):
                with pytest.raises(NotFound, match="no such session"):
                    await forbidden(session.id, "web")
    finally:
        await client.users.delete(user.name)
    waiting = await client.sessions.create(type="interactive", slots={"cpu": "64"}, ports=PORTS[:1], apps=APPS[:1])
    with pytest.raises(FailedPrecondition) as caught:
        await waiting.start_app("web")
    assert caught.value.reason == "STATE_FORBIDS"
    await waiting.terminate()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "other"}, "spec.apps[0].name"),
        ({"command": []}, "spec.apps[0].command"),
        ({"environment": {"A=B": ""}}, "spec.apps[0].environment['A=B']"),
        ({"working_directory": "here"}, "spec.apps[0].working_directory"),
        ({"allowed_arguments": ["--a=b"]}, "spec.apps[0].allowed_arguments"),
        ({"allowed_environment": ["BACKENDAI_X"]}, "spec.apps[0].allowed_environment"),
    ],
)
async def test_bad_definitions(client: Client, changes: dict[str, Any], field: str) -> None:
    definition = session_pb2.AppDefinition(**({"name": "web", "command": ["true"]} | changes))
    with pytest.raises(InvalidRequest) as caught:
        await client.sessions.create(type="interactive", validate_only=True, ports=PORTS, apps=[definition])
    assert [violation.field for violation in caught.value.violations] == [field]
