"""The form of `retinue.client.client` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from retinue.client import client as aio_client
from retinue.client.blocking import run
from retinue.client.sync.accounts import Audit, IdleOverrides, Projects, SshKeys, Tokens, Users
from retinue.client.sync.endpoints import Endpoints
from retinue.client.sync.fleet import Agents, ResourceGroups, Routers
from retinue.client.sync.quotas import Quotas
from retinue.client.sync.sessions import Sessions
from retinue.client.sync.templates import Templates

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import TYPE_CHECKING, Self, Unpack

    from retinue.client.completed import Completed
    from retinue.client.logs import LogChunk
    from retinue.client.settings import Settings
    from retinue.client.spec import SessionOptions
    from retinue.client.transport.backoff import RetryBudget
    from retinue.client.words import Span


class Client:
    """A connection to a manager; one serves any number of tasks of one event loop.

    with Client.connect("127.0.0.1:7440", token=token, ca="ca.pem") as client:
        session = client.sessions.create(type="batch", command=["echo", "hello"])
        for chunk in session.logs(follow=True):
            print(chunk.data.decode(), end="")
        session.wait_ended()
    """

    def __init__(self, asynchronous: aio_client.Client) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous
        self.sessions: Sessions = Sessions(asynchronous.sessions)

    @cached_property
    def templates(self) -> Templates:
        """Templates of sessions."""
        return Templates(self._asynchronous.templates)

    @cached_property
    def endpoints(self) -> Endpoints:
        """Inference endpoints."""
        return Endpoints(self._asynchronous.endpoints)

    @cached_property
    def agents(self) -> Agents:
        """Agents of the cluster."""
        return Agents(self._asynchronous.agents)

    @cached_property
    def routers(self) -> Routers:
        """Routers of endpoints."""
        return Routers(self._asynchronous.routers)

    @cached_property
    def resource_groups(self) -> ResourceGroups:
        """Resource groups."""
        return ResourceGroups(self._asynchronous.resource_groups)

    @cached_property
    def projects(self) -> Projects:
        """Projects."""
        return Projects(self._asynchronous.projects)

    @cached_property
    def users(self) -> Users:
        """Users."""
        return Users(self._asynchronous.users)

    @cached_property
    def tokens(self) -> Tokens:
        """Tokens of users."""
        return Tokens(self._asynchronous.tokens)

    @cached_property
    def ssh_keys(self) -> SshKeys:
        """Public keys of users."""
        return SshKeys(self._asynchronous.ssh_keys)

    @cached_property
    def quotas(self) -> Quotas:
        """Quotas of users and projects."""
        return Quotas(self._asynchronous.quotas)

    @cached_property
    def idle_overrides(self) -> IdleOverrides:
        """Exceptions from idle policies."""
        return IdleOverrides(self._asynchronous.idle_overrides)

    @cached_property
    def audit(self) -> Audit:
        """What administrators did, what was done with accounts, and what was denied."""
        return Audit(self._asynchronous.audit)

    @classmethod
    def connect(
        cls,
        endpoint: str,
        *,
        token: str | None = None,
        ca: str | bytes | os.PathLike[str] | None = None,
        timeout: Span | None = None,
        retry_budget: RetryBudget | None = None,
    ) -> Self:
        """Returns a client of the manager at `HOST:PORT`; the first call connects.

        `ca` is the CA that signed the manager's certificate: PEM, or the path of a PEM file; None trusts the machine's
        usual CAs. `timeout` is how long a call may take, tries included, by default 30 s; given, it is also how long a
        manager may take to answer a stream that is opened, and a stream that breaks is tried again, by default 2 min.
        After that calls raise DeadlineExceeded or Unavailable. `retry_budget` is for streams only, and comes first.
        Raises UsageError.
        """
        return cls(aio_client.Client.connect(endpoint, token=token, ca=ca, timeout=timeout, retry_budget=retry_budget))

    @classmethod
    def from_settings(
        cls, settings: Settings | None = None, *, timeout: Span | None = None, retry_budget: RetryBudget | None = None
    ) -> Self:
        """Returns a client by settings; by default those of the environment and of the current context.
        `timeout` and `retry_budget` are those of `connect`. Raises UsageError.
        """
        return cls(aio_client.Client.from_settings(settings, timeout=timeout, retry_budget=retry_budget))

    def run(
        self,
        command: Sequence[str],
        /,
        *,
        output: Callable[[LogChunk], None] | None = None,
        **options: Unpack[SessionOptions],
    ) -> Completed:
        """Runs a command in a session, by default a batch session, and returns how it ended;
        a command that fails raises nothing.

        `output` is called with each piece of what `main1` prints, when it comes. `options` are those of
        `Sessions.create`. A caller that leaves before the end, by an interrupt or by an error, ends the session.
        Raises CallError, UsageError.
        """
        return run(self._asynchronous.run(command, output=output, **options))

    def close(self) -> None:
        """Closes the connection; calls in progress are cancelled."""
        run(self._asynchronous.close())

    def __enter__(self) -> Self:
        """Returns the client itself. Raises UsageError where no event loop of asyncio runs."""
        run(self._asynchronous.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the connection."""
        run(self._asynchronous.__aexit__(kind, error, traceback))
