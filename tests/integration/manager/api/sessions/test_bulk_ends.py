"""BatchTerminateSessions: many at once, each ended or refused by itself, in few commits, the pending ones first."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import pytest_asyncio
from sqlalchemy import text

from retinue.manager.api.sessions import terminations
from retinue.manager.domain.session.events import SessionMoved
from retinue.manager.store.accounts import accounts
from retinue.manager.store.journal import journal
from retinue.manager.store.tables import Agent, Attempt
from retinue.manager.v1 import session_pb2, session_service_pb2_grpc
from retinue.manager.v1 import session_service_pb2 as pb
from tests.integration.manager.api.sessions.ada import spec
from tests.integration.manager.rig import Service, bearer, failure, status_apart

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode
CANCELLED, TERMINATING = session_pb2.SESSION_STATE_CANCELLED, session_pb2.SESSION_STATE_TERMINATING


@dataclass
class Callers:
    """Ada owns sessions, bob administers her project, eve is a stranger, and root administers everything."""

    stub: session_service_pb2_grpc.SessionServiceAsyncStub
    service: Service
    tokens: dict[str, Any]

    async def create(self, *specs: session_pb2.SessionSpec, owner: str = "ada") -> list[str]:
        request = pb.BatchCreateSessionsRequest(specs=specs)
        made = await self.stub.BatchCreateSessions(request, metadata=self.tokens[owner])
        return [item.accepted.id for item in made.results]

    async def end(self, *sessions: str, caller: str = "ada", **fields: Any) -> pb.BatchTerminateSessionsResponse:
        request = pb.BatchTerminateSessionsRequest(sessions=sessions, **fields)
        return await self.stub.BatchTerminateSessions(request, metadata=self.tokens[caller])

    async def state(self, session: str, owner: str = "ada") -> str:
        request = pb.GetSessionRequest(session=session)
        return session_pb2.SessionState.Name(
            (await self.stub.GetSession(request, metadata=self.tokens[owner])).session.state
        ).removeprefix("SESSION_STATE_")

    async def run(self, *sessions: str) -> None:
        """Has sessions of one kernel run, on an agent that never answers."""
        ids = [uuid.UUID(session) for session in sessions]
        async with self.service.database.transaction() as tx:
            tx.add(Agent(id="gone", resource_group="default", address="127.0.0.1:1", state="ALIVE"))
            await tx.flush()
            for each in ids:
                attempt: dict[str, Any] = {
                    "kernel_id": each,
                    "epoch": 1,
                    "session_id": each,
                    "agent_id": "gone",
                    "term": 1,
                }
                tx.add(Attempt(**attempt, goal="RUNNING", observed="RUNNING"))
            await tx.flush()
            runs = "state = 'RUNNING', agent_id = 'gone', epoch = 1"
            for change in ("session SET state = 'RUNNING'", f"kernel SET {runs}"):
                await tx.execute(text(f"UPDATE {change} WHERE id = ANY(:ids)"), {"ids": ids})  # the test's own words

    async def moves(self, after: int) -> list[tuple[str, str]]:
        """Sessions and the states that they moved to, in the order of the journal."""
        async with self.service.database.transaction() as tx:
            page = await journal.read(tx, after, 100_000)
        return [
            (str(event.session_id), str(event.body.to_state))
            for event in page.events
            if isinstance(event.body, SessionMoved)
        ]


@pytest_asyncio.fixture(loop_scope="session")
async def callers(service: Service) -> AsyncIterator[Callers]:
    tokens = {
        "ada": bearer(await service.user("ada")),
        "bob": bearer(await service.user("bob", projects=())),
        "eve": bearer(await service.user("eve")),
        "root": bearer(await service.user("root", role="ADMIN", projects=())),
    }
    async with service.database.transaction() as tx:
        await accounts.set_membership(tx, "bob", "default", "ADMIN")
    async with service.channel() as channel:
        yield Callers(session_service_pb2_grpc.SessionServiceStub(channel), service, tokens)


def states(answer: pb.BatchTerminateSessionsResponse) -> list[tuple[str, int] | str]:
    """What became of each: its name and state, or the reason of its refusal."""
    return [
        status_apart(item.refused).reason if item.HasField("refused") else (item.terminated.name, item.terminated.state)
        for item in answer.results
    ]


async def test_each_by_itself(callers: Callers) -> None:
    one, two, three, four = await callers.create(*(spec(name=name) for name in ("one", "two", "three", "four")))
    number = (
        await callers.stub.GetSession(pb.GetSessionRequest(session=three), metadata=callers.tokens["ada"])
    ).session
    answer = await callers.end("one", two, "nobody", str(number.number), "one", "ada/four", "'; --", two[:13])
    assert states(answer) == [
        ("one", CANCELLED),
        ("two", CANCELLED),
        "NOT_FOUND",
        ("three", CANCELLED),
        ("one", CANCELLED),
        ("four", CANCELLED),
        "NOT_FOUND",
        ("two", CANCELLED),
    ]
    refused = status_apart(answer.results[2].refused)
    assert (refused.code, refused.metadata) == (Code.NOT_FOUND, {"kind": "session", "id": "nobody"})
    assert answer.results[3].terminated.number == number.number
    assert await callers.moves(answer.position.revision) == [
        (each, "CANCELLED") for each in sorted((one, two, three, four))
    ]
    # Again, it answers the same, and nothing happens.
    again = await callers.end("one", two, "nobody")
    assert states(again) == states(answer)[:3]
    assert await callers.moves(again.position.revision) == []
    ended = (await callers.stub.GetSession(pb.GetSessionRequest(session="one"), metadata=callers.tokens["ada"])).session
    assert (ended.reason, ended.message) == ("TERMINATED_BY_USER", "terminated by ada")


@pytest.mark.attack("names-of-others-sessions")
async def test_who_may_end_what(callers: Callers) -> None:
    first, second, third = await callers.create(spec(name="first"), spec(name="second"), spec(name="third"))
    own, *_ = await callers.create(spec(name="first"), owner="eve")
    answer = await callers.end(first, "ada/second", "first", third[:13], caller="eve")
    assert states(answer) == ["NOT_FOUND", "NOT_FOUND", ("first", CANCELLED), "NOT_FOUND"]
    assert answer.results[2].terminated.id == own
    # In the very words for a session that there is not.
    nobodys = await callers.end(str(uuid.uuid4()), caller="eve")
    assert {item.refused.message for item in (*answer.results[:2], *nobodys.results)} == {"no such session"}
    assert [await callers.state(each) for each in (first, second, third)] == ["PENDING"] * 3
    # Administrators may, of the project and of everything; a name alone is one of their own.
    for caller, session in (("bob", "ada/first"), ("root", second)):
        named = await callers.end("third", session, caller=caller)
        refused = status_apart(named.results[0].refused)
        assert (refused.reason, named.results[1].terminated.state) == ("NOT_FOUND", CANCELLED)
        assert "there is ada/third" in named.results[0].refused.message
    assert await callers.state(third) == "PENDING"


async def test_the_whole_is_refused(callers: Callers) -> None:
    await callers.create(spec(name="kept"))
    for references in ([], ["kept"] * 10_001):
        refused = await failure(callers.end(*references))
        assert (refused.code, refused.reason, refused.fields) == (Code.INVALID_ARGUMENT, "INVALID_FIELD", ["sessions"])
    assert await callers.state("kept") == "PENDING"


async def test_what_waits_ends_first_whatever_is_named_first(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the scheduler would give the place of one that is stopped to another that is to end."""
    monkeypatch.setattr(terminations, "_PORTION", 2)
    ids = await callers.create(*(spec(name=f"s{number}") for number in range(8)))
    runs = ids[:2]
    await callers.run(*runs)
    answer = await callers.end(*ids, force=True)
    assert [item.terminated.state for item in answer.results] == [TERMINATING] * 2 + [CANCELLED] * 6
    moves = await callers.moves(answer.position.revision)
    assert len(moves) == len(ids)
    assert {each for each, _ in moves[:6]} == set(ids[2:])
    assert dict(moves[6:]) == dict.fromkeys(runs, "TERMINATING")
    async with callers.service.database.transaction() as tx:
        forced = await tx.execute(text("SELECT count(*) FROM session WHERE force"))
        assert forced.scalar_one() == 2


async def test_one_of_another_version_costs_itself_only(callers: Callers) -> None:
    odd, sound = await callers.create(spec(name="odd"), spec(name="sound"))
    async with callers.service.database.transaction() as tx:
        await tx.execute(text("UPDATE session SET state = 'HIBERNATED' WHERE id = :id"), {"id": uuid.UUID(odd)})
    answer = await callers.end(odd, sound)
    assert states(answer) == ["STATE_FORBIDS", ("sound", CANCELLED)]


async def test_three_thousand_end_at_once(callers: Callers) -> None:
    await callers.create(*(spec(name=f"n{number}") for number in range(3000)))
    names = [f"n{number}" for number in range(3000)]
    answer = await callers.end(*names)
    assert states(answer) == [(name, CANCELLED) for name in names]
    async with callers.service.database.transaction() as tx:
        live = await tx.execute(text("SELECT count(*) FROM session WHERE state <> 'CANCELLED' OR end_time IS NULL"))
        kernels = await tx.execute(text("SELECT count(*) FROM kernel WHERE state <> 'CANCELLED'"))
        assert (live.scalar_one(), kernels.scalar_one()) == (0, 0)
    # They make room for as many again.
    assert all(await callers.create(*(spec(name=name) for name in names)))
