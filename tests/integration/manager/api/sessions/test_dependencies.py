"""Dependencies over real gRPC and PostgreSQL: what is refused at creation, and what ends do to those that wait."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from sqlalchemy import text

from retinue.client.rpc_errors import from_status
from retinue.manager.controllers import dependencies
from retinue.manager.session.core.events import SessionMoved
from retinue.manager.store import changes, journal
from retinue.manager.v1 import session_pb2, session_service_pb2_grpc
from retinue.manager.v1 import session_service_pb2 as pb
from tests.integration.manager.api.sessions.ada import Ada, spec
from tests.integration.manager.rig import Service, bearer, failure, reasons

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode


async def ask(ada: Ada, **changes: Any) -> pb.CreateSessionResponse:
    return await ada.stub.CreateSession(pb.CreateSessionRequest(spec=spec(**changes)), metadata=ada.metadata)


async def get(ada: Ada, session: str) -> session_pb2.Session:
    return (await ada.stub.GetSession(pb.GetSessionRequest(session=session), metadata=ada.metadata)).session


async def end(ada: Ada, name: str, state: str, result: str = "UNDEFINED") -> None:
    """As a leader would write it."""
    async with ada.service.database.transaction() as tx:
        await tx.execute(
            text(
                "UPDATE session SET state = :state, result = :result, reason = 'X', end_time = now() WHERE name = :name"
            ),
            {"state": state, "result": result, "name": name},
        )


async def settle(ada: Ada) -> int:
    async with ada.service.database.transaction() as tx:
        term = (await tx.execute(text("SELECT term FROM leadership"))).scalar_one()
    return await dependencies.settle(ada.service.database, term, lambda _: None)


async def states(ada: Ada) -> dict[str, tuple[str, str]]:
    async with ada.service.database.transaction() as tx:
        rows = await tx.execute(text("SELECT name, state, message FROM session"))
        return {name: (state, message) for name, state, message in rows}


async def test_what_cannot_be_depended_on(ada: Ada, service: Service) -> None:
    other = await service.user("eve")
    async with service.channel() as channel:
        stub: Any = session_service_pb2_grpc.SessionServiceStub(channel)
        foreign = (
            await stub.CreateSession(pb.CreateSessionRequest(spec=spec(name="hers")), metadata=bearer(other))
        ).session
    await ask(ada, name="talk", type=session_pb2.SESSION_TYPE_INTERACTIVE)
    mine = (await ask(ada, name="mine")).session.id
    cases: Sequence[tuple[list[str], str]] = [
        (["me"], "spec.depends_on[0]"),
        (["nobody"], "spec.depends_on[0]"),
        (["mine", foreign.id], "spec.depends_on[1]"),
        (["hers"], "spec.depends_on[0]"),
        ([str(uuid.uuid4())], "spec.depends_on[0]"),
        (["mine", "mine"], "spec.depends_on[1]"),
        (["mine", mine], "spec.depends_on[1]"),
        (["talk"], "spec.depends_on[0]"),
        (["../x"], "spec.depends_on[0]"),
        (["x"] * 100_000, "spec.depends_on"),
    ]
    for parents, field in cases:
        failed = await failure(ask(ada, name="me", depends_on=parents))
        assert (failed.code, failed.reason, list(failed.fields)) == (Code.INVALID_ARGUMENT, "INVALID_FIELD", [field])
    for kind in (session_pb2.SESSION_TYPE_INTERACTIVE,):
        failed = await failure(ask(ada, type=kind, depends_on=["mine"]))
        assert (failed.code, failed.reason) == (Code.FAILED_PRECONDITION, "FEATURE_UNAVAILABLE")
    await end(ada, "mine", "TERMINATED", "FAILED")
    failed = await failure(ask(ada, depends_on=["mine"]))
    assert (failed.code, failed.reason) == (Code.FAILED_PRECONDITION, "DEPENDENCY_FAILED")
    assert failed.metadata == {"session": "mine", "result": "FAILED"}
    assert await ada.count("session_dependency") == 0


async def test_a_graph_in_one_request_in_any_order(ada: Ada) -> None:
    answer = await ada.create(
        spec(name="last", depends_on=["left", "right"]),
        spec(name="left", depends_on=["first"]),
        spec(name="right", depends_on=["first"]),
        spec(name="first"),
    )
    ids = {result.accepted.name: result.accepted.id for result in answer.results}
    shown = await get(ada, "last")
    assert list(shown.spec.depends_on) == [ids["left"], ids["right"]]
    assert [(d.session_id, d.name) for d in shown.dependencies] == [(ids["left"], "left"), (ids["right"], "right")]
    assert all(d.state == session_pb2.SESSION_STATE_PENDING for d in shown.dependencies)
    # What was shown can be asked for again.
    again = await ask(ada, depends_on=shown.spec.depends_on)
    assert list(again.session.spec.depends_on) == list(shown.spec.depends_on)
    explained = await ada.stub.ExplainSession(pb.ExplainSessionRequest(session="left"), metadata=ada.metadata)
    assert [parent.name for parent in explained.waits_for] == ["first"]


async def test_refusals_are_passed_on_and_cycles_named(ada: Ada) -> None:
    await ask(ada, name="taken")
    request = [
        spec(name="bad", priority=101),
        spec(name="child", depends_on=["bad"]),
        spec(name="grandchild", depends_on=["child"]),
        spec(name="taken"),
        spec(name="of-taken", depends_on=["taken"]),
        spec(name="a", depends_on=["b"]),
        spec(name="b", depends_on=["c"]),
        spec(name="c", depends_on=["a"]),
        spec(name="behind", depends_on=["a"]),
        spec(name="alone"),
        spec(name="of-lonely", depends_on=["alone"]),
    ]
    for checked in (True, False):
        answer = await ada.create(*request, validate_only=checked)
        assert reasons(answer) == [
            "INVALID_FIELD",
            "DEPENDENCY_REFUSED",
            "DEPENDENCY_REFUSED",
            "NAME_TAKEN",
            "DEPENDENCY_REFUSED",
            "INVALID_FIELD",
            "INVALID_FIELD",
            "INVALID_FIELD",
            "DEPENDENCY_REFUSED",
            "",
            "",
        ]
        told = [from_status(answer.results[n].refused).violations[0] for n in (5, 6, 7)]
        assert [(wrong.field, wrong.description) for wrong in told] == [
            ("specs[5].depends_on", "is a cycle: a → b → c → a"),
            ("specs[6].depends_on", "is in the cycle of a"),
            ("specs[7].depends_on", "is in the cycle of a"),
        ]
        assert from_status(answer.results[2].refused).metadata["session"] == "child"
    assert set(await states(ada)) == {"taken", "alone", "of-lonely"}
    answer = await ada.create(spec(name="twin"), spec(name="twin"), spec(name="a"), spec(name="b", depends_on=["a"]))
    assert reasons(answer) == ["", "NAME_TAKEN", "", ""]
    twin = from_status(answer.results[1].refused)
    assert twin.message == "the name twin is taken: an earlier session of the request has it"


async def test_a_chain_and_a_fan_of_a_thousand(ada: Ada) -> None:
    chain = [spec(name=f"c{n}", depends_on=[f"c{n - 1}"] if n else []) for n in range(1000)]
    answer = await ada.create(*reversed(chain))
    assert set(reasons(answer)) == {""}
    fan = [spec(name="root"), *(spec(name=f"f{n}", depends_on=["root"]) for n in range(1000))]
    assert set(reasons(await ada.create(*fan, spec(name="all", depends_on=[f"f{n}" for n in range(1000)])))) == {""}
    assert await ada.count("session_dependency") == 999 + 1000 + 1000

    await end(ada, "root", "TERMINATED", "SUCCESS")
    assert await settle(ada) == 1000
    async with ada.service.database.transaction() as tx:
        ids = (await tx.execute(text("SELECT id FROM session WHERE state = 'PENDING'"))).scalars().all()
        queue = {row.id: row for row in await changes.read_waiting(tx, ids)}
        before, *_ = await journal.head(tx)
    assert sum(row.open_dependencies == 0 for row in queue.values()) == 1001  # c0, and the fan
    await end(ada, "f7", "TERMINATED", "FAILED")
    await end(ada, "c0", "CANCELLED")
    assert await settle(ada) == 1000
    now = await states(ada)
    assert now["c1"] == ("CANCELLED", "c0, which it depends on, was cancelled (X)")
    assert now["c999"] == ("CANCELLED", "c998, which it depends on, was cancelled (DEPENDENCY_FAILED)")
    assert now["all"] == ("CANCELLED", "f7, which it depends on, failed (X)")
    assert now["f8"][0] == "PENDING"
    assert await settle(ada) == 0
    async with ada.service.database.transaction() as tx:
        page = await journal.read(tx, before, 10_000)
    assert (
        sum(isinstance(event.what, SessionMoved) and event.what.to_state == "CANCELLED" for event in page.events)
        == 1000
    )


async def test_a_purged_parent_cancels_its_children(ada: Ada) -> None:
    await ada.create(spec(name="gone"), spec(name="left-behind", depends_on=["gone"]))
    async with ada.service.database.transaction() as tx:
        await tx.execute(text("DELETE FROM session WHERE name = 'gone'"))
    assert await settle(ada) == 1
    state, message = (await states(ada))["left-behind"]
    assert state == "CANCELLED"
    assert message.endswith("was purged")
    assert [d.name for d in (await _ended(ada)).dependencies] == [""]


async def _ended(ada: Ada) -> session_pb2.Session:
    listed = await ada.stub.ListSessions(pb.ListSessionsRequest(show_ended=True), metadata=ada.metadata)
    return next(session for session in listed.sessions if session.spec.name == "left-behind")


async def test_a_name_is_that_of_the_live_session_else_of_the_newest(ada: Ada, service: Service) -> None:
    other = await service.user("bob")

    async def named(name: str, metadata: tuple[tuple[str, str], ...] = ada.metadata) -> str:
        answer = await ada.stub.GetSession(pb.GetSessionRequest(session=name), metadata=metadata)
        return str(answer.session.id)

    made = []
    for result in ("SUCCESS", "FAILED"):
        made.append((await ask(ada, name="again")).session.id)
        assert await named("again") == made[-1]
        await end(ada, "again", "TERMINATED", result)
        assert await named("again") == made[-1]
    live = (await ask(ada, name="again")).session.id
    assert await named("again") == live
    assert await named(made[0][:13]) == made[0]
    assert (await failure(named("again", bearer(other)))).reason == "NOT_FOUND"
    # What depends on the name goes by the same rule.
    child = (await ask(ada, name="child", depends_on=["again"])).session
    assert [parent.session_id for parent in child.dependencies] == [live]


async def test_any_end_will_do_for_what_runs_after(ada: Ada) -> None:
    await ask(ada, name="over")
    await end(ada, "over", "TERMINATED", "FAILED")
    answer = await ada.create(
        spec(name="one"),
        spec(name="two", depends_on=["one"]),
        spec(name="after", runs_after=["one", "two", "over"]),
        spec(name="both", depends_on=["one"], runs_after=["one"]),
        spec(name="cycle", runs_after=["cyclist"]),
        spec(name="cyclist", depends_on=["cycle"]),
    )
    outcomes = [result.WhichOneof("outcome") for result in answer.results]
    assert outcomes == ["accepted"] * 4 + ["refused"] * 2
    ids = {result.accepted.name: result.accepted.id for result in answer.results[:4]}
    shown = await get(ada, "after")
    assert list(shown.spec.runs_after)[:2] == [ids["one"], ids["two"]]
    assert [parent.name for parent in shown.dependencies] == ["one", "two", "over"]
    assert not (await get(ada, "both")).spec.runs_after, "success is what it needs"
    again = await ask(ada, name="again", runs_after=shown.spec.runs_after)
    assert again.session.spec.runs_after == shown.spec.runs_after
    async with ada.service.database.transaction() as tx:
        (waiting,) = await changes.read_waiting(tx, [uuid.UUID(ids["after"])])
    assert (waiting.open_dependencies, waiting.readable) == (2, True)
    # A failure cancels what needs success; that is an end as well, for what runs after it.
    await end(ada, "one", "TERMINATED", "FAILED")
    for _ in range(2):
        await settle(ada)
    found = await states(ada)
    assert (found["two"][0], found["both"][0], found["after"][0], found["again"][0]) == (
        *("CANCELLED", "CANCELLED", "PENDING", "PENDING"),
    )
    async with ada.service.database.transaction() as tx:
        rows = await changes.read_waiting(tx, [uuid.UUID(ids["after"]), uuid.UUID(again.session.id)])
    assert [row.open_dependencies for row in rows] == [0, 0]


async def test_references_of_both_kinds_are_checked(ada: Ada) -> None:
    for parents, field in ((["me"], "[0]"), (["nobody"], "[0]"), (["x"] * 1001, ""), (["../x"], "[0]")):
        failed = await failure(ask(ada, name="me", runs_after=parents))
        assert (failed.code, list(failed.fields)) == (Code.INVALID_ARGUMENT, [f"spec.runs_after{field}"])
    failed = await failure(ask(ada, type=session_pb2.SESSION_TYPE_INTERACTIVE, runs_after=["mine"]))
    assert failed.reason == "FEATURE_UNAVAILABLE"


@pytest.mark.parametrize("fault", [{"priority": 101}, {"name": "taken"}, {"depends_on": ["nobody"]}], ids=str)
async def test_all_or_nothing(ada: Ada, fault: dict[str, Any]) -> None:
    await ask(ada, name="taken")
    for validate_only in (True, False):
        request = pb.BatchCreateSessionsRequest(
            specs=[spec(name="good"), spec(**fault), spec(name="other")],
            all_or_nothing=True,
            validate_only=validate_only,
        )
        answer = await ada.stub.BatchCreateSessions(request, metadata=ada.metadata)
        refused = [from_status(result.refused).reason for result in answer.results]
        assert (refused[0], refused[2]) == ("BATCH_REFUSED", "BATCH_REFUSED")
        assert refused[1] != "BATCH_REFUSED"
        assert set(await states(ada)) == {"taken"}
    request.specs.pop(1)
    answer = await ada.stub.BatchCreateSessions(request, metadata=ada.metadata)
    assert [result.accepted.name for result in answer.results] == ["good", "other"]
