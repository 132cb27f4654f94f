"""BatchCreateSessions: many at once, each accepted or refused by itself, all in one commit and at most once."""

from __future__ import annotations

import uuid

import grpc
import grpc.aio
import pytest
from sqlalchemy import text

from retinue.manager.domain.session.events import SessionCreated
from retinue.manager.store.journal import journal
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
        page = await journal.read(tx, answer.position.revision - 1, 10)
    made = [answer.results[0].accepted.id, answer.results[7].accepted.id]
    assert [str(event.session_id) for event in page.events] == made
    assert [len(event.body.kernels) for event in page.events if isinstance(event.body, SessionCreated)] == [3, 1]
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
    assert answer.position.revision == 0
    assert (await ada.count("session"), await ada.count("journal"), await ada.count("request")) == (0, 0, 0)


async def test_nothing_to_make_is_no_event(ada: Ada) -> None:
    answer = await ada.create(spec(name="A"))
    assert answer.position.revision == 0
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
    assert (kernels, answer.position.revision, newest) == (10_000, 1, 10_000)


async def test_an_array_says_once_what_its_sessions_have_in_common(ada: Ada) -> None:
    """Ten thousand of a login's whole environment are a request of some kilobytes."""
    environment = {f"VARIABLE_{number}": "x" * 100 for number in range(50)}
    array = pb.SessionArray(
        spec=batch("sweep", environment=environment),
        indices=range(10_000),
        at_a_time=100,
        index_variables=["ARRAY_INDEX", "SLURM_ARRAY_TASK_ID"],
        offset_variables=["OFFSET"],
    )
    request = pb.BatchCreateSessionsRequest(array=array, request_id=str(uuid.uuid4()), all_or_nothing=True)
    assert request.ByteSize() < 64 * 1024
    answer = await ada.stub.BatchCreateSessions(request, metadata=ada.metadata)
    assert [item.accepted.name for item in answer.results] == [f"sweep-{index}" for index in range(10_000)]
    assert await ada.stub.BatchCreateSessions(request, metadata=ada.metadata) == answer
    assert await ada.count("session") == 10_000
    found = (await ada.stub.GetSession(pb.GetSessionRequest(session="sweep-9999"), metadata=ada.metadata)).session.spec
    assert dict(found.labels) == {"array": "sweep", "array.index": "9999", "array.offset": "9999", "own": "too"}
    assert dict(found.kernel.environment) == environment
    (main,) = found.roles
    own = {"ARRAY_INDEX": "9999", "SLURM_ARRAY_TASK_ID": "9999", "OFFSET": "9999"}
    assert (main.role, dict(main.kernel.environment)) == ("main", own)
    assert list(found.runs_after) == [answer.results[9_899].accepted.id]


async def test_an_array_is_made_like_its_sessions(ada: Ada) -> None:
    first = pb.SessionArray(spec=batch("parts"), indices=[7, 3])
    made = await ada.stub.BatchCreateSessions(pb.BatchCreateSessionsRequest(array=first), metadata=ada.metadata)
    ids = {item.accepted.name: item.accepted.id for item in made.results}
    assert list(ids) == ["parts-7", "parts-3"]
    after = pb.SessionArray(spec=batch("after"), indices=[3, 7], depends_on_each=["parts"])
    answer = await ada.stub.BatchCreateSessions(pb.BatchCreateSessionsRequest(array=after), metadata=ada.metadata)
    for item, parent in zip(answer.results, ("parts-3", "parts-7"), strict=True):
        found = await ada.stub.GetSession(pb.GetSessionRequest(session=item.accepted.id), metadata=ada.metadata)
        assert list(found.session.spec.depends_on) == [ids[parent]]
    wrong = pb.SessionArray(spec=batch("parts"), indices=[1, 3])
    request = pb.BatchCreateSessionsRequest(array=wrong, all_or_nothing=True)
    assert reasons(await ada.stub.BatchCreateSessions(request, metadata=ada.metadata)) == [
        "BATCH_REFUSED",
        "NAME_TAKEN",
    ]


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({}, ["array.spec.name", "array.indices"]),
        ({"spec": {"name": "a"}, "indices": [1, 2, 1]}, ["array.indices"]),
        ({"spec": {"name": "a"}, "indices": [1, -1]}, ["array.indices"]),
        ({"spec": {"name": "a"}, "indices": range(10_001)}, ["array.indices"]),
        ({"spec": {"name": "a"}, "indices": [1], "at_a_time": -1}, ["array.at_a_time"]),
        ({"spec": {"name": "a"}, "indices": [1], "index_variables": ["A"] * 9}, ["array.index_variables"]),
        ({"spec": {"name": "a", "bootstrap_script": "x" * 60_000}, "indices": range(2_000)}, ["array"]),
        ({"spec": {"name": "a"}, "indices": range(10_000), "depends_on_each": ["x" * 7_000]}, ["array"]),
        ({"spec": {"name": "a", "cluster_size": 1000}, "indices": range(21)}, ["specs"]),
    ],
)
async def test_a_wrong_array_is_refused_whole(ada: Ada, values: dict[str, object], fields: list[str]) -> None:
    message = pb.BatchCreateSessionsRequest(array=pb.SessionArray(**values), request_id="x")  # type: ignore[arg-type]
    refused = await failure(ada.stub.BatchCreateSessions(message, metadata=ada.metadata))
    assert (refused.code, refused.reason, refused.fields) == (
        Code.INVALID_ARGUMENT,
        "INVALID_FIELD",
        [*fields, "request_id"],
    )


async def test_an_array_takes_the_place_of_other_sessions(ada: Ada) -> None:
    message = pb.BatchCreateSessionsRequest(specs=[spec()], array=pb.SessionArray(spec=batch("a"), indices=[1]))
    refused = await failure(ada.stub.BatchCreateSessions(message, metadata=ada.metadata))
    assert refused.fields == ["specs"]


def batch(name: str, environment: dict[str, str] | None = None) -> session_pb2.SessionSpec:
    found = spec(name=name, labels={"own": "too"})
    found.kernel.environment.update(environment or {})
    return found
