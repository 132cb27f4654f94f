"""Sessions of a manager: all that the caller may read, and each in the hands of a program."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Unpack, cast

from google.protobuf.field_mask_pb2 import FieldMask

from retinue.client import enum_names
from retinue.client.errors import OutOfRange, SessionEnded, WaitTimeout
from retinue.client.kernel.attachment import Attachment, attach_start
from retinue.client.logs import LogChunk, stream_logs
from retinue.client.notebooks import as_html
from retinue.client.session_view import fold
from retinue.client.shared_watch import SharedWatch
from retinue.client.spec import SessionOptions, session_spec
from retinue.client.time_spans import as_duration
from retinue.client.transport.backoff import RetryBudget
from retinue.client.transport.calls import call, resumed
from retinue.client.transport.lazy_channel import LazyChannel
from retinue.client.transport.pages import paged
from retinue.client.words import seconds_of
from retinue.manager.v1 import (
    app_service_pb2,
    app_service_pb2_grpc,
    kernel_service_pb2,
    kernel_service_pb2_grpc,
    session_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
)
from retinue.manager.v1.journal_position_pb2 import JournalPosition

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    import grpc.aio

    from retinue.client.kernel.code import Code
    from retinue.client.kernel.files import Files
    from retinue.client.kernel.port import PortConnection
    from retinue.client.words import SessionResult, SessionState, Span
    from retinue.types.v1 import app_pb2

MAX_AT_ONCE = 10_000
"""Sessions that one request may name."""
OWN_STREAMS = 4
"""Sessions that are followed at a time with a stream for each."""
_READ_AGAIN = frozenset({"REVISION_COMPACTED", "REVISION_LOST"})


class Session:
    """A session as last seen (`view`, at journal position `revision`), and what can be done with it."""

    def __init__(self, sessions: Sessions, view: session_pb2.Session, revision: int, incarnation: str = "") -> None:
        """`revision` is the journal position that `view` is true at, and `incarnation` the database's,
        which it counts in.
        """
        self._sessions = sessions
        self.view: session_pb2.Session = view
        self.revision: int = revision
        self.incarnation: str = incarnation

    def __repr__(self) -> str:
        """Returns a text for people."""
        return f"<Session {self.name} {self.id} {self.state}>"

    def _repr_html_(self) -> str:
        """Returns what a notebook shows."""
        exited = self.is_ended or None
        facts = {
            "id": self.id,
            "state": self.state,
            "result": exited and self.result,
            "exit code": self.exit_code,
            "message": self.view.message,
        }
        return as_html(f"Session {self.name}", facts)

    @property
    def id(self) -> str:
        """Returns its UUID."""
        return self.view.id

    @property
    def number(self) -> int:
        """Returns its number, unique in the cluster."""
        return self.view.number

    @property
    def name(self) -> str:
        """Returns its name."""
        return self.view.spec.name

    @property
    def state(self) -> SessionState:
        """Returns its state as a word, for instance `RUNNING`."""
        return cast("SessionState", enum_names.state_of(self.view))

    @property
    def result(self) -> SessionResult:
        """Returns `UNDEFINED`, `SUCCESS` or `FAILED`."""
        return cast("SessionResult", enum_names.name_of(enum_names.SESSION_RESULT, self.view.result))

    @property
    def exit_code(self) -> int | None:
        """Returns the exit code of `main1`; None before it has exited."""
        return self.view.exit_code if self.view.HasField("exit_code") else None

    @property
    def kernels(self) -> Sequence[session_pb2.Kernel]:
        """Returns its kernels, `main1` first."""
        return self.view.kernels

    @property
    def is_ended(self) -> bool:
        """Returns True once it has ended."""
        return enum_names.is_ended(self.view)

    async def refresh(self) -> Session:
        """Asks the server how it is now."""
        return self._became(await self._sessions.get(self.id))

    def _became(self, fresh: Session) -> Session:
        self.view, self.revision, self.incarnation = fresh.view, fresh.revision, fresh.incarnation
        return self

    async def progress(self) -> AsyncGenerator[Session, None]:
        """Yields itself now and after each event, until it has ended; skips no event."""
        yield self
        if self.is_ended:
            return
        async with aclosing(self._sessions.follow(self)) as steps:
            async for view, revision in steps:
                self.view, self.revision = view, revision
                yield self

    async def wait(self, *states: SessionState, timeout: Span | None = None) -> Session:  # noqa: ASYNC109  # callers count on the message
        """Waits until it is, or has been since last seen, in one of `states`.

        Raises SessionEnded when it ended without that, and WaitTimeout after `timeout`.
        """
        wanted = {
            enum_names.name_of(enum_names.SESSION_STATE, enum_names.number(enum_names.SESSION_STATE, state))
            for state in states
        }
        try:
            async with (
                asyncio.timeout(None if timeout is None else seconds_of(timeout)),
                aclosing(self.progress()) as steps,
            ):
                async for step in steps:
                    if step.state in wanted:
                        return self
        except TimeoutError:
            message = f"{self.name} is {self.state} and not {' or '.join(sorted(wanted))} after {seconds_of(timeout or 0):g} s"
            raise WaitTimeout(message) from None
        raise SessionEnded(f"{self.name} has ended ({self.state}) and was not {' or '.join(sorted(wanted))}", self.view)

    async def wait_ended(self, timeout: Span | None = None) -> Session:  # noqa: ASYNC109  # callers count on the message
        """Waits until it has ended. Raises WaitTimeout after `timeout`."""
        return await self.wait("TERMINATED", "CANCELLED", timeout=timeout)

    def logs(
        self,
        hostname: str = "",
        *,
        all_kernels: bool = False,
        offset: int = 0,
        follow: bool = False,
        since: dt.datetime | None = None,
        tail: int = 0,
    ) -> AsyncGenerator[LogChunk, None]:
        """Yields output of one kernel (default `main1`), or of all; see `Sessions.logs`."""
        return self._sessions.logs(
            self.id, hostname, all_kernels=all_kernels, offset=offset, follow=follow, since=since, tail=tail
        )

    def attach(
        self,
        command: Sequence[str] = (),
        hostname: str = "",
        *,
        terminal: tuple[int, int] | None = None,
        environment: Mapping[str, str] | None = None,
        working_directory: str = "",
        keep_processes: bool = False,
        detached: bool = False,
    ) -> Attachment:
        """Attaches to a command (default: a shell) in one kernel (default `main1`); see `Sessions.attach`."""
        return self._sessions.attach(
            self.id,
            command,
            hostname,
            terminal=terminal,
            environment=environment,
            working_directory=working_directory,
            keep_processes=keep_processes,
            detached=detached,
        )

    def open_port(self, port: str | int, hostname: str = "", *, direct: bool = False) -> PortConnection:
        """Opens a connection to a port of `main1`; see `Sessions.open_port`."""
        return self._sessions.open_port(self.id, port, hostname, direct=direct)

    async def create_ssh_certificate(self, public_key: str) -> kernel_service_pb2.CreateSshCertificateResponse:
        """Certifies a public key for the SFTP servers of a system session; see `Sessions.create_ssh_certificate`."""
        return await self._sessions.create_ssh_certificate(self.id, public_key)

    async def create_port_tunnel(self, port: str | int) -> kernel_service_pb2.CreatePortTunnelResponse:
        """Opens a tunnel to a port through the manager's gateway; see `Sessions.create_port_tunnel`."""
        return await self._sessions.create_port_tunnel(self.id, port)

    async def create_port_ticket(self, port: str | int, path: str = "/") -> kernel_service_pb2.CreatePortTicketResponse:
        """Creates a link by which a browser begins to use a port over HTTP; see `Sessions.create_port_ticket`."""
        return await self._sessions.create_port_ticket(self.id, port, path)

    def code(self, language: str = "") -> Code:
        """Runs of code in `main1`; see `Sessions.code`."""
        return self._sessions.code(self.id, language)

    def files(self, hostname: str = "") -> Files:
        """Returns the files in the work directory of one kernel (default `main1`)."""
        return self._sessions.files(self.id, hostname)

    async def start_app(
        self, app: str, arguments: Sequence[str] = (), *, environment: Mapping[str, str] | None = None
    ) -> app_pb2.AppStatus:
        """Starts the program of an app, unless it runs; see `Sessions.start_app`."""
        return await self._sessions.start_app(self.id, app, arguments, environment=environment)

    async def app(self, app: str) -> app_pb2.AppStatus:
        """Returns whether the program of an app runs, and its last output."""
        return await self._sessions.app(self.id, app)

    async def stop_app(self, app: str, *, grace: Span | None = None) -> app_pb2.AppStatus:
        """Ends the program of an app; see `Sessions.stop_app`."""
        return await self._sessions.stop_app(self.id, app, grace=grace)

    async def terminate(self, *, force: bool = False) -> Session:
        """Ends it; returns itself as it is then, before its kernels are gone. `force` kills without grace."""
        return self._became(await self._sessions.terminate(self.id, force=force))

    async def restart(self, *, force: bool = False) -> Session:
        """Runs it again from its beginning; see `Sessions.restart`. Returns itself as it is then."""
        return self._became(await self._sessions.restart(self.id, force=force))

    async def update(
        self, *, name: str | None = None, priority: int | None = None, hold: bool | None = None
    ) -> Session:
        """Changes its name, its priority or its hold; see `Sessions.update`. Returns itself as it is then."""
        return self._became(await self._sessions.update(self.id, name=name, priority=priority, hold=hold))

    async def extend(self, duration: Span | None = None) -> Session:
        """Says that it is still needed; with `duration`, that no idle check ends it before then.
        Returns itself as it is then.
        """
        return self._became(await self._sessions.extend(self.id, duration))

    async def explain(self) -> session_service_pb2.ExplainSessionResponse:
        """Returns why the session waits."""
        return await self._sessions.explain(self.id)


class Sessions:
    """The sessions that the caller may read. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel, retry_budget: RetryBudget | None = None) -> None:
        """`retry_budget` bounds how long streams are tried again."""
        self._stub: session_service_pb2_grpc.SessionServiceAsyncStub = session_service_pb2_grpc.SessionServiceStub(
            channel
        )
        self._kernels: kernel_service_pb2_grpc.KernelServiceAsyncStub = kernel_service_pb2_grpc.KernelServiceStub(
            channel
        )
        self._channel = channel
        self._apps: app_service_pb2_grpc.AppServiceAsyncStub = app_service_pb2_grpc.AppServiceStub(channel)
        self._retry_budget = retry_budget or RetryBudget()
        self._own_streams = 0
        self._shared = SharedWatch(lambda after, incarnation: self.watch(after_revision=after, incarnation=incarnation))

    def _session(self, view: session_pb2.Session, position: JournalPosition) -> Session:
        return Session(self, view, position.revision, position.incarnation)

    async def create(
        self, *, request_id: str = "", validate_only: bool = False, **options: Unpack[SessionOptions]
    ) -> Session:
        """Asks for a session, with the options of `retinue.client.spec.SessionOptions`; returns while it is still
        pending.

        `request_id` is a UUID: the same one again answers with the same session. `validate_only` only checks.
        """
        return await self.create_from(session_spec(**options), request_id=request_id, validate_only=validate_only)

    async def create_from(
        self, spec: session_pb2.SessionSpec, *, request_id: str = "", validate_only: bool = False
    ) -> Session:
        """Does the same as `create`, from a message."""
        request = session_service_pb2.CreateSessionRequest(
            spec=spec, request_id=request_id or str(uuid.uuid4()), validate_only=validate_only
        )
        response = await call(self._stub.CreateSession, request)
        return self._session(response.session, response.position)

    async def check(self, **options: Unpack[SessionOptions]) -> session_service_pb2.PlacementPreview:
        """Returns where a session would be placed now, or why it would wait; creates nothing."""
        return (await self.check_from(session_spec(**options))).preview

    async def check_from(self, spec: session_pb2.SessionSpec) -> session_service_pb2.CreateSessionResponse:
        """Does the same as `check`, from a message; the answer also has the session as it would be accepted."""
        request = session_service_pb2.CreateSessionRequest(spec=spec, validate_only=True)
        return await call(self._stub.CreateSession, request)

    async def create_many(
        self,
        specs: Iterable[session_pb2.SessionSpec],
        *,
        request_id: str = "",
        validate_only: bool = False,
        all_or_nothing: bool = False,
    ) -> session_service_pb2.BatchCreateSessionsResponse:
        """Asks for up to 10,000 sessions at once, made with `retinue.client.spec.session_spec`; each is accepted or
        refused by itself, and `results` says so in the same order.

        `request_id` is a UUID: the same one again answers the same. `validate_only` only checks. With `all_or_nothing`,
        none is made when one is refused.
        """
        request = session_service_pb2.BatchCreateSessionsRequest(
            specs=specs,
            request_id=request_id or str(uuid.uuid4()),
            validate_only=validate_only,
            all_or_nothing=all_or_nothing,
        )
        return await call(self._stub.BatchCreateSessions, request)

    async def create_array(
        self,
        array: session_service_pb2.SessionArray,
        *,
        request_id: str = "",
        validate_only: bool = False,
        all_or_nothing: bool = True,
    ) -> session_service_pb2.BatchCreateSessionsResponse:
        """Asks for sessions that differ in an index; `results` has one for each, in the order of `array.indices`.

        What they have in common is sent once. The options are those of `create_many`.
        """
        request = session_service_pb2.BatchCreateSessionsRequest(
            array=array,
            request_id=request_id or str(uuid.uuid4()),
            validate_only=validate_only,
            all_or_nothing=all_or_nothing,
        )
        return await call(self._stub.BatchCreateSessions, request)

    async def get(self, session: str) -> Session:
        """Returns one session, by id, by a prefix of it that is unique, or by name."""
        response = await call(self._stub.GetSession, session_service_pb2.GetSessionRequest(session=session))
        return self._session(response.session, response.position)

    async def list(
        self,
        *,
        filter: str = "",  # noqa: A002  # as in the contract
        order_by: str = "",
        show_ended: bool = False,
        full: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[Session, None]:
        """Sessions, newest first; `filter` is in the language of ListSessionsRequest.
        With `full` also their variables and scripts.
        """
        view = session_pb2.SESSION_VIEW_FULL if full else session_pb2.SESSION_VIEW_BASIC

        async def fetch(token: str, size: int) -> session_service_pb2.ListSessionsResponse:
            request = session_service_pb2.ListSessionsRequest(
                page_size=size, page_token=token, filter=filter, order_by=order_by, show_ended=show_ended, view=view
            )
            return await call(self._stub.ListSessions, request)

        def items(page: session_service_pb2.ListSessionsResponse) -> Iterable[Session]:
            return [self._session(session, page.position) for session in page.sessions]

        async for session in paged(fetch, items, limit):
            yield session

    async def graph(self, session: str) -> session_service_pb2.GetSessionGraphResponse:
        """Returns all sessions that hang together with one by dependencies."""
        return await call(self._stub.GetSessionGraph, session_service_pb2.GetSessionGraphRequest(session=session))

    async def terminate(self, session: str, *, etag: str = "", force: bool = False) -> Session:
        """Terminates a session; returns it as it is then, before it has ended."""
        request = session_service_pb2.TerminateSessionRequest(session=session, etag=etag, force=force)
        response = await call(self._stub.TerminateSession, request)
        return self._session(response.session, response.position)

    async def terminate_many(
        self, sessions: Iterable[str], *, force: bool = False
    ) -> session_service_pb2.BatchTerminateSessionsResponse:
        """Terminates any number of sessions, 10,000 at a time; `results` says in the same order what each is then, or
        why it was refused, which does not hinder the others.
        """
        every = list(sessions)
        answer = session_service_pb2.BatchTerminateSessionsResponse()
        for begin in range(0, len(every), MAX_AT_ONCE):
            request = session_service_pb2.BatchTerminateSessionsRequest(
                sessions=every[begin : begin + MAX_AT_ONCE], force=force
            )
            part = await call(self._stub.BatchTerminateSessions, request)
            answer.results.extend(part.results)
            if begin == 0:
                # Every end comes after the first of these.
                answer.position.CopyFrom(part.position)
        return answer

    async def restart(self, session: str, *, etag: str = "", force: bool = False, request_id: str = "") -> Session:
        """Puts a session back into the queue, to run again from its beginning; returns it as it is then.

        Sessions that depend on it wait for its new end. `request_id` is a UUID: the same one again answers the same.
        """
        request = session_service_pb2.RestartSessionRequest(
            session=session, etag=etag, force=force, request_id=request_id or str(uuid.uuid4())
        )
        response = await call(self._stub.RestartSession, request)
        return self._session(response.session, response.position)

    async def update(
        self,
        session: str,
        *,
        name: str | None = None,
        priority: int | None = None,
        hold: bool | None = None,
        etag: str = "",
        request_id: str = "",
    ) -> Session:
        """Changes a session and returns it as it is then: its name until it has ended,
        its priority and whether it is held while it is pending.

        A session with `hold` is not placed until that is taken away. With `etag`, only if the session still has that.
        `request_id` is a UUID: the same one again answers the same.
        """
        changes = {"name": name, "priority": priority, "hold": hold}
        request = session_service_pb2.UpdateSessionRequest(
            session=session,
            spec=session_pb2.SessionSpec(name=name or "", priority=priority, hold=hold or False),
            update_mask=FieldMask(paths=[field for field, value in changes.items() if value is not None]),
            etag=etag,
            request_id=request_id or str(uuid.uuid4()),
        )
        response = await call(self._stub.UpdateSession, request)
        return self._session(response.session, response.position)

    async def extend(self, session: str, duration: Span | None = None) -> Session:
        """Says that a session is still needed; with `duration`, that no idle check ends it before then.
        Returns it as it is then.
        """
        request = session_service_pb2.ExtendSessionRequest(session=session)
        if duration is not None:
            request.duration.CopyFrom(as_duration(duration))
        response = await call(self._stub.ExtendSession, request)
        return self._session(response.session, response.position)

    async def explain(self, session: str) -> session_service_pb2.ExplainSessionResponse:
        """Returns why a session waits."""
        return await call(self._stub.ExplainSession, session_service_pb2.ExplainSessionRequest(session=session))

    async def watch(
        self,
        *,
        after_revision: int | None = None,
        incarnation: str = "",
        session_id: str = "",
        until_ended: bool = False,
        filter: str = "",  # noqa: A002  # as in the contract
        min_interval: Span = 0.0,
    ) -> AsyncGenerator[session_pb2.SessionEvent, None]:
        """Yields events after a revision (default: from now on), in order, each once, over broken connections.

        `incarnation` is what came with the revision. Raises OutOfRange with reason `REVISION_COMPACTED` when the
        journal does not go back that far, and `REVISION_LOST` when the database was restored since that incarnation.
        `session_id` leaves out those of other sessions; with `until_ended` the stream ends with that session. `filter`
        is in the language of WatchSessionsRequest: it leaves out those of sessions that do not match. Those of a busy
        time come together, `min_interval` seconds apart, at most 1.
        """
        position = after_revision
        interval = as_duration(min_interval)

        def request() -> session_service_pb2.WatchSessionsRequest:
            after = None if position is None else JournalPosition(revision=position, incarnation=incarnation)
            return session_service_pb2.WatchSessionsRequest(
                after=after,
                session_id=session_id,
                until_ended=until_ended,
                filter=filter,
                min_interval=interval,
            )

        stream = resumed(self._stub.WatchSessions, request, endless=not until_ended, retry_budget=self._retry_budget)
        async with aclosing(stream) as responses:
            async for response in responses:
                incarnation = response.position.incarnation
                for event in response.events:
                    if position is not None and event.revision <= position:
                        continue
                    position = event.revision
                    yield event
                position = max(position or 0, response.position.revision)

    async def history(self, session: str) -> Sequence[session_pb2.SessionEvent]:
        """Returns what happened to a session until now, oldest first, as far as the journal goes back."""
        found = await self.get(session)
        # With a filter the stream says up to where it has gone, also past what happens to other sessions.
        request = session_service_pb2.WatchSessionsRequest(after=JournalPosition(), filter=f'id = "{found.id}"')
        events: list[session_pb2.SessionEvent] = []

        def after() -> session_service_pb2.WatchSessionsRequest:
            if events:
                request.after.revision = events[-1].revision
            return request

        stream = resumed(self._stub.WatchSessions, after, endless=True, retry_budget=self._retry_budget)
        async with aclosing(stream) as responses:
            async for response in responses:
                events += response.events
                if response.position.revision >= found.revision:
                    break
        return events

    def logs(
        self,
        session: str,
        hostname: str = "",
        *,
        all_kernels: bool = False,
        offset: int = 0,
        follow: bool = False,
        since: dt.datetime | None = None,
        tail: int = 0,
        attempt: int = 0,
    ) -> AsyncGenerator[LogChunk, None]:
        """Yields output of one kernel (default `main1`) from `offset`, or of all;
        `follow` continues until they have ended.

        `since` (with a time zone) leaves out what was printed before, up to a few seconds; `tail` all but so many last
        lines of each kernel. `attempt` is its number, by default that of the newest.
        """
        return stream_logs(
            self._kernels,
            session,
            hostname=hostname,
            all_kernels=all_kernels,
            offset=offset,
            follow=follow,
            since=since,
            tail=tail,
            attempt=attempt,
            retry_budget=self._retry_budget,
        )

    async def stats(
        self, session: str = "", hostname: str = "", *, interval: Span = 2.0
    ) -> AsyncGenerator[kernel_service_pb2.StreamStatsResponse, None]:
        """Yields the usage of running kernels, of one session until it has ended,
        or of all that the caller may read; every `interval` seconds.
        """
        request = kernel_service_pb2.StreamStatsRequest(session=session, hostname=hostname)
        request.interval.CopyFrom(as_duration(interval))
        responses = resumed(
            self._kernels.StreamStats, lambda: request, endless=not session, retry_budget=self._retry_budget
        )
        async with aclosing(responses):
            async for response in responses:
                yield response

    async def usage_samples(
        self,
        session: str,
        hostname: str = "",
        *,
        since: dt.datetime | None = None,
        interval: Span | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[kernel_service_pb2.KernelUsageSamples, None]:
        """Yields the kernels of a session, or one of them, each with what it has used over the last hour:
        a sample of every 10 s, or of every `interval`, from `since` (with a time zone) on.
        """
        request = kernel_service_pb2.ListUsageSamplesRequest(session=session, hostname=hostname)
        if since is not None:
            request.since_time.FromDatetime(since)
        if interval is not None:
            request.interval.CopyFrom(as_duration(interval))

        async def fetch(token: str, size: int) -> kernel_service_pb2.ListUsageSamplesResponse:
            request.page_token, request.page_size = token, size
            return await call(self._kernels.ListUsageSamples, request)

        async for kernel in paged(fetch, lambda page: page.kernels, limit):
            yield kernel

    def attach(
        self,
        session: str,
        command: Sequence[str] = (),
        hostname: str = "",
        *,
        terminal: tuple[int, int] | None = None,
        environment: Mapping[str, str] | None = None,
        working_directory: str = "",
        keep_processes: bool = False,
        detached: bool = False,
    ) -> Attachment:
        """Attaches to a new command (default: a shell) in a running kernel (default `main1`);
        with `terminal`, on one of so many rows and columns.

        It runs while the block of `async with` lasts; processes that it leaves behind live on with `keep_processes`.
        With `detached` it runs apart, as long as the kernel, without input and output.
        """
        start = attach_start(
            session,
            hostname,
            command,
            terminal=terminal,
            environment=environment,
            working_directory=working_directory,
            keep_processes=keep_processes,
            detached=detached,
        )
        return Attachment(self._kernels, start)

    def open_port(self, session: str, port: str | int, hostname: str = "", *, direct: bool = False) -> PortConnection:
        """Opens a connection to a port of `main1`, by its name or number; open while the block of `async with` lasts.

        `hostname` is for other kernels of system sessions.
        """
        from retinue.client.kernel.port import PortConnection, open_port_method  # noqa: PLC0415  # few programs need it

        return PortConnection(open_port_method(self._channel), session, str(port), hostname, direct=direct)

    async def create_ssh_certificate(
        self, session: str, public_key: str, *, ttl: Span | None = None
    ) -> kernel_service_pb2.CreateSshCertificateResponse:
        """Certifies a public key, a line of OpenSSH's format, for the SFTP servers of a system session,
        by default for an hour.
        """
        request = kernel_service_pb2.CreateSshCertificateRequest(session=session, public_key=public_key)
        if ttl is not None:
            request.ttl.CopyFrom(as_duration(ttl))
        return await call(self._kernels.CreateSshCertificate, request)

    async def create_port_tunnel(self, session: str, port: str | int) -> kernel_service_pb2.CreatePortTunnelResponse:
        """Opens a tunnel to a port through the manager's gateway, for programs that connect to it by TLS."""
        request = kernel_service_pb2.CreatePortTunnelRequest(session=session, port=str(port))
        return await call(self._kernels.CreatePortTunnel, request)

    async def create_port_ticket(
        self, session: str, port: str | int, path: str = "/"
    ) -> kernel_service_pb2.CreatePortTicketResponse:
        """Creates a link by which a browser begins to use a port of `main1` over HTTP, at a path;
        good once, for a minute.
        """
        request = kernel_service_pb2.CreatePortTicketRequest(session=session, port=str(port), path=path)
        return await call(self._kernels.CreatePortTicket, request)

    def code(self, session: str, language: str = "") -> Code:
        """Runs of code in `main1` of an interactive session, in a language it has a Jupyter
        kernel for (default `python`).
        """
        from retinue.client.kernel.code import Code  # noqa: PLC0415  # few programs need it

        return Code(self._kernels, session, language)

    def files(self, session: str, hostname: str = "") -> Files:
        """Returns the files in the work directory of a running kernel (default `main1`)."""
        from retinue.client.kernel.files import Files  # noqa: PLC0415  # few programs need it
        from retinue.client.kernel.port import open_port_method  # noqa: PLC0415  # the same

        endpoint = self._channel.endpoint if isinstance(self._channel, LazyChannel) else ""
        return Files(
            self._kernels,
            session,
            hostname,
            self._retry_budget,
            open_port=open_port_method(self._channel),
            endpoint=endpoint,
        )

    async def start_app(
        self, session: str, app: str, arguments: Sequence[str] = (), *, environment: Mapping[str, str] | None = None
    ) -> app_pb2.AppStatus:
        """Starts the program of an app in `main1`, unless it runs; waits up to 20 s for it to answer.
        May be repeated.
        """
        request = app_service_pb2.StartAppRequest(
            session=session, app=app, arguments=arguments, environment=environment or {}
        )
        return (await call(self._apps.StartApp, request)).status

    async def app(self, session: str, app: str) -> app_pb2.AppStatus:
        """Returns whether the program of an app runs, and its last output."""
        request = app_service_pb2.GetAppRequest(session=session, app=app)
        return (await call(self._apps.GetApp, request)).status

    async def stop_app(self, session: str, app: str, *, grace: Span | None = None) -> app_pb2.AppStatus:
        """Ends the program of an app, if it runs: asks it to, and kills it after `grace` seconds, by default 10.
        May be repeated.
        """
        request = app_service_pb2.StopAppRequest(session=session, app=app)
        if grace is not None:
            request.grace.CopyFrom(as_duration(grace))
        return (await call(self._apps.StopApp, request)).status

    async def follow(self, session: Session) -> AsyncGenerator[tuple[session_pb2.Session, int], None]:
        """Yields a session after each of its events, with the event's revision, until it has ended.

        When the journal no longer goes back to what was last seen, or the database was restored, the session is read
        again and followed from there.
        """
        view, revision = session.view, session.revision
        while True:
            try:
                async with aclosing(self._events(view.id, revision, session.incarnation)) as events:
                    async for event in events:
                        view, revision = fold(view, event) or view, event.revision
                        yield view, revision
                        if enum_names.is_ended(view):
                            return
            except OutOfRange as error:
                if error.reason not in _READ_AGAIN:
                    raise
            # Compacted, or over before what was last seen: what counts is how it is now.
            await asyncio.sleep(self._retry_budget.first)
            fresh = await self.get(view.id)
            view, revision, session.incarnation = fresh.view, fresh.revision, fresh.incarnation
            yield view, revision
            if enum_names.is_ended(view):
                return

    async def _events(
        self, session_id: str, revision: int, incarnation: str
    ) -> AsyncGenerator[session_pb2.SessionEvent, None]:
        """Yields the events of a session after a revision. A few sessions have a stream each;
        more of them share one of all sessions.
        """
        if self._own_streams >= OWN_STREAMS and revision and self._shared.covers(revision, incarnation):
            async with aclosing(self._shared.events(session_id, revision, incarnation)) as shared:
                async for event in shared:
                    yield event
            return
        own = self.watch(after_revision=revision, incarnation=incarnation, session_id=session_id, until_ended=True)
        self._own_streams += 1
        try:
            async with aclosing(own):
                async for event in own:
                    yield event
        finally:
            self._own_streams -= 1
