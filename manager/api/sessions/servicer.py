"""The SessionService: translates requests, checks who may see what, and calls the lifecycle."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from retinue.manager.api.sessions.convert import (
    accepted_message,
    advice_of,
    explanation_message,
    node_message,
    preview_message,
    session_message,
    show_unmade,
)
from retinue.manager.api.sessions.filters import session_terms
from retinue.manager.api.sessions.idle import extend_session, show_checks
from retinue.manager.api.sessions.requests import bounded, result_message, sessions_of, wrong_array, wrong_number
from retinue.manager.api.sessions.spec_convert import MAX_SIGNIFICANT_DIGITS, to_requests
from retinue.manager.api.sessions.template_rendering import Rendered, render
from retinue.manager.api.sessions.terminations import terminate_sessions
from retinue.manager.api.sessions.updates import check_restart, checked_changes, restart_session, update_session
from retinue.manager.api.sessions.watch import serve_watch
from retinue.manager.api.visibility import caller_visibility, find_session, full_view, lock_session
from retinue.manager.domain import errors
from retinue.manager.domain.session.pending_limit import DEFAULT_MAX_PENDING, PendingLimit
from retinue.manager.domain.session.refusals import Refused
from retinue.manager.domain.session.spec_views import SpecView
from retinue.manager.domain.session.states import SessionState
from retinue.manager.scheduler import preview
from retinue.manager.server import fields, pages
from retinue.manager.server.call_limits import BULK_ROW_COST, ROW_COST
from retinue.manager.server.etags import check_etag
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.journal_positions import position_of
from retinue.manager.server.turn_taking import charge
from retinue.manager.session.drafts import Draft, prepare
from retinue.manager.session.submit import Accepted, submit
from retinue.manager.session.transaction import terminate_locked
from retinue.manager.store.journal import journal, requests
from retinue.manager.store.postgres.database import Answers, Database, Query, Transaction
from retinue.manager.store.sessions import dependencies, listing, lookup, sessions
from retinue.manager.store.sessions.session_records import KernelRecord, SessionRecord
from retinue.manager.v1 import session_pb2, session_service_pb2_grpc
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from retinue.rpc.loop_slices import in_slices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import grpc.aio

    from retinue.manager.identity.principal import Principal
    from retinue.manager.store.journal.journal_tail import JournalTail
    from retinue.manager.store.sessions.visibility import Visibility

_MAX_WAITED_FOR = 20
# Of the name of a single session that has none.
_SINGLE_SESSION_DIGITS = 8
_Reply = TypeVar(
    "_Reply",
    pb.GetSessionResponse,
    pb.TerminateSessionResponse,
    pb.RestartSessionResponse,
    pb.UpdateSessionResponse,
    pb.ExtendSessionResponse,
)
# As many as fit in the 4 MiB that clients take.
_MAX_NODES, _MAX_EDGES = 10_000, 40_000


class SessionServicer(session_service_pb2_grpc.SessionServiceServicer):
    """Sessions, for their owners and for administrators."""

    def __init__(
        self,
        database: Database,
        tail: JournalTail,
        *,
        max_pending_sessions: int = DEFAULT_MAX_PENDING,
    ) -> None:
        """Lets at most `max_pending_sessions` of a user wait where no quota limits them."""
        self._pending = PendingLimit(max_pending_sessions)
        self._database = database
        self._tail = tail

    async def CreateSession(
        self, request: pb.CreateSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CreateSessionResponse:
        caller = current_principal()
        wrong = fields.wrong_request_id(request.request_id)
        templated = request.spec.HasField("template")
        prepared = [] if templated else _prepare([request.spec], caller, digits=_SINGLE_SESSION_DIGITS)
        _raise_invalid(prepared, wrong)
        async with self._database.transaction() as tx:

            async def create() -> pb.CreateSessionResponse:
                # A repeated request is answered as the first, whatever has become of the template.
                drafts = prepared or await _prepare_templated(tx, [request.spec], digits=_SINGLE_SESSION_DIGITS)
                submission = await submit(tx, caller.name, drafts, self._pending, validate_only=request.validate_only)
                (outcome,) = submission.outcomes
                if isinstance(outcome, Refused):
                    raise outcome.error
                session_id = outcome.draft.session.id
                parents: Sequence[dependencies.ParentRecord] = ()
                if outcome.draft.parents and not request.validate_only:
                    parents = (await dependencies.read(tx, [session_id])).get(session_id, ())
                response = pb.CreateSessionResponse(
                    session=accepted_message(outcome, parents),
                    position=self._position(submission.revision),
                )
                if request.validate_only:
                    found = await preview.preview_one(tx, outcome.draft)
                    response.preview.CopyFrom(preview_message(found))
                    show_unmade(response.session, found)
                return response

            if request.validate_only:
                return await create()
            response = await requests.once(tx, caller.name, "CreateSession", request, pb.CreateSessionResponse, create)
        self._tail.wake()
        return response

    def _position(self, revision: int) -> JournalPosition:
        return JournalPosition(revision=revision, incarnation=self._tail.incarnation)

    async def BatchCreateSessions(
        self, request: pb.BatchCreateSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.BatchCreateSessionsResponse:
        caller = current_principal()
        specs: Sequence[session_pb2.SessionSpec] = request.specs
        violations = wrong_array(request) if request.HasField("array") else []
        if request.HasField("array") and not violations:
            specs = await asyncio.to_thread(sessions_of, request.array)
        violations = [*(violations or wrong_number(specs)), *fields.wrong_request_id(request.request_id)]
        if violations:
            raise errors.InvalidRequest(violations)
        charge(BULK_ROW_COST * len(specs))
        templated = any(spec.HasField("template") for spec in specs)
        prepared = [] if templated else await asyncio.to_thread(_prepare, specs, caller)
        async with self._database.transaction() as tx:

            async def create() -> pb.BatchCreateSessionsResponse:
                drafts = prepared or await _prepare_templated(tx, specs)
                submission = await submit(
                    tx,
                    caller.name,
                    drafts,
                    self._pending,
                    validate_only=request.validate_only,
                    all_or_nothing=request.all_or_nothing,
                )
                found: Mapping[uuid.UUID, preview.Preview] = {}
                if request.validate_only:
                    accepted = [item.draft for item in submission.outcomes if isinstance(item, Accepted)]
                    found = await preview.previews(tx, accepted)
                results = bounded(
                    result_message(position, outcome, found, shown_id=not request.validate_only)
                    for position, outcome in enumerate(submission.outcomes)
                )
                return pb.BatchCreateSessionsResponse(results=results, position=self._position(submission.revision))

            if request.validate_only:
                return await create()
            response = await requests.once(
                tx, caller.name, "BatchCreateSessions", request, pb.BatchCreateSessionsResponse, create
            )
        self._tail.wake()
        return response

    async def GetSession(
        self, request: pb.GetSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetSessionResponse:
        async with self._database.transaction() as tx:
            response = await _found(tx, request.session, pb.GetSessionResponse())
            await show_checks(tx, response.session)
        return response

    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListSessionsResponse:
        terms = session_terms(request.filter)
        if request.order_by not in ("", "create_time", "create_time desc"):
            raise errors.InvalidRequest([("order_by", "must be `create_time` or `create_time desc`")])
        if request.view not in session_pb2.SessionView.values():
            raise errors.InvalidRequest([("view", "must be a known view")])
        full = request.view == session_pb2.SESSION_VIEW_FULL
        query = ["sessions", request.filter, request.order_by, request.show_ended, full]
        page = pages.open_page(request.page_size, request.page_token, query)
        async with self._database.transaction() as tx:
            at = await journal.head(tx)
            records, found = await listing.list_page(
                tx,
                caller_visibility(),
                terms=terms,
                ended=request.show_ended,
                newest_first=request.order_by != "create_time",
                after=page.after,
                limit=page.size + 1,
                full=full,
            )
            shown = records[: page.size]
            kernels = await sessions.read_kernels(tx, [item.id for item in shown])
            parents = await dependencies.read(tx, [item.id for item in shown])

        def message(item: SessionRecord) -> session_pb2.Session:
            view = full_view(item.owner) if full else SpecView.BASIC
            return session_message(item, kernels.get(item.id, ()), parents.get(item.id, ()), view=view)

        messages = await in_slices(shown, message)
        listed, token = page.close(messages, found, lambda number: _page_key(shown[number]))
        return pb.ListSessionsResponse(sessions=listed, next_page_token=token, position=position_of(at))

    async def GetSessionGraph(
        self, request: pb.GetSessionGraphRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetSessionGraphResponse:
        async with self._database.transaction() as tx:
            at = await journal.head(tx)
            session_id = await find_session(tx, request.session)
            # Only sessions of one owner depend on each other: who may see one may see all.
            nodes, truncated = await dependencies.read_graph(tx, session_id, _MAX_NODES, _MAX_EDGES)
        charge(ROW_COST * len(nodes))
        return pb.GetSessionGraphResponse(
            nodes=await in_slices(nodes, node_message),
            truncated=truncated,
            position=position_of(at),
            session_id=str(session_id),
        )

    async def TerminateSession(
        self, request: pb.TerminateSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.TerminateSessionResponse:
        principal = current_principal()
        async with self._database.transaction() as tx:
            session_id, work = await lock_session(tx, request.session)
            check_etag(request.etag, work.records[session_id].version)
            await terminate_locked(tx, work, session_id, by=principal.name, force=request.force)
            response = await _shown(tx, session_id, pb.TerminateSessionResponse(), commit=True)
        self._tail.wake()
        return response

    async def BatchTerminateSessions(
        self, request: pb.BatchTerminateSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.BatchTerminateSessionsResponse:
        return await terminate_sessions(self._database, request, self._tail.wake)

    async def RestartSession(
        self, request: pb.RestartSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RestartSessionResponse:
        check_restart(request)
        async with self._database.transaction() as tx:

            async def again() -> pb.RestartSessionResponse:
                session_id = await restart_session(tx, request)
                return await _shown(tx, session_id, pb.RestartSessionResponse())

            response = await requests.once(
                tx, current_principal().name, "RestartSession", request, pb.RestartSessionResponse, again
            )
        self._tail.wake()
        return response

    async def UpdateSession(
        self, request: pb.UpdateSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.UpdateSessionResponse:
        changes = checked_changes(request)
        async with self._database.transaction() as tx:

            async def update() -> pb.UpdateSessionResponse:
                session_id = await update_session(tx, request, changes)
                return await _shown(tx, session_id, pb.UpdateSessionResponse())

            response = await requests.once(
                tx, current_principal().name, "UpdateSession", request, pb.UpdateSessionResponse, update
            )
        self._tail.wake()
        return response

    async def ExtendSession(
        self, request: pb.ExtendSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ExtendSessionResponse:
        async with self._database.transaction() as tx:
            session_id = await extend_session(tx, request)
            response = await _shown(tx, session_id, pb.ExtendSessionResponse())
            await show_checks(tx, response.session)
        self._tail.wake()
        return response

    async def WatchSessions(
        self, request: pb.WatchSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchSessionsResponse]:
        async with aclosing(serve_watch(self._database, self._tail, request)) as responses:
            async for response in responses:
                yield response

    async def ExplainSession(
        self, request: pb.ExplainSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ExplainSessionResponse:
        async with self._database.transaction() as tx:
            session_id = await find_session(tx, request.session)
            session = (await sessions.read(tx, [session_id]))[session_id]
            parents = await dependencies.read(tx, [session_id], unsettled=True, limit=_MAX_WAITED_FOR)
            position, length, outlook = 0, None, None
            if session.state is SessionState.PENDING:
                position = await preview.queue_position(tx, session.resource_group, session_id)
                length = await sessions.queue_length(tx, session.resource_group)
                outlook = await preview.outlook(tx, session)
        message = explanation_message(session, position, parents.get(session_id, ()))
        if length is not None and outlook is not None:
            message.queue_length = length
            known = parents.get(session_id, ())
            message.advice.extend(
                advice_of(session.priority, session.resource_group, known, may_be_passed=outlook.may_be_passed)
            )
            message.would_start_with.extend(outlook.what_if.hints)
            message.would_start_with.extend(f"resource group {name}" for name in outlook.alternative_groups)
            message.agents.extend(pb.AgentCount(cause=cause, number=number) for cause, number in outlook.what_if.agents)
            if outlook.after is not None:
                message.estimated_start_time.FromNanoseconds(time.time_ns() + round(outlook.after * 1e9))
        return message


def _prepare(
    messages: Sequence[Rendered], caller: Principal, *, digits: int = MAX_SIGNIFICANT_DIGITS
) -> list[Draft | Refused]:
    return prepare(to_requests(messages, caller, digits=digits), caller)


async def _prepare_templated(
    tx: Transaction, messages: Sequence[session_pb2.SessionSpec], *, digits: int = MAX_SIGNIFICANT_DIGITS
) -> list[Draft | Refused]:
    """Returns drafts of requests of which some are made from templates.
    Raises InvalidRequest when there is too much in all.
    """
    rendered = await render(tx, messages)
    if violations := wrong_number([item for item in rendered if not isinstance(item, Refused)] or messages):
        raise errors.InvalidRequest(violations)
    return await asyncio.to_thread(_prepare, rendered, current_principal(), digits=digits)


def _raise_invalid(prepared: Sequence[Draft | Refused], wrong: Sequence[errors.Violation]) -> None:
    """Raises the error of a single request that is refused before the database is asked, with all wrong fields."""
    error = next((item.error for item in prepared if isinstance(item, Refused)), None)
    if isinstance(error, errors.InvalidRequest):
        raise errors.InvalidRequest([*error.violations, *wrong])
    if wrong:
        raise errors.InvalidRequest(wrong)
    if error is not None:
        raise error


def _page_key(session: SessionRecord) -> list[str]:
    assert session.create_time is not None  # noqa: S101  # every stored session has one
    return [session.create_time.isoformat(), str(session.id)]


async def _shown(tx: Transaction, session_id: uuid.UUID, response: _Reply, *, commit: bool = False) -> _Reply:
    """Sets a session in a reply, and the position in the journal that it is true at; with `commit`, ends the
    transaction.
    """
    showing = _Showing.of(session_id)
    return showing.show(await tx.pipeline(*showing.queries, commit=commit), response)


async def _found(tx: Transaction, reference: str, response: _Reply) -> _Reply:
    """Sets the session of a reference in a reply, as `_shown`, and ends the transaction. Raises NotFound."""
    if (guess := fields.parse_uuid(reference)) is not None:
        visibility = caller_visibility()
        finding = lookup.finding([reference], visibility, current_principal().name)
        showing = _Showing.of(guess, visibility)
        answers = await tx.pipeline(finding, *showing.queries, commit=True)
        if answers.of(finding).get(reference) == guess and showing.found(answers):
            return showing.show(answers, response)
    return await _shown(tx, await find_session(tx, reference), response, commit=True)


@dataclass(frozen=True, slots=True)
class _Showing:
    """What is read of a session that is shown."""

    session_id: uuid.UUID
    heading: Query[journal.Head]
    reading: Query[dict[uuid.UUID, SessionRecord]]
    kernels: Query[dict[uuid.UUID, list[KernelRecord]]]
    parents: Query[dict[uuid.UUID, list[dependencies.ParentRecord]]]

    @classmethod
    def of(cls, session_id: uuid.UUID, visibility: Visibility | None = None) -> _Showing:
        """Of one that the caller may not read, with `visibility`, nothing is found."""
        ids = [session_id]
        reading = sessions.reading(ids, visibility=visibility)
        return cls(session_id, journal.heading(), reading, sessions.reading_kernels(ids), dependencies.reading(ids))

    @property
    def queries(self) -> tuple[Query[Any], ...]:
        # The position first: an event after it may be in the session already, and none before it is missing.
        return self.heading, self.reading, self.kernels, self.parents

    def found(self, answers: Answers) -> bool:
        return self.session_id in answers.of(self.reading)

    def show(self, answers: Answers, response: _Reply) -> _Reply:
        at, session = answers.of(self.heading), answers.of(self.reading)[self.session_id]
        message = session_message(
            session,
            answers.of(self.kernels).get(self.session_id, ()),
            answers.of(self.parents).get(self.session_id, ()),
            view=full_view(session.owner),
        )
        response.session.CopyFrom(message)
        response.position.CopyFrom(position_of(at))
        return response
