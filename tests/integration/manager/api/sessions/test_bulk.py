"""BatchCreateSessions: many at once, each accepted or refused by itself, all in one commit and at most once."""

from __future__ import annotations

import uuid

import grpc
import grpc.aio
import pytest
from sqlalchemy import text

from retinue.manager.session.core.events import SessionCreated
from retinue.manager.store import journal
from retinue.manager.v1 import session_pb2
from retinue.manager.v1 import session_service_pb2 as pb
from tests.integration.manager.api.sessions.ada import Ada, spec
from tests.integration.manager.rig import failure, reasons, status_apart

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode


async def test_each_by_itself(ada: Ada) -> None:
    before = await ada.create(spec(name="taken"))
    assert before.results[0].accepted.name == "taken"
    answer = await ada.create(
        spec(name="one", cluster_size=3),
        spec(name="taken"),
        spec(name="-", priority=101),
        spec(name="two", project="other"),
        spec(name="three", resource_group="nowhere"),
        spec(name="one"),
        session_pb2.SessionSpec(),
        spec(),
    )
    shown = [
        ("", "")
        if item.HasField("accepted")
        else (status_apart(item.refused).code.name, status_apart(item.refused).reason)
        for item in answer.results
    ]
    assert shown == [
        ("", ""),
        ("ALREADY_EXISTS", "NAME_TAKEN"),
        ("INVALID_ARGUMENT", "INVALID_FIELD"),
        ("PERMISSION_DENIED", "PROJECT_DENIED"),
        ("INVALID_ARGUMENT", "INVALID_FIELD"),
        ("ALREADY_EXISTS", "NAME_TAKEN"),
        ("INVALID_ARGUMENT", "INVALID_FIELD"),
        ("", ""),
    ]
    refused = {
        place: status_apart(item.refused) for place, item in enumerate(answer.results) if not item.HasField("accepted")
    }
    assert refused[2].fields == ["specs[2].name", "specs[2].priority"]
    assert refused[4].fields == ["specs[4].resource_group"]
    assert refused[6].fields == ["specs[6].type"]
    assert refused[1].metadata == {"kind": "session", "name": "taken"}
    assert answer.results[7].accepted.name.startswith("s-")
    assert (await ada.count("session"), await ada.count("kernel")) == (3, 5)
    async with ada.service.database.transaction() as tx:
        page = await journal.read(tx, answer.revision - 1, 10)
    made = [answer.results[0].accepted.id, answer.results[7].accepted.id]
    assert [str(event.session_id) for event in page.events] == made
    assert [len(event.what.kernels) for event in page.events if isinstance(event.what, SessionCreated)] == [3, 1]
    found = await ada.stub.GetSession(pb.GetSessionRequest(session="one"), metadata=ada.metadata)
    assert (found.session.id, len(found.session.kernels)) == (made[0], 3)


async def test_a_repetition_answers_as_the_first(ada: Ada) -> None:
    request_id = str(uuid.uuid4())
    specs = [spec(name="a"), spec(name="a"), spec(name="b")]
    first = await ada.create(*specs, request_id=request_id)
    assert await ada.create(*specs, request_id=request_id) == first
    assert await ada.count("session") == 2
    reused = await failure(ada.create(*specs[:2], request_id=request_id))
    assert (reused.code, reused.reason) == (Code.INVALID_ARGUMENT, "REQUEST_ID_REUSED")


async def test_validate_only_makes_nothing(ada: Ada) -> None:
    answer = await ada.create(spec(name="a"), spec(name="A"), validate_only=True)
    assert (answer.results[0].accepted.id, answer.results[0].accepted.name) == ("", "a")
    assert reasons(answer)[1] == "INVALID_FIELD"
    assert answer.revision == 0
    assert (await ada.count("session"), await ada.count("journal"), await ada.count("request")) == (0, 0, 0)


async def test_nothing_to_make_is_no_event(ada: Ada) -> None:
    answer = await ada.create(spec(name="A"))
    assert answer.revision == 0
    assert await ada.count("journal") == 0


async def test_the_whole_is_refused(ada: Ada) -> None:
    for values, fields in (
        ({"specs": []}, ["specs"]),
        ({"specs": [session_pb2.SessionSpec()] * 10_001}, ["specs"]),
        ({"specs": [spec(cluster_size=1024)] * 20}, ["specs"]),
        ({"specs": [], "request_id": "x"}, ["specs", "request_id"]),
        ({"specs": [spec()], "request_id": "x"}, ["request_id"]),
    ):
        message = pb.BatchCreateSessionsRequest(**values)
        refused = await failure(ada.stub.BatchCreateSessions(message, metadata=ada.metadata))
        assert (refused.code, refused.reason, refused.fields) == (Code.INVALID_ARGUMENT, "INVALID_FIELD", fields)


async def test_ten_thousand_arrive_in_order(ada: Ada) -> None:
    answer = await ada.create(*(spec(name=f"n{number}") for number in range(10_000)))
    assert all(item.HasField("accepted") for item in answer.results)
    async with ada.service.database.transaction() as tx:
        names = (await tx.execute(text("SELECT name FROM session ORDER BY number"))).scalars().all()
        kernels = (await tx.execute(text("SELECT count(*) FROM kernel"))).scalar_one()
        newest, *_ = await journal.head(tx)
    assert names == [f"n{number}" for number in range(10_000)]
    assert (kernels, answer.revision, newest) == (10_000, 1, 10_000)
