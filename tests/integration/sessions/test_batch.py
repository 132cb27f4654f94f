"""Batch sessions on real nodes: scripts before commands, start times, and pipelines."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from standardwebhooks import Webhook

from retinue.client.errors import CallError, InvalidRequest
from retinue.client.spec import session_spec
from retinue.manager.v1 import session_pb2
from tests.integration.sessions.inside import UNTIL_FINISHED, finish, printed, ran
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_every_kernel_runs_the_script_before_its_command(client: Client) -> None:
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", f"cat made; {UNTIL_FINISHED}"],
        sub_command=["sh", "-c", "cat made; sleep infinity"],
        bootstrap_script="hostname >made",
        cluster_size=2,
    )
    await session.wait("RUNNING", timeout=NEVER)
    for name in ("main1", "sub1"):
        await eventually(partial(printed, session, name), f"{name}\n".__eq__)
    await finish(session)
    await session.wait_ended(NEVER)
    assert session.result == "SUCCESS"


async def test_what_depends_on_a_session_waits_for_its_end_after_a_restart(client: Client) -> None:
    parent = await client.sessions.create(type="batch", name="parent", command=["sh", "-c", UNTIL_FINISHED])
    child = await client.sessions.create(type="batch", command=["true"], depends_on=["parent"])
    later = await client.sessions.create(type="batch", command=["true"], runs_after=["parent"])
    await parent.wait("RUNNING", timeout=NEVER)
    restarted = await client.sessions.restart("parent", force=True)
    assert (restarted.id, restarted.state, restarted.view.reason) == (parent.id, "PENDING", "RESTARTED")
    await restarted.wait("RUNNING", timeout=NEVER)
    for waiting in (child, later):
        assert (await waiting.refresh()).state == "PENDING"
    await finish(restarted)
    for waiting in (restarted, child, later):
        await waiting.wait_ended(NEVER)
        assert waiting.result == "SUCCESS"
    with pytest.raises(CallError, match="ask for a new session"):
        await client.sessions.restart("parent")


async def test_a_script_that_fails_ends_the_session_and_says_so(client: Client) -> None:
    session = await client.sessions.create(type="batch", command=["echo", "never"], bootstrap_script="echo no; exit 9")
    await session.wait_ended(NEVER)
    assert (session.state, session.result, session.view.reason) == ("TERMINATED", "FAILED", "BOOTSTRAP_FAILED")
    assert await printed(session) == "no\nretinue: the bootstrap script failed with exit code 9\n"


async def test_a_command_starts_in_the_working_directory_that_it_asks_for(client: Client) -> None:
    made = await client.sessions.create(type="batch", command=["pwd"], working_directory="/etc")
    await made.wait_ended(NEVER)
    assert await printed(made) == "/etc\n"
    assert made.view.spec.kernel.working_directory == "/etc"
    refused = await client.sessions.create(
        type="batch", command=["true"], working_directory="/no/where", max_attempts=2, retry_on_failure=True,
        retry_backoff=0,
    )  # fmt: skip
    await refused.wait_ended(NEVER)
    assert (refused.result, refused.view.reason, refused.view.retries) == ("FAILED", "WORKING_DIRECTORY_REFUSED", 1)
    assert refused.view.message == "main1 has no directory /no/where that its user may enter (214)"
    with pytest.raises(InvalidRequest, match="working_directory"):
        await client.sessions.create(type="batch", command=["true"], working_directory="etc")


async def test_what_is_attached_starts_in_the_working_directory(client: Client) -> None:
    app = session_pb2.AppDefinition(name="web", command=["sh", "-c", "pwd; exec python3 -m http.server {port}"])
    session = await client.sessions.create(
        type="interactive", working_directory="/etc", ports=[("web", "http", 8000)], apps=[app]
    )
    await session.wait("RUNNING", timeout=NEVER)
    assert await ran(session, "pwd") == (b"/etc\n", b"", 0)
    assert await ran(session, "pwd", working_directory="/usr") == (b"/usr\n", b"", 0)
    assert (await session.start_app("web")).log.startswith(b"/etc\n")
    await session.terminate(force=True)


async def test_a_session_waits_for_its_start_time_without_being_tried(client: Client) -> None:
    begin = time.time()

    def starting(seconds: float) -> session_pb2.SessionSpec:
        spec = session_spec(type="batch", command=["true"])
        spec.earliest_start_time.FromNanoseconds(round((begin + seconds) * 1e9))
        return spec

    session = await client.sessions.create_from(starting(3600))
    async for event in client.sessions.watch(after_revision=session.revision, session_id=session.id):
        if event.HasField("reason_changed"):
            break
    explanation = await client.sessions.explain(session.id)
    assert (explanation.reason, explanation.tries) == ("START_TIME", 0)
    await session.terminate()
    started = await client.sessions.create_from(starting(1.5))
    await started.wait_ended(NEVER)
    assert started.result == "SUCCESS"
    assert started.view.schedule_time.ToNanoseconds() / 1e9 >= begin + 1.5


async def test_a_pipeline_with_a_failing_branch(client: Client) -> None:
    def stage(name: str, command: str, *parents: str) -> session_pb2.SessionSpec:
        return session_spec(type="batch", name=name, command=["sh", "-c", command], depends_on=parents)

    answer = await client.sessions.create_many(
        [
            stage("p-report", "true", "p-good", "p-bad"),
            stage("p-good", "true", "p-prepare"),
            stage("p-bad", "exit 5", "p-prepare"),
            stage("p-after", "true", "p-good"),
            stage("p-prepare", "sleep 0.2"),
        ]
    )
    ids = {result.accepted.name: result.accepted.id for result in answer.results}
    ended = {}
    for name, session_id in ids.items():
        session = await client.sessions.get(session_id)
        ended[name] = (await session.wait_ended(NEVER)).view
    assert {name: (view.state, view.result) for name, view in ended.items()} == {
        "p-report": (session_pb2.SESSION_STATE_CANCELLED, session_pb2.SESSION_RESULT_UNDEFINED),
        "p-good": (session_pb2.SESSION_STATE_TERMINATED, session_pb2.SESSION_RESULT_SUCCESS),
        "p-bad": (session_pb2.SESSION_STATE_TERMINATED, session_pb2.SESSION_RESULT_FAILED),
        "p-after": (session_pb2.SESSION_STATE_TERMINATED, session_pb2.SESSION_RESULT_SUCCESS),
        "p-prepare": (session_pb2.SESSION_STATE_TERMINATED, session_pb2.SESSION_RESULT_SUCCESS),
    }
    assert ended["p-report"].reason == "DEPENDENCY_FAILED"
    assert "p-bad, which it depends on, failed" in ended["p-report"].message
    assert ended["p-good"].schedule_time.ToNanoseconds() >= ended["p-prepare"].end_time.ToNanoseconds()


async def test_webhooks_are_sent_over_the_death_of_the_manager(client: Client, cluster: Cluster) -> None:
    heard: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        heard.put_nowait((head, await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        spec = session_spec(type="batch", command=["sh", "-c", UNTIL_FINISHED])
        secret = f"whsec_{base64.b64encode(b'not to be shown to anyone').decode()}"
        events = [session_pb2.WEBHOOK_EVENT_RUNNING, session_pb2.WEBHOOK_EVENT_SUCCEEDED]
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        spec.webhooks.add(url=url, events=events, secret=secret)
        session = await client.sessions.create_from(spec)
        async with asyncio.timeout(NEVER):
            head, body = await heard.get()
        headers = dict(line.split(": ", 1) for line in head.decode().strip().split("\r\n")[1:])
        assert Webhook(secret).verify(body, headers)["event"] == "RUNNING"
        await cluster.manager.kill()
        await cluster.start_manager()

        async def ended() -> bool:
            await finish(session)
            return (await session.refresh()).is_ended

        await eventually(ended, ignoring=CallError)
        async with asyncio.timeout(NEVER):
            while json.loads((await heard.get())[1])["event"] != "SUCCEEDED":
                pass
        shown = (await client.sessions.get(session.id)).view
        assert (shown.spec.webhooks[0].url, shown.spec.webhooks[0].secret) == (url, "")
    finally:
        server.close()
        await server.wait_closed()


TRAINER = "trap 'sleep 0.3; echo saved; exit' {}; echo on; while :; do sleep 0.02; done"


async def test_what_a_script_runs_is_asked_to_end_and_has_the_grace(client: Client) -> None:
    """A shell does not pass a signal on, and ends by it at once."""
    # Shells say when a signal ends what they run.
    script = f'sh -c "{TRAINER.format("TERM")}" 2>/dev/null; true'
    session = await client.sessions.create(type="batch", command=["sh", "-c", script], termination_grace=300)
    await session.wait("RUNNING", timeout=NEVER)
    await eventually(partial(printed, session, "main1"), "on\n".__eq__)
    await session.terminate()
    await session.wait_ended(NEVER)
    assert await printed(session, "main1") == "on\nsaved\n"


async def test_a_group_says_how_long_a_grace_may_be(client: Client) -> None:
    spec = session_spec(type="batch", command=["true"], termination_grace=301)
    with pytest.raises(CallError, match=r"spec\.termination_grace: must be at most 300 s in resource group default"):
        await client.sessions.create_from(spec)
    await client.resource_groups.update("default", max_grace=dt.timedelta(hours=1))
    try:
        session = await client.sessions.create_from(spec)
        await session.wait_ended(NEVER)
        assert session.result == "SUCCESS"
    finally:
        await client.resource_groups.update("default", max_grace=dt.timedelta(minutes=5))


async def test_other_sessions_are_asked_to_end_by_their_command_and_by_a_signal_of_choice(client: Client) -> None:
    # Of two that are killed together, the shell may see the other one's end, and report it.
    script = f"exec 2>/dev/null; trap 'echo asked; wait; exit' INT; sh -c \"{TRAINER.format('INT')}\" & wait"
    session = await client.sessions.create(
        type="interactive", command=["sh", "-c", script], stop_signal="SIGINT", termination_grace=1
    )
    await session.wait("RUNNING", timeout=NEVER)
    await eventually(partial(printed, session, "main1"), "on\n".__eq__)
    await session.terminate()
    await session.wait_ended(NEVER)
    assert (await printed(session, "main1"), session.view.spec.stop_signal) == ("on\nasked\n", "INT")


async def test_a_script_is_warned_before_its_time_limit(client: Client) -> None:
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", "trap 'echo warned; exit 0' USR1; while :; do sleep 0.02; done"],
        time_limit=86_400,
        # Long enough for the trap to be there.
        time_warning=("USR1", 86_397),
    )
    await session.wait_ended(NEVER)
    assert (session.result, await printed(session, "main1")) == ("SUCCESS", "warned\n")
