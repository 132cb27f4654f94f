"""What lists and readers get of large requests: bounded pages, and values of variables for their owner only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from sqlalchemy import text

from retinue.manager.server.pages import MAX_PAGE_BYTES
from retinue.manager.store.accounts import accounts
from retinue.manager.v1 import session_pb2, session_service_pb2_grpc, template_service_pb2_grpc
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.manager.v1 import template_service_pb2 as template_pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from retinue.types.v1 import port_pb2
from tests.integration.manager.rig import Service, bearer, failure
from tests.integration.manager.rows import execute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "correct horse battery staple"
VARIABLES = {"PASSWORD": SECRET}
# More than a client takes in one message.
NUMBER, VALUE_BYTES = 60, 100_000


@dataclass
class Callers:
    """Ada owns sessions, bob administers her project, and root everything."""

    stub: session_service_pb2_grpc.SessionServiceAsyncStub
    templates: template_service_pb2_grpc.TemplateServiceAsyncStub
    service: Service
    tokens: dict[str, tuple[tuple[str, str], ...]]

    async def create(self, spec: session_pb2.SessionSpec) -> session_pb2.Session:
        request = pb.CreateSessionRequest(spec=spec, request_id="5cbd2d1e-7bbc-4e4b-a7b4-3a6a2ed0a5d7")
        return (await self.stub.CreateSession(request, metadata=self.tokens["ada"])).session

    async def pages(
        self, caller: str, view: session_pb2.SessionView.ValueType = session_pb2.SESSION_VIEW_UNSPECIFIED
    ) -> list[pb.ListSessionsResponse]:
        pages: list[pb.ListSessionsResponse] = []
        token = ""
        while token or not pages:
            request = pb.ListSessionsRequest(page_size=500, page_token=token, view=view)
            pages.append(await self.stub.ListSessions(request, metadata=self.tokens[caller]))
            token = pages[-1].next_page_token
        return pages


@pytest_asyncio.fixture(loop_scope="session")
async def callers(service: Service) -> AsyncIterator[Callers]:
    tokens = {
        "ada": bearer(await service.user("ada")),
        "bob": bearer(await service.user("bob", projects=())),
        "root": bearer(await service.user("root", role="ADMIN", projects=())),
    }
    async with service.database.transaction() as tx:
        await accounts.set_membership(tx, "bob", "default", "ADMIN")
    async with service.channel() as channel:
        yield Callers(
            session_service_pb2_grpc.SessionServiceStub(channel),
            template_service_pb2_grpc.TemplateServiceStub(channel),
            service,
            tokens,
        )


def secretive() -> session_pb2.SessionSpec:
    return session_pb2.SessionSpec(
        name="secretive",
        type=session_pb2.SESSION_TYPE_INTERACTIVE,
        cluster_size=2,
        kernel=session_pb2.KernelSpec(environment=VARIABLES),
        roles=[session_pb2.RoleSpec(role="sub", kernel=session_pb2.KernelSpec(environment=VARIABLES))],
        bootstrap_script="echo hello",
        service_ports=[port_pb2.ServicePort(name="web", ports=[8000])],
        apps=[session_pb2.AppDefinition(name="web", command=["x"], environment=VARIABLES)],
    )


def variables(spec: session_pb2.SessionSpec) -> list[dict[str, str]]:
    (role,), (app,) = spec.roles, spec.apps
    return [dict(spec.kernel.environment), dict(role.kernel.environment), dict(app.environment)]


@pytest.mark.attack("variables-of-others")
async def test_values_of_variables_are_for_their_owner(callers: Callers) -> None:
    made = await callers.create(secretive())
    again = await callers.create(secretive())
    assert again == made
    assert variables(made.spec) == [VARIABLES] * 3
    expected = {"ada": VARIABLES, "bob": {"PASSWORD": ""}, "root": {"PASSWORD": ""}}
    for caller, seen in expected.items():
        got = await callers.stub.GetSession(pb.GetSessionRequest(session=made.id), metadata=callers.tokens[caller])
        assert variables(got.session.spec) == [seen] * 3
        assert got.session.spec.bootstrap_script == "echo hello"
        ((listed,),) = [page.sessions for page in await callers.pages(caller, session_pb2.SESSION_VIEW_FULL)]
        assert listed.spec == got.session.spec
        ((short,),) = [page.sessions for page in await callers.pages(caller)]
        assert variables(short.spec) == [{}] * 3
        assert not short.spec.bootstrap_script
        watch = callers.stub.WatchSessions(
            pb.WatchSessionsRequest(after=JournalPosition(revision=0)), metadata=callers.tokens[caller]
        )
        async for response in watch:
            if response.events:
                assert response.events[0].created.spec == short.spec
                break
        else:
            raise AssertionError("the watch ended")
        watch.cancel()
    ended = await callers.stub.TerminateSession(
        pb.TerminateSessionRequest(session=made.id), metadata=callers.tokens["bob"]
    )
    assert variables(ended.session.spec) == [{"PASSWORD": ""}] * 3


@pytest.mark.attack("names-of-others-sessions")
async def test_sessions_of_others_have_names_too(callers: Callers, service: Service) -> None:
    made = await callers.create(secretive())
    stranger = bearer(await service.user("eve"))

    async def found(reference: str, caller: str) -> str:
        request = pb.GetSessionRequest(session=reference)
        return (await callers.stub.GetSession(request, metadata=callers.tokens[caller])).session.id

    for _ in ("live", "ended"):
        assert [await found("ada/secretive", caller) for caller in ("ada", "bob", "root")] == [made.id] * 3
        for reference in ("ada/secret", "bob/secretive", "/secretive", "ada/", "ada/secretive/"):
            refused = await failure(found(reference, "root"))
            assert refused.reason == "NOT_FOUND"
        for reference in ("ada/secretive", "secretive"):
            request = pb.GetSessionRequest(session=reference)
            refused = await failure(callers.stub.GetSession(request, metadata=stranger))
            assert refused.reason == "NOT_FOUND"
        await callers.stub.TerminateSession(pb.TerminateSessionRequest(session=made.id), metadata=callers.tokens["ada"])


async def test_the_journal_has_neither_variables_nor_scripts(callers: Callers) -> None:
    await callers.create(secretive())
    kept = "SELECT count(*) FROM journal WHERE kind = 'CREATED' AND payload->'spec'->>'name' = 'secretive'"
    secret = f"AND (payload::text LIKE '%{SECRET}%' OR payload::text LIKE '%echo hello%')"
    assert await execute(callers.service.database, kept) == [(1,)]
    assert await execute(callers.service.database, f"{kept} {secret}") == [(0,)]
    whole = f"SELECT count(*) FROM session WHERE spec::text LIKE '%{SECRET}%'"  # noqa: S608  # a constant
    assert await execute(callers.service.database, whole) == [(1,)]


async def test_lists_of_large_sessions_have_bounded_pages(callers: Callers) -> None:
    kernel = session_pb2.KernelSpec(command=["true"], environment={"A": "x" * VALUE_BYTES})
    template = template_pb.Template(
        name="large", spec=session_pb2.SessionSpec(type=session_pb2.SESSION_TYPE_BATCH, kernel=kernel)
    )
    await callers.templates.CreateTemplate(
        template_pb.CreateTemplateRequest(template=template), metadata=callers.tokens["ada"]
    )
    spec = session_pb2.SessionSpec(template=session_pb2.TemplateReference(name="large"))
    made = await callers.stub.BatchCreateSessions(
        pb.BatchCreateSessionsRequest(specs=[spec] * NUMBER), metadata=callers.tokens["ada"]
    )
    ids = [result.accepted.id for result in made.results]
    for caller in ("ada", "root"):
        for view in (session_pb2.SESSION_VIEW_UNSPECIFIED, session_pb2.SESSION_VIEW_FULL):
            pages = await callers.pages(caller, view)
            assert sorted(session.id for page in pages for session in page.sessions) == sorted(ids)
            assert all(page.ByteSize() <= 1.01 * MAX_PAGE_BYTES for page in pages)
    watch = callers.stub.WatchSessions(
        pb.WatchSessionsRequest(after=JournalPosition(revision=0)), metadata=callers.tokens["root"]
    )
    seen: set[str] = set()
    async for response in watch:
        assert response.ByteSize() <= 1.01 * MAX_PAGE_BYTES
        seen |= {event.session_id for event in response.events}
        if len(seen) == NUMBER:
            break
    assert len(seen) == NUMBER
    watch.cancel()
    too_many = await failure(
        callers.stub.BatchCreateSessions(
            pb.BatchCreateSessionsRequest(specs=[spec] * (2 * NUMBER)), metadata=callers.tokens["ada"]
        )
    )
    assert (too_many.reason, list(too_many.fields)) == ("INVALID_FIELD", ["specs"])


async def test_lists_of_large_templates_have_bounded_pages(callers: Callers) -> None:
    kernel = session_pb2.KernelSpec(environment={"A": "x" * VALUE_BYTES})
    names = [f"t{number:02}" for number in range(NUMBER)]
    for name in names:
        template = template_pb.Template(name=name, spec=session_pb2.SessionSpec(kernel=kernel))
        await callers.templates.CreateTemplate(
            template_pb.CreateTemplateRequest(template=template), metadata=callers.tokens["ada"]
        )
    for view, number in ((template_pb.TEMPLATE_VIEW_BASIC, 1), (template_pb.TEMPLATE_VIEW_FULL, 6)):
        found: list[template_pb.Template] = []
        pages, token = 0, ""
        while token or not pages:
            request = template_pb.ListTemplatesRequest(page_size=500, page_token=token, view=view)
            page = await callers.templates.ListTemplates(request, metadata=callers.tokens["ada"])
            assert page.ByteSize() <= 1.01 * MAX_PAGE_BYTES
            found += page.templates
            pages, token = pages + 1, page.next_page_token
        assert [template.name for template in found] == names
        assert all(template.HasField("spec") == (view == template_pb.TEMPLATE_VIEW_FULL) for template in found)
        assert pages == number


async def test_a_session_that_lost_its_kernels_is_shown_and_ends(callers: Callers) -> None:
    session = await callers.create(session_pb2.SessionSpec(name="lost", type=session_pb2.SESSION_TYPE_INTERACTIVE))
    async with callers.service.database.transaction() as tx:
        await tx.execute(text("DELETE FROM kernel WHERE session_id = :id"), {"id": session.id})
    shown = await callers.stub.GetSession(pb.GetSessionRequest(session=session.id), metadata=callers.tokens["ada"])
    assert [condition.type for condition in shown.session.conditions] == ["UNREADABLE"]
    ended = await callers.stub.TerminateSession(
        pb.TerminateSessionRequest(session=session.id), metadata=callers.tokens["ada"]
    )
    assert ended.session.state == session_pb2.SESSION_STATE_CANCELLED
