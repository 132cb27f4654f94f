"""The form of `retinue.client.sessions` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client import sessions as aio_sessions
from retinue.client.blocking import iterate, run
from retinue.client.sync.attachment import Attachment
from retinue.client.sync.code import Code
from retinue.client.sync.files import Files
from retinue.client.sync.port import PortConnection

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TYPE_CHECKING, Unpack

    from retinue.client.logs import LogChunk
    from retinue.client.spec import SessionOptions
    from retinue.client.words import SessionResult, SessionState, Span
    from retinue.manager.v1 import (
        kernel_service_pb2,
        session_pb2,
        session_service_pb2,
    )
    from retinue.types.v1 import app_pb2


class Session:
    """A session as last seen (`view`, at journal position `revision`), and what can be done with it."""

    def __init__(self, asynchronous: aio_sessions.Session) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    @property
    def view(self) -> session_pb2.Session:
        """Returns the `view` of the asynchronous form."""
        return self._asynchronous.view

    @property
    def revision(self) -> int:
        """Returns the `revision` of the asynchronous form."""
        return self._asynchronous.revision

    @property
    def incarnation(self) -> str:
        """Returns the `incarnation` of the asynchronous form."""
        return self._asynchronous.incarnation

    def __repr__(self) -> str:
        """Returns a text for people."""
        return repr(self._asynchronous)

    def _repr_html_(self) -> str:
        """Returns what a notebook shows."""
        return self._asynchronous._repr_html_()

    @property
    def id(self) -> str:
        """Returns its UUID."""
        return self._asynchronous.id

    @property
    def number(self) -> int:
        """Returns its number, unique in the cluster."""
        return self._asynchronous.number

    @property
    def name(self) -> str:
        """Returns its name."""
        return self._asynchronous.name

    @property
    def state(self) -> SessionState:
        """Returns its state as a word, for instance `RUNNING`."""
        return self._asynchronous.state

    @property
    def result(self) -> SessionResult:
        """Returns `UNDEFINED`, `SUCCESS` or `FAILED`."""
        return self._asynchronous.result

    @property
    def exit_code(self) -> int | None:
        """Returns the exit code of `main1`; None before it has exited."""
        return self._asynchronous.exit_code

    @property
    def kernels(self) -> Sequence[session_pb2.Kernel]:
        """Returns its kernels, `main1` first."""
        return self._asynchronous.kernels

    @property
    def is_ended(self) -> bool:
        """Returns True once it has ended."""
        return self._asynchronous.is_ended

    def refresh(self) -> Session:
        """Asks the server how it is now."""
        return Session(run(self._asynchronous.refresh()))

    def progress(self) -> Iterator[Session]:
        """Yields itself now and after each event, until it has ended; skips no event."""
        return map(Session, iterate(self._asynchronous.progress()))

    def wait(self, *states: SessionState, timeout: Span | None = None) -> Session:
        """Waits until it is, or has been since last seen, in one of `states`.

        Raises SessionEnded when it ended without that, and WaitTimeout after `timeout`.
        """
        return Session(run(self._asynchronous.wait(*states, timeout=timeout)))

    def wait_ended(self, timeout: Span | None = None) -> Session:
        """Waits until it has ended. Raises WaitTimeout after `timeout`."""
        return Session(run(self._asynchronous.wait_ended(timeout)))

    def logs(
        self,
        hostname: str = "",
        *,
        all_kernels: bool = False,
        offset: int = 0,
        follow: bool = False,
        since: dt.datetime | None = None,
        tail: int = 0,
    ) -> Iterator[LogChunk]:
        """Yields output of one kernel (default `main1`), or of all; see `Sessions.logs`."""
        return iterate(
            self._asynchronous.logs(
                hostname, all_kernels=all_kernels, offset=offset, follow=follow, since=since, tail=tail
            )
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
        return Attachment(
            self._asynchronous.attach(
                command,
                hostname,
                terminal=terminal,
                environment=environment,
                working_directory=working_directory,
                keep_processes=keep_processes,
                detached=detached,
            )
        )

    def open_port(self, port: str | int, hostname: str = "", *, direct: bool = False) -> PortConnection:
        """Opens a connection to a port of `main1`; see `Sessions.open_port`."""
        return PortConnection(self._asynchronous.open_port(port, hostname, direct=direct))

    def create_ssh_certificate(self, public_key: str) -> kernel_service_pb2.CreateSshCertificateResponse:
        """Certifies a public key for the SFTP servers of a system session; see `Sessions.create_ssh_certificate`."""
        return run(self._asynchronous.create_ssh_certificate(public_key))

    def create_port_tunnel(self, port: str | int) -> kernel_service_pb2.CreatePortTunnelResponse:
        """Opens a tunnel to a port through the manager's gateway; see `Sessions.create_port_tunnel`."""
        return run(self._asynchronous.create_port_tunnel(port))

    def create_port_ticket(self, port: str | int, path: str = "/") -> kernel_service_pb2.CreatePortTicketResponse:
        """Creates a link by which a browser begins to use a port over HTTP; see `Sessions.create_port_ticket`."""
        return run(self._asynchronous.create_port_ticket(port, path))

    def code(self, language: str = "") -> Code:
        """Runs of code in `main1`; see `Sessions.code`."""
        return Code(self._asynchronous.code(language))

    def files(self, hostname: str = "") -> Files:
        """Returns the files in the work directory of one kernel (default `main1`)."""
        return Files(self._asynchronous.files(hostname))

    def start_app(
        self, app: str, arguments: Sequence[str] = (), *, environment: Mapping[str, str] | None = None
    ) -> app_pb2.AppStatus:
        """Starts the program of an app, unless it runs; see `Sessions.start_app`."""
        return run(self._asynchronous.start_app(app, arguments, environment=environment))

    def app(self, app: str) -> app_pb2.AppStatus:
        """Returns whether the program of an app runs, and its last output."""
        return run(self._asynchronous.app(app))

    def stop_app(self, app: str, *, grace: Span | None = None) -> app_pb2.AppStatus:
        """Ends the program of an app; see `Sessions.stop_app`."""
        return run(self._asynchronous.stop_app(app, grace=grace))

    def terminate(self, *, force: bool = False) -> Session:
        """Ends it; returns itself as it is then, before its kernels are gone. `force` kills without grace."""
        return Session(run(self._asynchronous.terminate(force=force)))

    def restart(self, *, force: bool = False) -> Session:
        """Runs it again from its beginning; see `Sessions.restart`. Returns itself as it is then."""
        return Session(run(self._asynchronous.restart(force=force)))

    def update(self, *, name: str | None = None, priority: int | None = None, hold: bool | None = None) -> Session:
        """Changes its name, its priority or its hold; see `Sessions.update`. Returns itself as it is then."""
        return Session(run(self._asynchronous.update(name=name, priority=priority, hold=hold)))

    def extend(self, duration: Span | None = None) -> Session:
        """Says that it is still needed; with `duration`, that no idle check ends it before then.
        Returns itself as it is then.
        """
        return Session(run(self._asynchronous.extend(duration)))

    def explain(self) -> session_service_pb2.ExplainSessionResponse:
        """Returns why the session waits."""
        return run(self._asynchronous.explain())


class Sessions:
    """The sessions that the caller may read. All methods raise CallError."""

    def __init__(self, asynchronous: aio_sessions.Sessions) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def create(
        self, *, request_id: str = "", validate_only: bool = False, **options: Unpack[SessionOptions]
    ) -> Session:
        """Asks for a session, with the options of `retinue.client.spec.SessionOptions`; returns while it is still
        pending.

        `request_id` is a UUID: the same one again answers with the same session. `validate_only` only checks.
        """
        return Session(run(self._asynchronous.create(request_id=request_id, validate_only=validate_only, **options)))

    def create_from(
        self, spec: session_pb2.SessionSpec, *, request_id: str = "", validate_only: bool = False
    ) -> Session:
        """Does the same as `create`, from a message."""
        return Session(run(self._asynchronous.create_from(spec, request_id=request_id, validate_only=validate_only)))

    def check(self, **options: Unpack[SessionOptions]) -> session_service_pb2.PlacementPreview:
        """Returns where a session would be placed now, or why it would wait; creates nothing."""
        return run(self._asynchronous.check(**options))

    def check_from(self, spec: session_pb2.SessionSpec) -> session_service_pb2.CreateSessionResponse:
        """Does the same as `check`, from a message; the answer also has the session as it would be accepted."""
        return run(self._asynchronous.check_from(spec))

    def create_many(
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
        return run(
            self._asynchronous.create_many(
                specs, request_id=request_id, validate_only=validate_only, all_or_nothing=all_or_nothing
            )
        )

    def create_array(
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
        return run(
            self._asynchronous.create_array(
                array, request_id=request_id, validate_only=validate_only, all_or_nothing=all_or_nothing
            )
        )

    def get(self, session: str) -> Session:
        """Returns one session, by id, by a prefix of it that is unique, or by name."""
        return Session(run(self._asynchronous.get(session)))

    def list(
        self,
        *,
        filter: str = "",
        order_by: str = "",
        show_ended: bool = False,
        full: bool = False,
        limit: int | None = None,
    ) -> Iterator[Session]:
        """Sessions, newest first; `filter` is in the language of ListSessionsRequest.
        With `full` also their variables and scripts.
        """
        return map(
            Session,
            iterate(
                self._asynchronous.list(filter=filter, order_by=order_by, show_ended=show_ended, full=full, limit=limit)
            ),
        )

    def graph(self, session: str) -> session_service_pb2.GetSessionGraphResponse:
        """Returns all sessions that hang together with one by dependencies."""
        return run(self._asynchronous.graph(session))

    def terminate(self, session: str, *, etag: str = "", force: bool = False) -> Session:
        """Terminates a session; returns it as it is then, before it has ended."""
        return Session(run(self._asynchronous.terminate(session, etag=etag, force=force)))

    def terminate_many(
        self, sessions: Iterable[str], *, force: bool = False
    ) -> session_service_pb2.BatchTerminateSessionsResponse:
        """Terminates any number of sessions, 10,000 at a time; `results` says in the same order what each is then, or
        why it was refused, which does not hinder the others.
        """
        return run(self._asynchronous.terminate_many(sessions, force=force))

    def restart(self, session: str, *, etag: str = "", force: bool = False, request_id: str = "") -> Session:
        """Puts a session back into the queue, to run again from its beginning; returns it as it is then.

        Sessions that depend on it wait for its new end. `request_id` is a UUID: the same one again answers the same.
        """
        return Session(run(self._asynchronous.restart(session, etag=etag, force=force, request_id=request_id)))

    def update(
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
        return Session(
            run(
                self._asynchronous.update(
                    session, name=name, priority=priority, hold=hold, etag=etag, request_id=request_id
                )
            )
        )

    def extend(self, session: str, duration: Span | None = None) -> Session:
        """Says that a session is still needed; with `duration`, that no idle check ends it before then.
        Returns it as it is then.
        """
        return Session(run(self._asynchronous.extend(session, duration)))

    def explain(self, session: str) -> session_service_pb2.ExplainSessionResponse:
        """Returns why a session waits."""
        return run(self._asynchronous.explain(session))

    def watch(
        self,
        *,
        after_revision: int | None = None,
        incarnation: str = "",
        session_id: str = "",
        until_ended: bool = False,
        filter: str = "",
        min_interval: Span = 0.0,
    ) -> Iterator[session_pb2.SessionEvent]:
        """Yields events after a revision (default: from now on), in order, each once, over broken connections.

        `incarnation` is what came with the revision. Raises OutOfRange with reason `REVISION_COMPACTED` when the
        journal does not go back that far, and `REVISION_LOST` when the database was restored since that incarnation.
        `session_id` leaves out those of other sessions; with `until_ended` the stream ends with that session. `filter`
        is in the language of WatchSessionsRequest: it leaves out those of sessions that do not match. Those of a busy
        time come together, `min_interval` seconds apart, at most 1.
        """
        return iterate(
            self._asynchronous.watch(
                after_revision=after_revision,
                incarnation=incarnation,
                session_id=session_id,
                until_ended=until_ended,
                filter=filter,
                min_interval=min_interval,
            )
        )

    def history(self, session: str) -> Sequence[session_pb2.SessionEvent]:
        """Returns what happened to a session until now, oldest first, as far as the journal goes back."""
        return run(self._asynchronous.history(session))

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
        epoch: int = 0,
    ) -> Iterator[LogChunk]:
        """Yields output of one kernel (default `main1`) from `offset`, or of all;
        `follow` continues until they have ended.

        `since` (with a time zone) leaves out what was printed before, up to a few seconds; `tail` all but so many last
        lines of each kernel. `epoch` is the number of the try, by default the newest.
        """
        return iterate(
            self._asynchronous.logs(
                session,
                hostname,
                all_kernels=all_kernels,
                offset=offset,
                follow=follow,
                since=since,
                tail=tail,
                epoch=epoch,
            )
        )

    def stats(
        self, session: str = "", hostname: str = "", *, interval: Span = 2.0
    ) -> Iterator[kernel_service_pb2.StreamStatsResponse]:
        """Yields the usage of running kernels, of one session until it has ended,
        or of all that the caller may read; every `interval` seconds.
        """
        return iterate(self._asynchronous.stats(session, hostname, interval=interval))

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
        return Attachment(
            self._asynchronous.attach(
                session,
                command,
                hostname,
                terminal=terminal,
                environment=environment,
                working_directory=working_directory,
                keep_processes=keep_processes,
                detached=detached,
            )
        )

    def open_port(self, session: str, port: str | int, hostname: str = "", *, direct: bool = False) -> PortConnection:
        """Opens a connection to a port of `main1`, by its name or number; open while the block of `async with` lasts.

        `hostname` is for other kernels of system sessions.
        """
        return PortConnection(self._asynchronous.open_port(session, port, hostname, direct=direct))

    def create_ssh_certificate(
        self, session: str, public_key: str, *, ttl: Span | None = None
    ) -> kernel_service_pb2.CreateSshCertificateResponse:
        """Certifies a public key, a line of OpenSSH's format, for the SFTP servers of a system session,
        by default for an hour.
        """
        return run(self._asynchronous.create_ssh_certificate(session, public_key, ttl=ttl))

    def create_port_tunnel(self, session: str, port: str | int) -> kernel_service_pb2.CreatePortTunnelResponse:
        """Opens a tunnel to a port through the manager's gateway, for programs that connect to it by TLS."""
        return run(self._asynchronous.create_port_tunnel(session, port))

    def create_port_ticket(
        self, session: str, port: str | int, path: str = "/"
    ) -> kernel_service_pb2.CreatePortTicketResponse:
        """Creates a link by which a browser begins to use a port of `main1` over HTTP, at a path;
        good once, for a minute.
        """
        return run(self._asynchronous.create_port_ticket(session, port, path))

    def code(self, session: str, language: str = "") -> Code:
        """Runs of code in `main1` of an interactive session, in a language it has a Jupyter
        kernel for (default `python`).
        """
        return Code(self._asynchronous.code(session, language))

    def files(self, session: str, hostname: str = "") -> Files:
        """Returns the files in the work directory of a running kernel (default `main1`)."""
        return Files(self._asynchronous.files(session, hostname))

    def start_app(
        self, session: str, app: str, arguments: Sequence[str] = (), *, environment: Mapping[str, str] | None = None
    ) -> app_pb2.AppStatus:
        """Starts the program of an app in `main1`, unless it runs; waits up to 20 s for it to answer.
        May be repeated.
        """
        return run(self._asynchronous.start_app(session, app, arguments, environment=environment))

    def app(self, session: str, app: str) -> app_pb2.AppStatus:
        """Returns whether the program of an app runs, and its last output."""
        return run(self._asynchronous.app(session, app))

    def stop_app(self, session: str, app: str, *, grace: Span | None = None) -> app_pb2.AppStatus:
        """Ends the program of an app, if it runs: asks it to, and kills it after `grace` seconds, by default 10.
        May be repeated.
        """
        return run(self._asynchronous.stop_app(session, app, grace=grace))
