"""Dependencies over real gRPC and PostgreSQL: what is refused at creation, and what ends do to those that wait."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from sqlalchemy import text

from retinue.client.transport.rpc_errors import from_status
from retinue.manager.controllers import dependencies
from retinue.manager.domain.session.dependency_graph import DependencyKind
from retinue.manager.domain.session.events import SessionMoved
from retinue.manager.domain.session.states import Result, SessionState
from retinue.manager.store.journal import journal
from retinue.manager.store.placement import changes
from retinue.manager.v1 import session_pb2, session_service_pb2_grpc
from retinue.manager.v1 import session_service_pb2 as pb
from tests.integration.manager.api.sessions.ada import Ada, spec
from tests.integration.manager.rig import Service, bearer, failure, reasons

if TYPE_CHECKING:
    from collections.abc import Sequence

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


@pytest.mark.attack("odd-dependencies")
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
    fields: Sequence[tuple[dict[str, Any], str]] = (
        ({"depends_on": ["mine"], "runs_after_failure": ["mine"]}, "spec.runs_after_failure[0]"),
        ({"depends_on": ["mine"], "runs_after_failure": [mine]}, "spec.runs_after_failure[0]"),
        ({"runs_after_failure": ["mine", mine]}, "spec.runs_after_failure[1]"),
        ({"runs_after_label": "team"}, "spec.runs_after_label"),
    )
    for asked, field in fields:
        failed = await failure(ask(ada, name="me", **asked))
        assert (failed.code, list(failed.fields)) == (Code.INVALID_ARGUMENT, [field]), asked
    assert await ada.count("session_dependency") == 0


ENDS = [("TERMINATED", "SUCCESS"), ("TERMINATED", "FAILED"), ("TERMINATED", "UNDEFINED"), ("CANCELLED", "UNDEFINED")]
KINDS = {"depends_on": DependencyKind.SUCCESS, "runs_after": DependencyKind.END}
KINDS |= {"runs_after_failure": DependencyKind.FAILURE}


@pytest.mark.parametrize(("state", "result"), ENDS)
async def test_a_dependency_on_what_has_ended_is_as_one_on_what_ends_later(ada: Ada, state: str, result: str) -> None:
    await ask(ada, name="parent")
    for field in KINDS:
        await ask(ada, name=f"before-{field.replace('_', '-')}", **{field: ["parent"]})
    await end(ada, "parent", state, result)
    for field in KINDS:
        await ask(ada, name=f"after-{field.replace('_', '-')}", **{field: ["parent"]})
    await settle(ada)
    found = await states(ada)
    async with ada.service.database.transaction() as tx:
        ids = (await tx.execute(text("SELECT id FROM session WHERE state = 'PENDING'"))).scalars().all()
        released = {row.id for row in await changes.read_waiting(tx, ids) if row.open_dependencies == 0}
    assert released == set(ids), "those that are not cancelled wait no longer"
    for field, kind in KINDS.items():
        before, after = (found[f"{when}-{field.replace('_', '-')}"] for when in ("before", "after"))
        is_met = kind.is_met(SessionState(state), Result(result))
        assert before[0] == after[0] == ("PENDING" if is_met else "CANCELLED"), field
        assert is_met or before == after, "for the same reason"
    if result == "SUCCESS":
        assert found["after-runs-after-failure"][1] == "parent, whose failure it depends on, succeeded"


async def test_one_that_is_cancelled_for_its_dependency_has_failed(ada: Ada) -> None:
    await ada.create(
        spec(name="first"),
        spec(name="then", depends_on=["first"]),
        spec(name="clean-up", runs_after_failure=["then"]),
        spec(name="never", runs_after_failure=["first"], runs_after=["then"]),
    )
    await end(ada, "first", "TERMINATED", "FAILED")
    for _ in range(2):
        await settle(ada)
    found = await states(ada)
    assert {name: found[name][0] for name in ("then", "clean-up", "never")} == {
        "then": "CANCELLED",
        "clean-up": "PENDING",
        "never": "PENDING",
    }
    async with ada.service.database.transaction() as tx:
        ids = (await tx.execute(text("SELECT id FROM session WHERE state = 'PENDING'"))).scalars().all()
        assert [row.open_dependencies for row in await changes.read_waiting(tx, ids)] == [0, 0]


def array(name: str, indices: Sequence[int], **changes: Any) -> list[session_pb2.SessionSpec]:
    """As `retinue submit` asks for one."""
    return [
        spec(
            name=f"{name}-{index}",
            labels={"array": name, "array.index": str(index), "array.offset": str(offset)},
            **changes,
        )
        for offset, index in enumerate(indices)
    ]


async def test_an_array_stands_for_its_sessions(ada: Ada) -> None:
    former = [result.accepted for result in (await ada.create(*array("arr", [1, 5, 7]))).results]
    for one in former:
        await end(ada, one.name, "TERMINATED", "SUCCESS")
    await ask(ada, name="between", labels={"array": "other"})
    made = [result.accepted for result in (await ada.create(*array("arr", [1, 5]))).results]
    ids = [one.id for one in made]
    for reference, expected in (
        ("arr", ids),
        (str(made[0].number), ids),
        (str(former[0].number), [one.id for one in former]),
        # Any other number is that of a session.
        (str(made[1].number), ids[1:]),
        (f"{made[0].number}_5", ids[1:]),
        (f"{former[0].number}_7", [former[2].id]),
        ("arr-1", ids[:1]),
        (ids[0], ids[:1]),
    ):
        for field in KINDS if reference != str(former[0].number) else ("depends_on",):
            found = (await ask(ada, **{field: [reference]})).session.spec
            assert list(getattr(found, field)) == expected, (reference, field)
    # An array and one of its sessions are no contradiction, and counted once.
    both = (await ask(ada, depends_on=["arr", "arr-5"])).session.spec
    assert list(both.depends_on) == ids
    for nothing in (f"{made[0].number}_6", f"{made[1].number}_5", f"{made[0].number}_", "arr_1", "ar"):
        failed = await failure(ask(ada, depends_on=[nothing]))
        assert list(failed.fields) == ["spec.depends_on[0]"], nothing
    await ask(ada, name="arr")
    named = (await ask(ada, depends_on=["arr"])).session
    assert [parent.name for parent in named.dependencies] == ["arr"]
    many = await ada.create(*array("many", range(1001)))
    failed = await failure(ask(ada, depends_on=[str(many.results[0].accepted.number)]))
    assert list(failed.fields) == ["spec.depends_on[0]"]


async def test_sessions_of_a_label_run_one_after_the_other(ada: Ada, service: Service) -> None:
    labels, alone = {"job": "train"}, {"runs_after_label": "job"}
    eve = Ada(ada.stub, service, await service.user("eve"))
    await ask(eve, name="hers", labels=labels)
    await ask(ada, name="over", labels=labels)
    await end(ada, "over", "TERMINATED", "FAILED")
    await ask(ada, name="talk", labels=labels, type=session_pb2.SESSION_TYPE_INTERACTIVE)
    await ask(ada, name="other", labels={"job": "test"})
    plain = (await ask(ada, name="plain", labels=labels)).session.id
    # At once: none misses another.
    made = await asyncio.gather(*(ask(ada, labels=labels, **alone) for _ in range(8)))
    waited = {answer.session.id: list(answer.session.spec.runs_after) for answer in made}
    order = sorted(waited, key=lambda identity: len(waited[identity]))
    assert [set(waited[identity]) for identity in order] == [{plain, *order[:n]} for n in range(8)]
    # Within a request too, in its order; and what is named counts once.
    answer = await ada.create(
        spec(name="a", labels=labels, runs_after=["plain"], **alone),
        spec(name="b", labels=labels),
        spec(name="c", labels=labels, depends_on=["a"], **alone),
        spec(name="d", labels={"job": "test"}, **alone),
    )
    ids = {result.accepted.name: result.accepted.id for result in answer.results}
    a, c, d = [(await get(ada, name)).spec for name in ("a", "c", "d")]
    assert set(a.runs_after) == {plain, *order}
    assert (list(c.depends_on), set(c.runs_after)) == ([ids["a"]], {plain, *order, ids["b"]})
    assert [(await get(ada, identity)).spec.name for identity in d.runs_after] == ["other"]
    assert (a.runs_after_label, d.runs_after_label) == ("job", "job")
    # One that waits for a later one of its kind would wait for ever.
    answer = await ada.create(
        spec(name="e", labels=labels, depends_on=["f"], **alone), spec(name="f", labels=labels, **alone)
    )
    assert reasons(answer) == ["INVALID_FIELD", "INVALID_FIELD"]
    # A refused one of its kind hinders none.
    answer = await ada.create(spec(name="g", labels=labels, priority=101), spec(name="h", labels=labels, **alone))
    assert reasons(answer) == ["INVALID_FIELD", ""]
    answer = await ada.create(*(spec(labels={"job": "n"}, **alone) for _ in range(102)))
    assert reasons(answer) == [""] * 100 + ["INVALID_FIELD"] * 2


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


@pytest.mark.attack("odd-dependencies")
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
        sum(isinstance(event.body, SessionMoved) and event.body.to_state == "CANCELLED" for event in page.events)
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
