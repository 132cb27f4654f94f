"""Numbers of sessions: unique, consecutive in a request, taken wherever an id is, and nobody waits for them."""

from __future__ import annotations

import asyncio
import uuid

import grpc
import pytest
from sqlalchemy import text

from retinue.manager.store.sessions import sessions
from retinue.manager.v1 import session_pb2
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from tests.integration.manager.api.sessions.ada import Ada, spec
from tests.integration.manager.rig import Service, failure
from tests.support.eventually import NEVER

pytestmark = pytest.mark.asyncio(loop_scope="session")


def numbers(answer: pb.BatchCreateSessionsResponse) -> list[int]:
    return [result.accepted.number for result in answer.results]


async def get(ada: Ada, session: str) -> session_pb2.Session:
    return (await ada.stub.GetSession(pb.GetSessionRequest(session=session), metadata=ada.metadata)).session


async def end(ada: Ada, name: str) -> None:
    async with ada.service.database.transaction() as tx:
        await tx.execute(text("UPDATE session SET state = 'CANCELLED' WHERE name = :name"), {"name": name})


async def test_a_request_has_consecutive_numbers_while_others_create_sessions(ada: Ada) -> None:
    # More than are inserted at once, some of which wait for others.
    many = [spec(name=f"m{n}", depends_on=[f"m{n - 1}"] if n % 100 == 1 else []) for n in range(600)]
    creating = asyncio.ensure_future(ada.create(*many))
    singles: list[int] = []
    while not creating.done():
        made = await ada.stub.CreateSession(pb.CreateSessionRequest(spec=spec()), metadata=ada.metadata)
        singles.append(made.session.number)
    given = numbers(await creating)
    assert given == list(range(given[0], given[0] + 600))
    assert len({*given, *singles}) == 600 + len(singles)
    assert (await get(ada, "m599")).number == given[599]
    assert singles == sorted(singles)


async def test_transactions_at_once_get_numbers_of_their_own(service: Service) -> None:
    async def take(amount: int) -> range:
        async with service.database.transaction() as tx:
            first = await sessions.take_numbers(tx, amount)
        return range(first, first + amount)

    taken = [found for _ in range(10) for found in await asyncio.gather(*(take(amount) for amount in range(1, 9)))]
    everything = [number for found in taken for number in found]
    assert sorted(everything) == list(range(1, 10 * sum(range(1, 9)) + 1))


async def test_nobody_waits_for_a_request_that_has_its_numbers(ada: Ada) -> None:
    async with ada.service.database.transaction() as tx:
        first = await sessions.take_numbers(tx, 3)
        async with asyncio.timeout(NEVER):
            (other,) = numbers(await ada.create(spec()))
        assert other == first + 3


async def test_a_request_that_is_refused_takes_no_numbers(ada: Ada) -> None:
    (before,) = numbers(await ada.create(spec(name="a")))
    await failure(ada.stub.CreateSession(pb.CreateSessionRequest(spec=spec(priority=101)), metadata=ada.metadata))
    checked = await ada.create(spec(), validate_only=True)
    assert numbers(checked) == [0]
    assert numbers(await ada.create(spec(name="b"))) == [before + 1]


async def test_a_watch_and_every_answer_have_the_number(ada: Ada) -> None:
    answer = await ada.create(spec(name="first"), spec(name="then", depends_on=["first"]))
    first, then = numbers(answer)
    watch = ada.stub.WatchSessions(
        pb.WatchSessionsRequest(after=JournalPosition(revision=answer.position.revision - 1)), metadata=ada.metadata
    )
    created = dict[str, int]()
    async for response in watch:
        created |= {
            event.created.spec.name: event.created.number for event in response.events if event.HasField("created")
        }
        if len(created) == 2:
            break
    watch.cancel()
    assert created == {"first": first, "then": then}
    one = await ada.stub.CreateSession(pb.CreateSessionRequest(spec=spec(name="one")), metadata=ada.metadata)
    assert one.session.number == then + 1
    graph = await ada.stub.GetSessionGraph(pb.GetSessionGraphRequest(session=str(then)), metadata=ada.metadata)
    assert [(node.name, node.number) for node in graph.nodes] == [("first", first), ("then", then)]
    waits = await ada.stub.ExplainSession(pb.ExplainSessionRequest(session=str(then)), metadata=ada.metadata)
    assert [parent.number for parent in waits.waits_for] == [first]
    listed = await ada.stub.ListSessions(pb.ListSessionsRequest(filter=f'number = "{then}"'), metadata=ada.metadata)
    assert [found.spec.name for found in listed.sessions] == ["then"]
    assert listed.sessions[0].number == then
    others = await ada.stub.ListSessions(pb.ListSessionsRequest(filter=f'number != "{then}"'), metadata=ada.metadata)
    assert [found.spec.name for found in others.sessions] == ["one", "first"]
    for wrong in ("first", "-1", "1.5", "9" * 30, ""):
        refused = await failure(
            ada.stub.ListSessions(pb.ListSessionsRequest(filter=f'number = "{wrong}"'), metadata=ada.metadata)
        )
        assert (refused.code, list(refused.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, ["filter"])


async def test_a_number_refers_to_a_session_unless_a_live_one_is_called_so(ada: Ada, service: Service) -> None:
    (number,) = numbers(await ada.create(spec(name="it")))
    assert (await get(ada, str(number))).spec.name == "it"
    await end(ada, "it")
    assert (await get(ada, str(number))).spec.name == "it"
    await ada.create(spec(name=str(number)))
    assert (await get(ada, str(number))).number == number + 1
    assert (await get(ada, str(number + 1))).spec.name == str(number)
    await end(ada, str(number))
    assert (await get(ada, str(number))).spec.name == "it"
    for nothing in (f"0{number}", str(number + 10), "9" * 18, "9" * 30, f"{number} ", f"+{number}", "²"):
        assert (await failure(get(ada, nothing))).code == grpc.StatusCode.NOT_FOUND
    eve = Ada(ada.stub, service, await service.user("eve"))
    assert (await failure(get(eve, str(number)))).code == grpc.StatusCode.NOT_FOUND
    root = Ada(ada.stub, service, await service.user("root", role="ADMIN"))
    assert (await get(root, str(number))).spec.name == "it"


async def test_a_number_comes_before_an_id_that_begins_so(ada: Ada) -> None:
    await ada.create(spec(name="prefixed"))
    async with ada.service.database.transaction() as tx:
        await tx.execute(text("ALTER TABLE session ALTER number RESTART WITH 12345678"))
        await tx.execute(text("DELETE FROM kernel WHERE session_id = (SELECT id FROM session WHERE name = 'prefixed')"))
        await tx.execute(
            text("UPDATE session SET id = :id WHERE name = 'prefixed'"), {"id": uuid.UUID("12345678" + "0" * 24)}
        )
    assert (await get(ada, "12345678")).spec.name == "prefixed"
    await ada.create(spec(name="numbered"))
    assert (await get(ada, "12345678")).spec.name == "numbered"
    assert (await get(ada, "123456780")).spec.name == "prefixed"


async def test_dependencies_by_number(ada: Ada) -> None:
    (first,) = numbers(await ada.create(spec(name="first")))
    answer = await ada.create(spec(name="then", depends_on=[str(first)]))
    shown = await get(ada, answer.results[0].accepted.id)
    assert [(parent.name, parent.number) for parent in shown.dependencies] == [("first", first)]
    await end(ada, "first")
    await ada.create(spec(name="last", runs_after=[str(first)]))
    assert [parent.name for parent in (await get(ada, "last")).dependencies] == ["first"]
