"""The form of `retinue.client.session` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client import session as aio_session
from retinue.client.blocking import iterate, run
from retinue.client.sync.attachment import Attachment
from retinue.client.sync.code import Code
from retinue.client.sync.files import Files
from retinue.client.sync.port import PortConnection

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence
    from typing import TYPE_CHECKING

    from retinue.client.logs import LogChunk
    from retinue.client.words import SessionResult, SessionState, Span
    from retinue.manager.v1 import kernel_service_pb2, session_pb2, session_service_pb2
    from retinue.types.v1 import app_pb2


class Session:
    """A session as last seen (`view`, at journal position `revision`), and what can be done with it."""

    def __init__(self, asynchronous: aio_session.Session) -> None:
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
