"""Streams over websockets: what is carried, and what ends them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from aiohttp import WSMsgType

from retinue.manager.api.streams import kernel_service
from retinue.manager.console import stream as streams
from retinue.manager.v1 import kernel_service_pb2, session_pb2, session_service_pb2_grpc
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from retinue.types.v1 import terminal_pb2
from tests.integration.manager.console.page import ACCOUNTS, SESSIONS, abort, ended, stalled
from tests.integration.manager.rig import Service, bearer
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.manager.console.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="session")

WATCH = f"{SESSIONS}/WatchSessions"
ATTACH = "/rpc/retinue.manager.v1.KernelService/Attach"


async def create(service: Service, token: str) -> str:
    """Makes a session, which waits."""
    request = pb.CreateSessionRequest()
    request.spec.type, request.spec.kernel.slots["cpu"] = session_pb2.SESSION_TYPE_INTERACTIVE, "1"
    async with service.channel() as channel:
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        made = await stub.CreateSession(request, metadata=bearer(token))
    session_id: str = made.session.id
    return session_id


def beaten(monkeypatch: pytest.MonkeyPatch) -> asyncio.Semaphore:
    """Replaces the time between heartbeats: each release is one that has passed."""
    beats = asyncio.Semaphore(0)

    async def sleep(seconds: float) -> None:
        await (beats.acquire() if seconds == streams.HEARTBEAT_SECONDS else asyncio.sleep(seconds))

    monkeypatch.setattr(streams, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    return beats


async def test_events_come_as_they_happen(console: Served) -> None:
    token = await console.service.user("ada")
    page = await console.logged_in(token)
    async with page.stream(WATCH) as stream:
        assert stream.protocol == "retinue.grpc.v1"
        await stream.send_bytes(pb.WatchSessionsRequest().SerializeToString())
        await stream.send_str("")
        # The first answer says where the watch begins.
        await stream.receive_bytes()
        session_id = await create(console.service, token)
        seen = set[str]()
        while session_id not in seen:
            response = pb.WatchSessionsResponse.FromString(await stream.receive_bytes())
            seen |= {event.session_id for event in response.events}


async def test_an_error_is_the_end(console: Served) -> None:
    page = await console.logged_in(await console.service.user("ada"))
    async with page.stream(WATCH) as stream:
        await stream.send_bytes(pb.WatchSessionsRequest(after=JournalPosition(revision=1 << 40)).SerializeToString())
        end = await ended(stream)
    assert (end["code"], bool(end["message"]), bool(end["details"])) == (11, True, True)


async def test_what_is_no_request_ends_the_stream(console: Served) -> None:
    page = await console.logged_in(await console.service.user("ada"))
    async with page.stream(WATCH) as stream:
        await stream.send_str("text")
        assert (await ended(stream))["code"] == 3
    async with page.stream(WATCH) as stream:
        await stream.send_bytes(b"")
        await stream.send_str("")
        await stream.send_bytes(b"")
        assert (await ended(stream))["code"] == 3
    async with page.stream(WATCH) as stream:
        await stream.send_bytes(bytes(5 << 20))
        while not stream.closed:
            await stream.receive()
        # The reason, unless the rest of the message meets a closed connection first.
        assert stream.close_code in {1009, 1006}


async def test_a_page_that_says_what_it_took_is_sent_the_rest(console: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", 0)
    token = await console.service.user("ada")
    page = await console.logged_in(token)
    async with page.stream(WATCH) as stream:
        await stream.send_str("0")
        await stream.send_bytes(pb.WatchSessionsRequest().SerializeToString())
        await stream.send_str("")
        # The first answer says where the watch begins: what was created before would not come.
        taken = len(await stream.receive_bytes())
        await stream.send_str(str(taken))
        seen = set[str]()
        for _ in range(3):
            session_id = await create(console.service, token)
            while session_id not in seen:
                message = await stream.receive_bytes()
                taken += len(message)
                await stream.send_str(str(taken))
                seen |= {event.session_id for event in pb.WatchSessionsResponse.FromString(message).events}


async def test_a_closed_socket_cancels_its_call(console: Served, caplog: pytest.LogCaptureFixture) -> None:
    page = await console.logged_in(await console.service.user("ada"))
    with caplog.at_level("DEBUG", logger="retinue.manager.server.interceptors"):
        async with page.stream(WATCH) as stream:
            await stream.send_bytes(b"")
            await stream.receive()
        await eventually(lambda: [line for line in caplog.messages if "WatchSessions CANCELLED" in line])


async def test_a_client_that_does_not_answer_is_given_up(
    console: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # One that answers stays, by a clock of its own: tests/unit/manager/console/test_stream.py.
    beats = beaten(monkeypatch)
    page = await console.logged_in(await console.service.user("ada"))

    def ended_call() -> list[str]:
        beats.release()
        return [line for line in caplog.messages if "WatchSessions CANCELLED" in line]

    with caplog.at_level("DEBUG", logger="retinue.manager.server.interceptors"):
        async with page.stream(WATCH, autoping=False) as stream:
            await stream.send_bytes(b"")
            # The call has reached the manager, which says so in its log when it ends.
            while (kind := (await stream.receive()).type) is not WSMsgType.BINARY:
                assert kind is WSMsgType.PING
            await eventually(ended_call)


async def test_a_close_is_seen_while_input_waits(
    console: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is read from a page whose input waits: what is written to it says that it has gone."""
    beats, sent = beaten(monkeypatch), 0

    async def read_nothing(*_: object) -> AsyncIterator[kernel_service_pb2.AttachResponse]:
        yield kernel_service_pb2.AttachResponse()
        await asyncio.Event().wait()

    monkeypatch.setattr(kernel_service, "serve_attach", read_nothing)
    page = await console.logged_in(await console.service.user("ada"))

    def ended_call() -> list[str]:
        beats.release()
        return [line for line in caplog.messages if "KernelService/Attach CANCELLED" in line]

    with caplog.at_level("DEBUG", logger="retinue.manager.server.interceptors"):
        async with page.stream(ATTACH) as stream:
            piece = kernel_service_pb2.AttachRequest(
                input=terminal_pb2.CommandInput(stdin=bytes(64 << 10))
            ).SerializeToString()
            await stream.send_bytes(piece)
            await stream.receive_bytes()

            async def send() -> None:
                nonlocal sent
                for _ in range(4096):
                    await stream.send_bytes(piece)
                    sent += 1

            sending = asyncio.create_task(send())
            await stalled(page, lambda: sent)
            # One whose input waits is not silent.
            for _ in range(10):
                beats.release()
            assert await stalled(page, lambda: sent) < 4096
            assert not ended_call()
            sending.cancel()
            abort(stream)
        await eventually(ended_call)


async def test_many_calls_beside_streams(console: Served) -> None:
    page = await console.logged_in(await console.service.user("ada"))
    async with page.stream(WATCH) as first, page.stream(WATCH) as second:
        for stream in (first, second):
            await stream.send_bytes(b"")
        answers = await asyncio.gather(*(page.call(f"{ACCOUNTS}/GetCaller") for _ in range(20)))
    assert [answer.trailers()["grpc-status"] for answer in answers] == ["0"] * 20
