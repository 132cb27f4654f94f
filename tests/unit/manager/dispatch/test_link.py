"""A link to an agent that says what a script says, as it should or not: what is committed is acked,
and nothing else is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

import pytest

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch import convert
from retinue.manager.domain.session.attempts import NodeReport, TermOverError
from retinue.manager.domain.session.states import Observed, SessionState
from retinue.manager.store.postgres.database import StoreUnavailable
from retinue.rpc.core.errors import ApiError, Code
from tests.link.memory_agent import AGENT
from tests.link.memory_manager import HEARTBEAT, LOST_AFTER, Leader, MemoryStore
from tests.link.virtual_time import run
from tests.link.wire import ROOM, Stream, Wire
from tests.support.eventually import eventually

Requests: TypeAlias = AsyncIterator[pb.SyncRequest]
# What an agent does with one stream, once it has read the hello.
Script: TypeAlias = Callable[[Requests], AsyncGenerator[pb.SyncResponse, None]]

HELD, RUNNING, EXITED = pb.ATTEMPT_STATE_HELD, pb.ATTEMPT_STATE_RUNNING, pb.ATTEMPT_STATE_EXITED


def welcome(*attempts: pb.AttemptStatus, **changes: Any) -> pb.SyncResponse:
    facts = {
        "agent_id": AGENT,
        "architecture": "x86_64",
        "available_runtimes": ["process"],
        "underlay_address": "192.0.2.1",
    }
    return pb.SyncResponse(welcome=pb.Welcome(**{**facts, "underlay_mtu": 1500, "attempts": attempts, **changes}))


def status(attempt_id: str, state: pb.AttemptState.ValueType, code: int | None = None) -> pb.AttemptStatus:
    return pb.AttemptStatus(
        attempt_id=attempt_id, state=state, exit_code=code, reason="EXITED" if state == EXITED else ""
    )


def report(sequence: int, *attempts: pb.AttemptStatus) -> pb.SyncResponse:
    return pb.SyncResponse(report=pb.Report(sequence=sequence, attempts=attempts))


def beat(number: int) -> pb.SyncResponse:
    return pb.SyncResponse(heartbeat=pb.Heartbeat(number=number))


async def next_of(requests: Requests, step: str) -> Any:
    """Reads on to the next request of a kind."""
    async for request in requests:
        if request.WhichOneof("step") == step:
            return getattr(request, step)
    raise AssertionError(f"no {step} came")


async def stay(requests: Requests) -> None:
    """Reads on for as long as the manager keeps the stream."""
    async for _ in requests:
        pass


class Led:
    """A leader, its store, and an agent that serves each stream by the next script,
    and all further ones by the last.
    """

    def __init__(self, store: MemoryStore, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.store = store
        self.wire = Wire(self._serve)
        self.leader = Leader(store, self.wire, 1)

    @property
    def streams(self) -> list[Stream]:
        return self.wire.streams

    async def _serve(self, requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        hello = (await anext(requests)).hello
        assert (hello.term, hello.agent_id) == (1, AGENT)
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        async with contextlib.aclosing(script(requests)) as responses:
            async for response in responses:
                yield response

    def written(self, stream: int, step: str) -> list[Any]:
        """Returns what the manager has sent in a stream of one kind."""
        return [getattr(sent, step) for sent in self.streams[stream].written if sent.WhichOneof("step") == step]


def led(store: MemoryStore, *scripts: Script, then: Callable[[Led], Coroutine[Any, Any, None]]) -> Led:
    """Leads in virtual time until `then` returns; no script may have failed."""

    async def lead() -> Led:
        made = Led(store, *scripts)
        made.leader.start()
        try:
            async with asyncio.timeout(7200):
                await then(made)
        finally:
            await made.leader.stop()
            made.wire.cut()
        assert [stream.failure for stream in made.streams if stream.failure] == []
        return made

    return run(lead())


def until(condition: Callable[[Led], bool]) -> Callable[[Led], Coroutine[Any, Any, None]]:
    async def wait(made: Led) -> None:
        await eventually(lambda: condition(made), seconds=900)

    return wait


def for_seconds(seconds: float) -> Callable[[Led], Coroutine[Any, Any, None]]:
    async def wait(_: Led) -> None:
        await asyncio.sleep(seconds)

    return wait


def refusing(error: Exception, times: int = 1) -> Callable[[Any], None]:
    left = [times]

    def refuse(_: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise error

    return refuse


def test_a_report_is_acked_once_it_is_committed() -> None:
    store = MemoryStore()
    key = store.place(1, "true")

    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome()
        assert [attempt.id for attempt in (await next_of(requests, "snapshot")).attempts] == [key]
        for sequence, state in enumerate((HELD, RUNNING, EXITED), 1):
            yield report(sequence, status(key, state, 0 if state == EXITED else None))
            assert (await next_of(requests, "ack")).sequence == sequence
            assert store.committed[key, Observed(pb.AttemptState.Name(state).removeprefix("ATTEMPT_STATE_"))] == 1
        assert [*(await next_of(requests, "change")).removed_attempt_ids] == [key]
        await stay(requests)

    made = led(store, script, then=until(lambda made: len(made.written(0, "change")) == 2 if made.streams else False))
    assert store.state(key) is SessionState.TERMINATED
    assert [change.attempts[0].goal for change in made.written(0, "change")[:1]] == [pb.GOAL_RUNNING]


@pytest.mark.parametrize("written", [False, True])
def test_a_report_that_may_not_be_committed_is_not_acked_and_comes_with_the_next_welcome(written: bool) -> None:
    store = MemoryStore()
    key = store.place(1, "true")

    async def loses(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome(status(key, RUNNING))
        await next_of(requests, "snapshot")
        setattr(store, "after_commit" if written else "before_commit", refusing(StoreUnavailable("away")))
        yield report(1, status(key, EXITED, 0))
        await stay(requests)

    async def resumes(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome(status(key, EXITED, 0))
        assert [*(await next_of(requests, "snapshot")).removed_attempt_ids] == [key]
        await stay(requests)

    made = led(
        store, loses, resumes, then=until(lambda made: len(made.streams) == 2 and bool(made.written(1, "snapshot")))
    )
    assert not made.written(0, "ack")
    assert store.committed[key, Observed.EXITED] == 1 + written
    assert len(store.moves(key)) == len(set(store.moves(key)))
    assert store.state(key) is SessionState.TERMINATED


def test_a_stream_on_which_the_agent_says_nothing_any_more_is_given_up() -> None:
    """As when an agent has dropped the call without ending it, and waits for another."""

    def beating(times: int) -> Script:
        async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
            reading = asyncio.create_task(stay(requests))
            yield welcome()
            for number in range(times):
                yield beat(number)
                await asyncio.sleep(HEARTBEAT)
            await reading

        return script

    scripts = beating(10), beating(10_000)
    made = led(MemoryStore(), *scripts, then=for_seconds(10 * HEARTBEAT + LOST_AFTER - 1))
    assert len(made.streams) == 1
    made = led(MemoryStore(), *scripts, then=for_seconds(10 * HEARTBEAT + 5 * LOST_AFTER))
    assert len(made.streams) == 2


def test_what_cannot_be_committed_of_a_report_costs_one_attempt() -> None:
    store = MemoryStore()
    odd, good = store.place(1, "true"), store.place(2, "true")

    def refuse(reports: Sequence[NodeReport]) -> None:
        if any(
            item.attempt_id == odd and item.state is Observed.EXITED for report in reports for item in report.attempts
        ):
            raise ValueError("odd")

    store.before_commit = refuse

    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome(status(odd, RUNNING), status(good, RUNNING))
        yield report(1, status(odd, EXITED, 0), status(good, EXITED, 0))
        assert (await next_of(requests, "ack")).sequence == 1
        await stay(requests)

    led(store, script, then=until(lambda made: bool(made.streams) and bool(made.written(0, "ack"))))
    assert (store.state(odd), store.state(good)) == (SessionState.RUNNING, SessionState.TERMINATED)


def test_reports_that_come_twice_or_too_late_change_nothing() -> None:
    store = MemoryStore()
    key = store.place(1, "true")

    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome()
        for sequence, state in ((1, RUNNING), (1, RUNNING), (3, EXITED), (2, RUNNING), (3, EXITED)):
            yield report(sequence, status(key, state, 7 if state == EXITED else None))
        await stay(requests)

    made = led(store, script, then=until(lambda made: bool(made.streams) and len(made.written(0, "ack")) == 5))
    assert [ack.sequence for ack in made.written(0, "ack")] == [1, 1, 3, 2, 3]
    assert store.state(key) is SessionState.TERMINATED
    assert store.machine(key).session.exit_code == 7
    assert len(store.moves(key)) == len(set(store.moves(key)))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([report(1)], "NO_WELCOME"),
        ([beat(1)], "NO_WELCOME"),
        ([welcome(agent_id="another")], "WRONG_AGENT"),
        ([welcome(), welcome()], "SECOND_WELCOME"),
        ([welcome(), report(0)], "BAD_SEQUENCE"),
    ],
)
def test_nonsense_quarantines_an_agent_for_longer_each_time(messages: list[pb.SyncResponse], reason: str) -> None:
    store = MemoryStore()
    opened: list[float] = []

    async def odd(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        opened.append(asyncio.get_running_loop().time())
        for message in messages:
            yield message
        await stay(requests)

    async def good(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome()
        await stay(requests)

    made = led(store, odd, odd, odd, good, then=until(lambda made: len(made.streams) == 4))
    assert made.leader.quarantines == [(reason, 1.0), (reason, 2.0), (reason, 4.0)]
    pauses = [later - earlier for earlier, later in itertools.pairwise(opened)]
    assert all(pause >= quarantine / 2 for pause, quarantine in zip(pauses, (1.0, 2.0), strict=True))


def test_a_failure_that_nothing_foresaw_opens_the_link_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, opened = convert.snapshot, list[float]()

    def fail_twice(*arguments: Any) -> pb.SyncRequest:
        if len(opened) <= 2:
            raise RuntimeError("a bug")
        return snapshot(*arguments)

    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        opened.append(asyncio.get_running_loop().time())
        yield welcome()
        await stay(requests)

    monkeypatch.setattr(convert, "snapshot", fail_twice)
    made = led(
        MemoryStore(), script, then=until(lambda made: len(made.streams) == 3 and bool(made.written(2, "snapshot")))
    )
    # It is no nonsense of the agent's, and is tried again as slowly.
    assert made.leader.quarantines == []
    pauses = [later - earlier for earlier, later in itertools.pairwise(opened)]
    assert all(pause >= least / 2 for pause, least in zip(pauses, (1.0, 2.0), strict=True))


def test_an_agent_that_says_nothing_is_dialled_again() -> None:
    times: list[float] = []

    async def silent(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        times.append(asyncio.get_running_loop().time())
        await stay(requests)
        yield welcome()

    made = led(MemoryStore(), silent, then=until(lambda made: len(made.streams) == 3))
    assert all(later - earlier >= 4 * HEARTBEAT for earlier, later in itertools.pairwise(times))
    assert made.leader.link.heard is None
    assert all(not made.written(stream, "snapshot") for stream in range(3))


def test_an_agent_that_follows_another_leader_is_sent_nothing() -> None:
    class StaleTermError(ApiError):
        code, reason = Code.FAILED_PRECONDITION, "STALE_TERM"

    async def refusing_term(_: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        raise StaleTermError("a leader of term 4 was here before")
        yield welcome()

    store = MemoryStore()
    store.place(1)
    made = led(store, refusing_term, then=for_seconds(60))
    assert all([sent.WhichOneof("step") for sent in stream.written] == ["hello"] for stream in made.streams)
    # The pauses grow to 5 s.
    assert 10 < len(made.streams) < 30
    assert store.welcomes == 0


def test_nothing_is_sent_once_the_lease_has_ended() -> None:
    store = MemoryStore()

    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome()
        await next_of(requests, "snapshot")
        made[0].leader.lease_ended = True
        store.place(1)
        await stay(requests)

    made: list[Led] = []

    async def then(there: Led) -> None:
        made.append(there)
        await eventually(lambda: there.leader.term_has_ended)

    led(store, script, then=then)
    assert not made[0].written(0, "change")


def test_a_report_is_not_acked_by_a_manager_that_another_follows() -> None:
    store = MemoryStore()
    key = store.place(1, "true")

    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome(status(key, RUNNING))
        await next_of(requests, "snapshot")
        store.term = 2
        yield report(1, status(key, EXITED, 0))
        await stay(requests)

    made = led(store, script, then=until(lambda made: made.leader.term_has_ended))
    assert not made.written(0, "ack")
    assert store.state(key) is SessionState.RUNNING


def test_heartbeats_are_answered_by_their_number_and_sent_without_one() -> None:
    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome()
        for number in (1, 2, 3):
            yield beat(number)
            await asyncio.sleep(HEARTBEAT)
        await stay(requests)

    made = led(MemoryStore(), script, then=for_seconds(10 * HEARTBEAT))
    numbers = [sent.number for sent in made.written(0, "heartbeat")]
    assert [number for number in numbers if number] == [1, 2, 3]
    # Nothing else is to be said: the agent learns in each interval that the manager is there.
    assert numbers.count(0) >= 8
    assert made.leader.link.heard is not None


def test_a_stream_begins_with_all_and_continues_with_what_changes() -> None:
    store = MemoryStore()
    first = store.place(1)

    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome()
        await stay(requests)

    async def then(made: Led) -> None:
        await eventually(lambda: bool(made.streams) and bool(made.written(0, "snapshot")))
        store.on_change([store.machine(first).session.id])
        made.leader.link.wake()
        await asyncio.sleep(1)
        assert not made.written(0, "change"), "nothing changed"
        second = store.place(2)
        await eventually(lambda: bool(made.written(0, "change")))
        (change,) = made.written(0, "change")
        assert [attempt.id for attempt in change.attempts] == [second]
        made.wire.cut()
        await eventually(lambda: len(made.streams) == 2 and bool(made.written(1, "snapshot")))
        (snapshot,) = made.written(1, "snapshot")
        assert {attempt.id for attempt in snapshot.attempts} == {first, second}

    led(store, script, then=then)


def test_only_what_the_store_has_ended_is_named_as_removed() -> None:
    store = MemoryStore()
    ended, unknown = store.place(1, "true"), "99999999-0000-4000-8000-000000000001.1"

    async def first(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome(status(ended, EXITED, 0), status(unknown, RUNNING))
        snapshot = await next_of(requests, "snapshot")
        assert ([*snapshot.removed_attempt_ids], [*snapshot.attempts]) == ([ended], [])
        await stay(requests)

    led(store, first, then=until(lambda made: bool(made.streams) and bool(made.written(0, "snapshot"))))


def test_an_attempt_that_its_agent_has_forgotten_has_ended() -> None:
    store = MemoryStore()
    known, new = store.place(1), store.place(2)

    async def runs(_: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome(status(known, RUNNING))

    async def forgot(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome()
        snapshot = await next_of(requests, "snapshot")
        # One that it never reported is still to be started.
        assert [attempt.id for attempt in snapshot.attempts] == [new]
        await stay(requests)

    led(store, runs, forgot, then=until(lambda made: len(made.streams) == 2 and bool(made.written(1, "snapshot"))))
    assert store.machine(known).session.reason == "RECORD_LOST"


def test_an_agent_that_does_not_read_is_dialled_again() -> None:
    store = MemoryStore()
    key = store.place(1, "true")

    async def deaf(_: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome()
        for sequence in range(1, 3 * ROOM):
            yield report(sequence, status(key, RUNNING))
            await asyncio.sleep(1)

    async def good(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome(status(key, EXITED, 0))
        await stay(requests)

    made = led(store, deaf, good, then=until(lambda _: store.state(key) is SessionState.TERMINATED))
    assert len(made.streams[0].written) <= ROOM + 1


def test_an_agent_whose_kernels_do_nothing_is_sent_nothing() -> None:
    async def null(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome(available_runtimes=["null"])
        await stay(requests)

    store = MemoryStore()
    made = led(store, null, then=until(lambda made: len(made.streams) == 3))
    assert not made.written(0, "snapshot")
    assert store.welcomes == 0


def test_the_link_of_a_term_ends_with_it() -> None:
    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome()
        await stay(requests)

    async def lead() -> None:
        store = MemoryStore()
        made = Led(store, script)
        store.term = 2
        with pytest.raises(TermOverError):
            await made.leader.link.run()
        assert [sent.WhichOneof("step") for sent in made.streams[0].written] == ["hello"]
        made.wire.cut()

    run(lead())


def beating(answer: Callable[[str], pb.AttemptStatus | None]) -> Script:
    """An agent that sends heartbeats, and of an attempt that it is sent what `answer` says."""

    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome()
        sent = await next_of(requests, "snapshot")
        reading = asyncio.ensure_future(stay(requests))
        try:
            for attempt in sent.attempts:
                if (status := answer(attempt.id)) is not None:
                    yield report(1, status)
            for number in itertools.count(1):
                await asyncio.sleep(HEARTBEAT)
                yield beat(number)
        finally:
            reading.cancel()

    return script


@pytest.mark.attack("agents-that-do-nothing")
def test_an_agent_that_says_nothing_of_an_attempt_does_not_follow_and_is_tried_again() -> None:
    store = MemoryStore()
    key = store.place(1, "true")
    made = led(store, beating(lambda _: None), then=for_seconds(29.0))
    assert made.leader.following == []
    made = led(store, beating(lambda _: None), then=for_seconds(330.0))
    assert len(made.leader.following) == 1
    assert f"attempt {key}" in made.leader.following[0]
    # After the pause nothing else would show that it is well.
    made = led(store, beating(lambda _: None), then=for_seconds(340.0))
    assert [bool(why) for why in made.leader.following] == [True, False]


def test_an_agent_that_takes_long_follows_once_it_has_said_that_it_received_the_attempt() -> None:
    store = MemoryStore()
    store.place(1, "true")
    accepted = beating(lambda key: status(key, pb.ATTEMPT_STATE_ACCEPTED))
    assert led(store, accepted, then=for_seconds(600.0)).leader.following == []


def test_an_answer_that_waits_for_the_database_is_one() -> None:
    store = MemoryStore()
    store.place(1, "true")

    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        yield welcome()
        (attempt,) = (await next_of(requests, "snapshot")).attempts
        reading = asyncio.ensure_future(stay(requests))
        try:
            # The manager is busy with another report, and reads all of it a minute later.
            yield report(1)
            yield beat(1)
            yield report(2, status(attempt.id, pb.ATTEMPT_STATE_ACCEPTED))
            for number in itertools.count(2):
                await asyncio.sleep(HEARTBEAT)
                yield beat(number)
        finally:
            reading.cancel()

    async def slow(made: Led) -> None:
        commit, waits = store.commit, [60.0]

        async def slowly(term: int, reports: Sequence[NodeReport]) -> None:
            if waits and not any(report.attempts for report in reports):
                await asyncio.sleep(waits.pop())
            await commit(term, reports)

        store.commit = slowly  # type: ignore[method-assign]
        await asyncio.sleep(200.0)

    assert led(store, script, then=slow).leader.following == []


def test_an_agent_follows_again_with_whatever_it_says_of_an_attempt() -> None:
    store = MemoryStore()
    key = store.place(1, "true")

    async def script(requests: Requests) -> AsyncGenerator[pb.SyncResponse, None]:
        async with contextlib.aclosing(beating(lambda _: None)(requests)) as responses:
            async for response in responses:
                yield response
                if response.heartbeat.number == 100:
                    yield report(1, status(key, pb.ATTEMPT_STATE_CREATING))

    made = led(store, script, then=for_seconds(60.0))
    assert [bool(why) for why in made.leader.following] == [True, False]
