"""The SessionService: translates requests, checks who may see what, and calls the lifecycle."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import grpc.aio

from manager.api import errors, fields, pages
from manager.api.attach import serve_attach
from manager.api.code import serve_code
from manager.api.etags import check_etag
from manager.api.files import serve_download, serve_list, serve_upload
from manager.api.filters import parse_filter
from manager.api.interceptors import current_principal
from manager.api.open_port import serve_open_port
from manager.api.port_tickets import create_port_ticket
from manager.api.services import get_service, start_service
from manager.api.session_convert import (
    event_message,
    explanation_message,
    graph_message,
    preview_message,
    session_message,
)
from manager.api.session_dependencies import Links
from manager.api.session_requests import Drafted, admitted, draft_all, log_span, result_message, wrong_number
from manager.api.sight import find_session, sight
from manager.api.stats import serve_stats
from manager.api.template_rendering import render
from manager.fleet.forwarding import Forwarder
from manager.fleet.output import OutputPastEndError, Span
from manager.gateway.rules import Address
from manager.lifecycle import commands, preview, quotas
from manager.lifecycle.mounts import MountRoot, granted
from manager.lifecycle.outputs import read_output
from manager.lifecycle.spec import MountSpec
from manager.lifecycle.states import ENDED_SESSION_STATES
from manager.store import agents, dependencies, groups, journal, requests, sessions
from manager.store.database import Database, Transaction
from manager.store.journal import JournalTail
from manager.store.recordset import Row
from retinue.manager.v1 import session_pb2, session_service_pb2_grpc
from retinue.manager.v1 import session_service_pb2 as pb

_FILTER_FIELDS = frozenset({"id", "name", "project", "owner", "state", "type", "result", "resource_group"})
_ENUM_PREFIXES = {"state": "SESSION_STATE_", "type": "SESSION_TYPE_", "result": "SESSION_RESULT_"}
_BOOKMARK_SECONDS = 10.0
_MOST_WAITED_FOR = 20
_MOST_NODES = 10_000


class SessionServicer(session_service_pb2_grpc.SessionServiceServicer):
    """Sessions, for their owners and for administrators."""

    def __init__(
        self, database: Database, tail: JournalTail, forwarder: Forwarder, gateway: Address | None = None
    ) -> None:
        """Without a `gateway` there is no HTTP to ports."""
        self._gateway = gateway
        self._database = database
        self._tail = tail
        self._forwarder = forwarder

    async def CreateSession(
        self, request: pb.CreateSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CreateSessionResponse:
        """See the proto."""
        principal = current_principal()
        wrong = fields.wrong_request_id(request.request_id)
        templated = request.spec.HasField("template")
        if templated and wrong:
            raise errors.InvalidRequest(wrong)
        spec = None if templated else admitted(request.spec, principal, wrong)
        async with self._database.transaction() as tx:

            async def create() -> pb.CreateSessionResponse:
                # A repeated request is answered as the first, whatever has become of the template.
                asked = spec or admitted(await _with_template(tx, request.spec), principal)
                draft = commands.draft(uuid.uuid4(), principal.name, asked)
                drafted: list[Drafted] = [draft]
                revision = await _accept(tx, drafted, [request.spec], validate_only=request.validate_only)
                if isinstance(drafted[0], errors.ApiError):
                    raise drafted[0]
                session_id = draft.session["id"]
                parents: Sequence[Row] = ()
                if draft.parents and not request.validate_only:
                    parents = (await dependencies.read(tx, [session_id])).get(session_id, ())
                shown = session_message(draft.session, draft.kernels, parents)
                response = pb.CreateSessionResponse(session=shown, revision=revision)
                if request.validate_only:
                    found = await preview.previews(tx, [draft])
                    response.preview.CopyFrom(preview_message(found[session_id]))
                return response

            if request.validate_only:
                return await create()
            response = await requests.once(
                tx, principal.name, "CreateSession", request, pb.CreateSessionResponse, create
            )
        self._tail.wake()
        return response

    async def CreateSessions(
        self, request: pb.CreateSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CreateSessionsResponse:
        """See the proto."""
        principal = current_principal()
        violations = [*wrong_number(request.specs), *fields.wrong_request_id(request.request_id)]
        if violations:
            raise errors.InvalidRequest(violations)
        templated = any(spec.HasField("template") for spec in request.specs)
        drafted = [] if templated else await asyncio.to_thread(draft_all, request.specs, principal)
        async with self._database.transaction() as tx:

            async def create() -> pb.CreateSessionsResponse:
                if templated:
                    drafted.extend(await _draft_with_templates(tx, request.specs))
                revision = await _accept(tx, drafted, request.specs, validate_only=request.validate_only)
                found: Mapping[uuid.UUID, preview.Preview] = {}
                if request.validate_only:
                    accepted = [item for item in drafted if isinstance(item, commands.Draft)]
                    found = await preview.previews(tx, accepted)
                results = [
                    result_message(position, item, found, shown_id=not request.validate_only)
                    for position, item in enumerate(drafted)
                ]
                return pb.CreateSessionsResponse(results=results, revision=revision)

            if request.validate_only:
                return await create()
            response = await requests.once(
                tx, principal.name, "CreateSessions", request, pb.CreateSessionsResponse, create
            )
        self._tail.wake()
        return response

    async def GetSession(
        self, request: pb.GetSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetSessionResponse:
        """See the proto."""
        async with self._database.transaction() as tx:
            revision, _ = await journal.head(tx)
            session_id = await find_session(tx, request.session)
            shown = await _shown(tx, session_id)
        return pb.GetSessionResponse(session=shown, revision=revision)

    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListSessionsResponse:
        """See the proto."""
        terms = _terms(request.filter)
        if request.order_by not in ("", "create_time", "create_time desc"):
            raise errors.InvalidRequest([("order_by", "must be `create_time` or `create_time desc`")])
        query = ["sessions", request.filter, request.order_by, request.show_ended]
        page = pages.open_page(request.page_size, request.page_token, query)
        async with self._database.transaction() as tx:
            revision, _ = await journal.head(tx)
            rows = await sessions.list_page(
                tx,
                sight(),
                terms=terms,
                ended=request.show_ended,
                newest_first=request.order_by != "create_time",
                after=page.after,
                limit=page.size + 1,
            )
            shown = rows[: page.size]
            kernels = await sessions.read_kernels(tx, [row["id"] for row in shown])
            parents = await dependencies.read(tx, [row["id"] for row in shown])
        token = ""
        if len(rows) > page.size:
            token = page.token_after([shown[-1]["create_time"].isoformat(), str(shown[-1]["id"])])
        messages = [session_message(row, kernels.get(row["id"], []), parents.get(row["id"], ())) for row in shown]
        return pb.ListSessionsResponse(sessions=messages, next_page_token=token, revision=revision)

    async def GetSessionGraph(
        self, request: pb.GetSessionGraphRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetSessionGraphResponse:
        """See the proto."""
        async with self._database.transaction() as tx:
            revision, _ = await journal.head(tx)
            session_id = await find_session(tx, request.session)
            # Only sessions of one owner depend on each other: who may see one may see all.
            rows = await dependencies.read_graph(tx, session_id, _MOST_NODES + 1)
        return graph_message(rows[:_MOST_NODES], session_id, revision, truncated=len(rows) > _MOST_NODES)

    async def TerminateSession(
        self, request: pb.TerminateSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.TerminateSessionResponse:
        """See the proto."""
        principal = current_principal()
        async with self._database.transaction() as tx:
            session_id = await find_session(tx, request.session)
            if request.etag:
                locked = await sessions.read(tx, [session_id], lock=True)
                check_etag(request.etag, locked[session_id]["version"])
            await commands.terminate(tx, session_id, by=principal.name, force=request.force)
            shown = await _shown(tx, session_id)
        self._tail.wake()
        return pb.TerminateSessionResponse(session=shown)

    async def WatchSessions(
        self, request: pb.WatchSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchSessionsResponse]:
        """See the proto."""
        only = _session_id(request.session_id)
        if request.until_ended and only is None:
            raise errors.InvalidRequest([("until_ended", "needs session_id")])
        if request.after_revision < 0:
            raise errors.InvalidRequest([("after_revision", "must not be negative")])
        seeing = sight()
        over = False
        async with self._database.transaction() as tx:
            newest, oldest = await journal.head(tx)
            after = newest if not request.HasField("after_revision") else request.after_revision or oldest
            # Refuses a revision that is gone or not there yet before the stream begins.
            rest = await journal.read(tx, after, 1, session_id=only)
            if only is not None:
                seen = (await sessions.read(tx, [only])).get(only)
                if seen is None or not seeing.sees(seen["owner"], seen["project"]):
                    raise errors.NotFound("session", request.session_id)
                over = seen["state"] in ENDED_SESSION_STATES and not rest.events
        yield pb.WatchSessionsResponse(revision=after)
        if request.until_ended and over:
            return
        async for revision, events in self._portions(after, only):
            visible = [event for event in events if seeing.sees(event.owner, event.project)]
            yield pb.WatchSessionsResponse(revision=revision, events=[event_message(event) for event in visible])
            if request.until_ended and any(_ends_session(event) for event in visible):
                return

    async def _portions(self, after: int, only: uuid.UUID | None) -> AsyncIterator[tuple[int, Sequence[journal.Event]]]:
        """Portions of the journal; without events it is a bookmark, after 10 s of silence at the latest."""
        revision = after
        following = self._tail.follow(after)
        upcoming: asyncio.Future[Sequence[journal.Event]] | None = None
        silent_since = asyncio.get_running_loop().time()
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(following))
                pause = max(0.0, silent_since + _BOOKMARK_SECONDS - asyncio.get_running_loop().time())
                await asyncio.wait((upcoming,), timeout=pause)
                events: Sequence[journal.Event] = ()
                if upcoming.done():
                    portion, upcoming = upcoming.result(), None
                    revision = portion[-1].revision
                    events = [event for event in portion if only is None or event.session_id == only]
                if events or asyncio.get_running_loop().time() - silent_since >= _BOOKMARK_SECONDS:
                    silent_since = asyncio.get_running_loop().time()
                    yield revision, events
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
            await following.aclose()

    async def ExplainSession(
        self, request: pb.ExplainSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ExplainSessionResponse:
        """See the proto."""
        async with self._database.transaction() as tx:
            session_id = await find_session(tx, request.session)
            row, _ = await _read(tx, session_id)
            position = await sessions.queue_position(tx, session_id)
            parents = await dependencies.read(tx, [session_id], unsettled=True, limit=_MOST_WAITED_FOR)
            length = outlook = None
            if row["state"] == "PENDING":
                length = await sessions.queue_length(tx, row["resource_group"])
                outlook = await preview.outlook(tx, row)
        message = explanation_message(row, position, parents.get(session_id, ()))
        if length is not None and outlook is not None:
            message.queue_length = length
            message.would_start_with.extend(outlook.what_if.hints)
            message.would_start_with.extend(f"resource group {name}" for name in outlook.elsewhere)
            message.agents.extend(pb.AgentCount(cause=cause, number=number) for cause, number in outlook.what_if.agents)
            if outlook.after is not None:
                message.estimated_start_time.FromNanoseconds(time.time_ns() + round(outlook.after * 1e9))
        return message

    async def StreamLogs(
        self, request: pb.StreamLogsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.StreamLogsResponse]:
        """See the proto."""
        span = log_span(request)
        async with self._database.transaction() as tx:
            _, kernels = await _read(tx, await find_session(tx, request.session, owner_only=True))
        wanted = {kernel["hostname"]: kernel["id"] for kernel in kernels}
        if not request.all:
            hostname = request.hostname or "main1"
            if hostname not in wanted:
                raise errors.InvalidRequest([("hostname", "is not the name of a kernel of this session")])
            wanted = {hostname: wanted[hostname]}
        try:
            async for piece in self._outputs(wanted, request.epoch, span, request.follow):
                yield piece
        except OutputPastEndError as error:
            raise errors.OffsetPastEnd(error.size) from error

    async def StreamStats(
        self, request: pb.StreamStatsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.StreamStatsResponse]:
        """See the proto."""
        async with aclosing(serve_stats(self._database, self._forwarder, request)) as responses:
            async for response in responses:
                yield response

    async def Attach(
        self, request_iterator: AsyncIterator[pb.AttachRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.AttachResponse]:
        """See the proto."""
        async with aclosing(serve_attach(self._database, self._forwarder, aiter(request_iterator))) as responses:
            async for response in responses:
                yield response

    async def OpenPort(
        self, request_iterator: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        """See the proto; requests and responses are serialised."""
        async with aclosing(serve_open_port(self._database, self._forwarder, aiter(request_iterator))) as responses:
            async for response in responses:
                yield response

    async def CreatePortTicket(
        self, request: pb.CreatePortTicketRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CreatePortTicketResponse:
        """See the proto."""
        return await create_port_ticket(self._database, self._gateway, request)

    async def ExecuteCode(
        self, request_iterator: AsyncIterator[pb.ExecuteCodeRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ExecuteCodeResponse]:
        """See the proto."""
        async with aclosing(serve_code(self._database, self._forwarder, aiter(request_iterator))) as responses:
            async for response in responses:
                yield response

    async def UploadFiles(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.UploadFilesResponse]:
        """Writes files into a kernel's work directory."""
        del context
        requests: AsyncIterator[pb.UploadFilesRequest] = aiter(request_iterator)
        async with aclosing(serve_upload(self._database, self._forwarder, requests)) as responses:
            async for response in responses:
                yield response

    async def DownloadFiles(
        self, request: pb.DownloadFilesRequest, context: Any
    ) -> AsyncIterator[pb.DownloadFilesResponse]:
        """Reads files from a kernel's work directory."""
        del context
        async with aclosing(serve_download(self._database, self._forwarder, request)) as responses:
            async for response in responses:
                yield response

    async def ListFiles(self, request: pb.ListFilesRequest, context: Any) -> AsyncIterator[pb.ListFilesResponse]:
        """Lists files in a kernel's work directory."""
        del context
        async with aclosing(serve_list(self._database, self._forwarder, request)) as responses:
            async for response in responses:
                yield response

    async def StartService(
        self, request: pb.StartServiceRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.StartServiceResponse:
        """See the proto."""
        return pb.StartServiceResponse(status=await start_service(self._database, self._forwarder, request))

    async def GetService(
        self, request: pb.GetServiceRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetServiceResponse:
        """See the proto."""
        return pb.GetServiceResponse(status=await get_service(self._database, self._forwarder, request))

    async def _outputs(
        self, wanted: Mapping[str, uuid.UUID], epoch: int, span: Span, follow: bool
    ) -> AsyncIterator[pb.StreamLogsResponse]:
        """Output of several kernels as it comes."""
        # Pieces; None when one kernel is done; what went wrong.
        arrivals: asyncio.Queue[pb.StreamLogsResponse | Exception | None] = asyncio.Queue(maxsize=16)

        async def pump(hostname: str, kernel_id: uuid.UUID) -> None:
            try:
                async for number, start, data in read_output(
                    self._database, self._forwarder, kernel_id, span, epoch=epoch, follow=follow
                ):
                    piece = pb.StreamLogsResponse(hostname=hostname, epoch=number, offset=start, data=data)
                    await arrivals.put(piece)
            except Exception as error:  # noqa: BLE001  # raised again by the reader of the queue
                await arrivals.put(error)
            else:
                await arrivals.put(None)

        tasks = [asyncio.create_task(pump(hostname, kernel_id)) for hostname, kernel_id in wanted.items()]
        going = len(wanted)
        try:
            while going:
                arrival = await arrivals.get()
                if isinstance(arrival, Exception):
                    raise arrival
                if arrival is None:
                    going -= 1
                else:
                    yield arrival
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _accept(
    tx: Transaction, drafted: list[Drafted], messages: Sequence[session_pb2.SessionSpec], *, validate_only: bool
) -> int:
    """Makes what can be made, unless only to be checked, and puts an error in the place of each of the others; returns the first revision."""
    owner = current_principal().name
    links = Links(drafted, messages)
    await links.resolve(tx, owner)
    limited = await _check_references(tx, owner, drafted)
    await _check_mounts(tx, drafted)
    await links.refuse_taken(tx, owner)
    if limited:
        await _check_quotas(tx, drafted)
    links.refuse_dependents()
    return 0 if validate_only else await _create_all(tx, drafted)


async def _with_template(tx: Transaction, message: session_pb2.SessionSpec) -> session_pb2.SessionSpec:
    (made,) = await render(tx, [message])
    if isinstance(made, errors.ApiError):
        raise made
    return made


async def _draft_with_templates(tx: Transaction, messages: Sequence[session_pb2.SessionSpec]) -> list[Drafted]:
    """Drafts of many requests, of which some are made from templates. Raises InvalidRequest when there is too much in all."""
    made = await render(tx, messages)
    if violations := wrong_number([item for item in made if not isinstance(item, errors.ApiError)] or messages):
        raise errors.InvalidRequest(violations)
    return await asyncio.to_thread(draft_all, made, current_principal())


async def _check_references(tx: Transaction, owner: str, drafted: list[Drafted]) -> bool:
    """What sessions refer to must be there, and stays until the commit; an error takes the place of those that refer to nothing. Returns
    whether there are quotas to look at.
    """
    specs = [item.session for item in drafted if isinstance(item, commands.Draft)]
    projects, known, limited = await sessions.hold_references(
        tx, owner, {item["project"] for item in specs}, {item["resource_group"] for item in specs}
    )
    for position, item in enumerate(drafted):
        if not isinstance(item, commands.Draft):
            continue
        if item.session["project"] not in projects:
            drafted[position] = errors.ProjectDenied(item.session["project"])
        elif item.session["resource_group"] not in known:
            drafted[position] = errors.InvalidRequest([("spec.resource_group", "is not the name of a resource group")])
    await _check_agents(tx, drafted)
    return limited


async def _check_agents(tx: Transaction, drafted: list[Drafted]) -> None:
    """Agents that are asked for must be in the session's group now; whether they take anything is for the scheduler to say."""
    asking = {
        position: item
        for position, item in enumerate(drafted)
        if isinstance(item, commands.Draft) and item.session["spec"]["agents"]
    }
    if not asking:
        return
    named = {agent for item in asking.values() for agent in item.session["spec"]["agents"]}
    groups = await agents.groups_of(tx, named)
    for position, item in asking.items():
        group = item.session["resource_group"]
        wrong = [
            (f"spec.agents[{number}]", f"{agent} is not an agent of resource group {group}")
            for number, agent in enumerate(item.session["spec"]["agents"])
            if groups.get(agent) != group
        ]
        if wrong:
            drafted[position] = errors.InvalidRequest(wrong)


async def _check_mounts(tx: Transaction, drafted: list[Drafted]) -> None:
    """Each mount is noted with the root that grants it; an error takes the place of sessions with one that none does."""
    wanted = [
        (position, item) for position, item in enumerate(drafted) if isinstance(item, commands.Draft) and item.mounts
    ]
    roots = await groups.read_mount_roots(tx, {item.session["resource_group"] for _, item in wanted}) if wanted else {}
    for position, item in wanted:
        found = granted(
            item.mounts, map(MountRoot.from_json, roots[item.session["resource_group"]]), item.session["project"]
        )
        if isinstance(found, MountSpec):
            drafted[position] = errors.MountNotAllowed(found.source, writable=found.writable)
        else:
            item.session["spec"]["mounts"] = [asdict(mount) for mount in found]


async def _check_quotas(tx: Transaction, drafted: list[Drafted]) -> None:
    """An error takes the place of those that are over a quota."""
    positions = [position for position, item in enumerate(drafted) if isinstance(item, commands.Draft)]
    found = await quotas.violations(tx, [item for item in drafted if isinstance(item, commands.Draft)])
    for position, violations in zip(positions, found, strict=True):
        if violations:
            drafted[position] = errors.QuotaExceeded(violations)


async def _create_all(tx: Transaction, drafted: list[Drafted]) -> int:
    """Makes what can be made, and puts an error in the place of each of the others; returns the first revision."""
    made, revision = await commands.create_many(tx, [item for item in drafted if isinstance(item, commands.Draft)])
    for position, item in enumerate(drafted):
        if isinstance(item, commands.Draft) and item.session["id"] not in made:
            # With dependencies inside the request names were looked at before: another request was faster.
            drafted[position] = errors.NameTaken("session", item.session["name"])
    return revision


async def _shown(tx: Transaction, session_id: uuid.UUID) -> session_pb2.Session:
    row, kernels = await _read(tx, session_id)
    return session_message(row, kernels, (await dependencies.read(tx, [session_id])).get(session_id, ()))


async def _read(tx: Transaction, session_id: uuid.UUID) -> tuple[Row, list[Row]]:
    row = (await sessions.read(tx, [session_id]))[session_id]
    return row, (await sessions.read_kernels(tx, [session_id]))[session_id]


def _session_id(text: str) -> uuid.UUID | None:
    if not text:
        return None
    try:
        return uuid.UUID(text)
    except ValueError:
        raise errors.InvalidRequest([("session_id", "must be a UUID")]) from None


def _terms(text: str) -> list[tuple[str, str, str]]:
    """The filter's terms with the enum prefixes of the protos taken off, as the store has them."""
    terms = []
    for field, operator, value in parse_filter(text, _FILTER_FIELDS, prefixes=("labels.",)):
        prefix = _ENUM_PREFIXES.get(field, "")
        terms.append((field, operator, value.removeprefix(prefix)))
    return terms


def _ends_session(event: journal.Event) -> bool:
    return event.kind == "SESSION_MOVED" and event.payload["to"] in ENDED_SESSION_STATES
