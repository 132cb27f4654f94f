"""One session in the hands of a program."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from retinue.client import enum_names
from retinue.client.errors import SessionEnded, WaitTimeout
from retinue.client.notebooks import as_html
from retinue.client.words import seconds_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from retinue.client.kernel.attachment import Attachment
    from retinue.client.kernel.code import Code
    from retinue.client.kernel.files import Files
    from retinue.client.kernel.port import PortConnection
    from retinue.client.logs import LogChunk
    from retinue.client.sessions import Sessions
    from retinue.client.words import SessionResult, SessionState, Span
    from retinue.manager.v1 import kernel_service_pb2, session_pb2, session_service_pb2
    from retinue.types.v1 import app_pb2


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
