"""Watches and logs over connections that break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
import pytest

from retinue.client.aio import (
    Client,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    RetryBudget,
    SessionEnded,
    Unavailable,
    WaitTimeout,
)
from retinue.client.logs import LogChunk, continuation
from retinue.manager.v1 import kernel_service_pb2, kernel_service_pb2_grpc
from retinue.manager.v1 import session_pb2 as pb
from retinue.manager.v1 import session_service_pb2 as service_pb
from retinue.manager.v1 import session_service_pb2_grpc as service_grpc
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from tests.support.eventually import NEVER
from tests.unit.client.journal import ID, Journal, JournalServicer, refuse, session

Connect = Callable[[Callable[[grpc.aio.Server], None]], Awaitable[Client]]


def _register(servicer: service_grpc.SessionServiceServicer) -> Callable[[grpc.aio.Server], None]:
    def register(server: grpc.aio.Server) -> None:
        service_grpc.add_SessionServiceServicer_to_server(servicer, server)
        if isinstance(servicer, kernel_service_pb2_grpc.KernelServiceServicer):
            kernel_service_pb2_grpc.add_KernelServiceServicer_to_server(servicer, server)

    return register


async def _revisions(client: Client, count: int, after: int | None) -> list[int]:
    seen: list[int] = []
    async with aclosing(client.sessions.watch(after_revision=after)) as events:
        async for event in events:
            seen.append(event.revision)
            if len(seen) == count:
                break
    return seen


@pytest.mark.parametrize("break_after", [0, 1, 2, 5])
async def test_a_watch_gives_every_event_once_from_every_revision(connect: Connect, break_after: int) -> None:
    journal = Journal()
    journal.whole_life()
    servicer = JournalServicer(journal, break_after)
    client = await connect(_register(servicer))
    everything = [event.revision for event in journal.events]
    for after in range(len(everything)):
        assert await _revisions(client, len(everything) - after, after) == everything[after:]
    if break_after:
        assert len(servicer.watches) > len(everything)


async def test_a_watch_without_a_revision_continues_where_it_began(connect: Connect) -> None:
    """It broke before the first event: what happened since the bookmark is not passed over."""
    journal = Journal()
    journal.created(session())

    class Late(JournalServicer):
        async def WatchSessions(
            self, request: service_pb.WatchSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[service_pb.WatchSessionsResponse]:
            if not self.watches:
                self.watches.append(None)
                yield service_pb.WatchSessionsResponse(position=JournalPosition(revision=1))
                journal.moved(pb.SESSION_STATE_SCHEDULED)
                await refuse(context, grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
            async for response in super().WatchSessions(request, context):
                yield response

    servicer = Late(journal)
    client = await connect(_register(servicer))
    assert await _revisions(client, 1, None) == [2]
    assert servicer.watches[1] == 1


async def test_a_slow_reader_continues(connect: Connect) -> None:
    journal = Journal()
    journal.whole_life()

    class Cutting(JournalServicer):
        async def WatchSessions(
            self, request: service_pb.WatchSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[service_pb.WatchSessionsResponse]:
            self.watches.append(request.after.revision)
            events = [event for event in journal.events if event.revision > request.after.revision]
            yield service_pb.WatchSessionsResponse(
                position=JournalPosition(revision=events[0].revision), events=events[:1]
            )
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "READER_TOO_SLOW", revision="1")

    client = await connect(_register(Cutting(journal)))
    assert await _revisions(client, 4, 0) == [1, 2, 3, 4]


async def test_what_does_not_pass_is_raised_at_once(connect: Connect) -> None:
    journal = Journal()
    journal.whole_life()
    servicer = JournalServicer(journal)
    servicer.oldest = 5
    client = await connect(_register(servicer))
    with pytest.raises(OutOfRange) as caught:
        await _revisions(client, 1, 2)
    assert (caught.value.reason, caught.value.metadata) == ("REVISION_COMPACTED", {"oldest": "5"})
    assert len(servicer.watches) == 1


async def test_a_watch_ends_when_the_database_was_restored(connect: Connect) -> None:
    journal = Journal()
    journal.whole_life()

    class Restored(JournalServicer):
        async def WatchSessions(
            self, request: service_pb.WatchSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[service_pb.WatchSessionsResponse]:
            if self.watches:
                # The numbers of the other history go as far.
                self.incarnation = "second"
            async for response in super().WatchSessions(request, context):
                yield response

    client = await connect(_register(Restored(journal, break_after=3)))
    with pytest.raises(OutOfRange) as caught:
        await _revisions(client, 10, 0)
    assert (caught.value.reason, caught.value.metadata) == ("REVISION_LOST", {"incarnation": "second"})


async def test_waiting_for_a_session_survives_a_restored_database(connect: Connect) -> None:
    journal = Journal()
    journal.whole_life()
    servicer = JournalServicer(journal)
    client = await connect(_register(servicer))
    handle = await client.sessions.get(servicer.state.id)
    servicer.incarnation = "second"
    servicer.state_revision = 4
    await handle.wait("TERMINATED")
    assert (handle.incarnation, servicer.watches) == ("second", [1, 4])


async def test_a_quota_is_not_taken_for_a_slow_reader(connect: Connect) -> None:
    class Full(service_grpc.SessionServiceServicer):
        async def WatchSessions(
            self, request: service_pb.WatchSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[service_pb.WatchSessionsResponse]:
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA")
            yield service_pb.WatchSessionsResponse()

    client = await connect(_register(Full()))
    with pytest.raises(ResourceExhausted):
        await _revisions(client, 1, None)


async def test_patience_ends() -> None:
    impatient = RetryBudget(first=0.001, longest=0.002, total=0.0)
    async with Client.connect("127.0.0.1:9", token="secret", retry_budget=impatient) as client:
        with pytest.raises(Unavailable):
            await _revisions(client, 1, None)


async def test_waiting_for_a_state_passed_through_while_away(connect: Connect) -> None:
    journal = Journal()
    journal.whole_life()
    client = await connect(_register(JournalServicer(journal, break_after=3)))
    handle = await client.sessions.get("work")
    assert (await handle.wait("RUNNING")).state == "RUNNING"
    ended = await handle.wait_ended(timeout=NEVER)
    assert (ended.state, ended.result, ended.exit_code) == ("TERMINATED", "SUCCESS", 0)


async def test_waiting_for_a_state_that_does_not_come(connect: Connect) -> None:
    journal = Journal()
    journal.created(session())
    journal.moved(pb.SESSION_STATE_CANCELLED, reason="TERMINATED_BY_USER")
    client = await connect(_register(JournalServicer(journal)))
    handle = await client.sessions.get(ID)
    with pytest.raises(SessionEnded) as caught:
        await handle.wait("RUNNING")
    assert caught.value.session.state == pb.SESSION_STATE_CANCELLED


async def test_waiting_ends_in_time(connect: Connect) -> None:
    class Silent(JournalServicer):
        async def WatchSessions(
            self, request: service_pb.WatchSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[service_pb.WatchSessionsResponse]:
            yield service_pb.WatchSessionsResponse(position=JournalPosition(revision=1))
            await asyncio.Event().wait()

    client = await connect(_register(Silent(Journal())))
    handle = await client.sessions.get(ID)
    with pytest.raises(WaitTimeout, match="PENDING and not RUNNING"):
        await handle.wait("RUNNING", timeout=0.05)


async def test_a_compacted_journal_is_made_up_for_by_reading_again(connect: Connect) -> None:
    journal = Journal()
    journal.whole_life(exit_code=4)
    servicer = JournalServicer(journal)
    servicer.oldest = 8
    client = await connect(_register(servicer))
    handle = await client.sessions.get(ID)
    ended = session(pb.SESSION_STATE_RUNNING)
    servicer.state, servicer.state_revision = ended, 9
    assert (await handle.wait_ended(timeout=NEVER)).exit_code == 4
    assert servicer.watches == [1, 9]


@pytest.mark.parametrize("break_after", [0, 1, 3])
async def test_logs_come_once_from_every_offset(connect: Connect, break_after: int) -> None:
    data = bytes(range(65, 91)) * 2
    servicer = JournalServicer(Journal(), break_after, {"main1": data})
    client = await connect(_register(servicer))
    for offset in (0, 1, 7, 13, len(data)):
        got = b"".join([chunk.data async for chunk in client.sessions.logs(ID, offset=offset)])
        assert got == data[offset:]
    if break_after:
        assert len(servicer.log_offsets) > 5


async def test_logs_of_all_kernels_start_again_and_come_once(connect: Connect) -> None:
    output = {"main1": b"first kernel's output", "sub1": b"and the second kernel's"}

    class Breaking(JournalServicer):
        """Breaks later each time, or the end would never be reached."""

        async def StreamLogs(
            self, request: kernel_service_pb2.StreamLogsRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[kernel_service_pb2.StreamLogsResponse]:
            self.break_after += 1
            async for response in super().StreamLogs(request, context):
                yield response

    servicer = Breaking(Journal(), 0, output)
    client = await connect(_register(servicer))
    got: dict[str, bytes] = {}
    async for chunk in client.sessions.logs(ID, all_kernels=True):
        got[chunk.hostname] = got.get(chunk.hostname, b"") + chunk.data
    assert got == output
    assert set(servicer.log_offsets) == {0}
    assert len(servicer.log_offsets) > 3


async def test_a_kernel_that_is_read_again_does_not_hide_one_that_cannot_be_read(connect: Connect) -> None:
    class HalfReachable(JournalServicer):
        """Reads one kernel to its end, and never reaches the agent of the other."""

        async def StreamLogs(
            self, request: kernel_service_pb2.StreamLogsRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[kernel_service_pb2.StreamLogsResponse]:
            yield kernel_service_pb2.StreamLogsResponse(hostname="main1", offset=0, data=b"all of it")
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "AGENT_UNAVAILABLE")

    client = await connect(_register(HalfReachable(Journal())))
    got: list[bytes] = []

    async def read() -> None:
        async for chunk in client.sessions.logs(ID, all_kernels=True):
            got.append(chunk.data)  # noqa: PERF401  # up to the error

    with pytest.raises(Unavailable):
        await asyncio.wait_for(read(), NEVER)
    assert got == [b"all of it"]


async def test_what_others_print_is_no_progress_of_a_kernel_that_is_not_reached(connect: Connect) -> None:
    class Chatty(JournalServicer):
        """One kernel prints more each time, and the agent of the other is never reached."""

        printed = 0

        async def StreamLogs(
            self, request: kernel_service_pb2.StreamLogsRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[kernel_service_pb2.StreamLogsResponse]:
            self.printed += 1
            yield kernel_service_pb2.StreamLogsResponse(hostname="main1", offset=0, data=b"x" * self.printed)
            information = {"agent": "n2", "cause": "TIMED_OUT", "hostname": "sub1"}
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "AGENT_NOT_REACHED", **information)

    client = await connect(_register(Chatty(Journal())))
    got: list[bytes] = []

    async def read() -> None:
        async for chunk in client.sessions.logs(ID, all_kernels=True, follow=True):
            got.append(chunk.data)  # noqa: PERF401  # up to the error

    with pytest.raises(Unavailable) as caught:
        await asyncio.wait_for(read(), NEVER)
    assert caught.value.metadata["hostname"] == "sub1"
    # It was tried again, and what was new came.
    assert len(got) > 1
    assert set(got) == {b"x"}


def test_a_gap_is_reported_and_a_repetition_left_out() -> None:
    def response(offset: int, data: bytes) -> kernel_service_pb2.StreamLogsResponse:
        return kernel_service_pb2.StreamLogsResponse(hostname="main1", offset=offset, data=data)

    assert continuation(4, response(10, b"abc")) == LogChunk("main1", 10, b"abc", dropped=6)
    assert continuation(4, response(2, b"abcd")) == LogChunk("main1", 4, b"cd")
    assert continuation(4, response(0, b"abcd")) is None
    # At the end, nothing follows what is lost.
    assert continuation(4, response(10, b"")) == LogChunk("main1", 10, b"", dropped=6)
    assert continuation(10, response(10, b"")) is None


async def test_an_unknown_session_is_not_found(connect: Connect) -> None:
    client = await connect(_register(JournalServicer(Journal())))
    with pytest.raises(NotFound) as caught:
        await client.sessions.get("nobody")
    assert caught.value.metadata == {"kind": "session", "id": "nobody"}
    assert caught.value.request_id
