"""Connects to a manager; the entry point of the library."""

from __future__ import annotations

import math
import os
from functools import cached_property
from typing import TYPE_CHECKING, Self, Unpack

from retinue.client.completed import Completed, run_to_completion
from retinue.client.errors import UsageError
from retinue.client.sessions import Sessions
from retinue.client.settings import Settings, read_ca, resolve
from retinue.client.transport.backoff import RetryBudget
from retinue.client.transport.channel import open_channel
from retinue.client.transport.lazy_channel import running_loop
from retinue.client.words import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    import grpc.aio

    from retinue.client.admin.accounts import Audit, IdleOverrides, Projects, SshKeys, Tokens, Users
    from retinue.client.admin.fleet import Agents, ResourceGroups, Routers
    from retinue.client.admin.quotas import Quotas
    from retinue.client.admin.templates import Templates
    from retinue.client.endpoints import Endpoints
    from retinue.client.logs import LogChunk
    from retinue.client.spec import SessionOptions
    from retinue.client.words import Span


class Client:
    """A connection to a manager; one serves any number of tasks of one event loop.

    async with Client.connect("127.0.0.1:7440", token=token, ca="ca.pem") as client:
        session = await client.sessions.create(type="batch", command=["echo", "hello"])
        async for chunk in session.logs(follow=True):
            print(chunk.data.decode(), end="")
        await session.wait_ended()
    """

    def __init__(self, channel: grpc.aio.Channel, *, retry_budget: RetryBudget | None = None) -> None:
        """Takes over an open channel; `retry_budget` bounds how long broken streams are tried again."""
        self._channel = channel
        self._retry_budget = retry_budget
        self.sessions: Sessions = Sessions(channel, retry_budget)

    @cached_property
    def templates(self) -> Templates:
        """Templates of sessions."""
        from retinue.client.admin.templates import Templates  # noqa: PLC0415  # few programs need it

        return Templates(self._channel)

    @cached_property
    def endpoints(self) -> Endpoints:
        """Inference endpoints."""
        from retinue.client.endpoints import Endpoints  # noqa: PLC0415  # few programs need it

        return Endpoints(self._channel, self._retry_budget)

    @cached_property
    def agents(self) -> Agents:
        """Agents of the cluster."""
        from retinue.client.admin.fleet import Agents  # noqa: PLC0415  # few programs need it

        return Agents(self._channel)

    @cached_property
    def routers(self) -> Routers:
        """Routers of endpoints."""
        from retinue.client.admin.fleet import Routers  # noqa: PLC0415  # few programs need it

        return Routers(self._channel)

    @cached_property
    def resource_groups(self) -> ResourceGroups:
        """Resource groups."""
        from retinue.client.admin.fleet import ResourceGroups  # noqa: PLC0415  # few programs need it

        return ResourceGroups(self._channel)

    @cached_property
    def projects(self) -> Projects:
        """Projects."""
        from retinue.client.admin.accounts import Projects  # noqa: PLC0415  # few programs need it

        return Projects(self._channel)

    @cached_property
    def users(self) -> Users:
        """Users."""
        from retinue.client.admin.accounts import Users  # noqa: PLC0415  # few programs need it

        return Users(self._channel)

    @cached_property
    def tokens(self) -> Tokens:
        """Tokens of users."""
        from retinue.client.admin.accounts import Tokens  # noqa: PLC0415  # few programs need it

        return Tokens(self._channel)

    @cached_property
    def ssh_keys(self) -> SshKeys:
        """Public keys of users."""
        from retinue.client.admin.accounts import SshKeys  # noqa: PLC0415  # few programs need it

        return SshKeys(self._channel)

    @cached_property
    def quotas(self) -> Quotas:
        """Quotas of users and projects."""
        from retinue.client.admin.quotas import Quotas  # noqa: PLC0415  # few programs need it

        return Quotas(self._channel)

    @cached_property
    def idle_overrides(self) -> IdleOverrides:
        """Exceptions from idle policies."""
        from retinue.client.admin.accounts import IdleOverrides  # noqa: PLC0415  # few programs need it

        return IdleOverrides(self._channel)

    @cached_property
    def audit(self) -> Audit:
        """What administrators did, what was done with accounts, and what was denied."""
        from retinue.client.admin.accounts import Audit  # noqa: PLC0415  # few programs need it

        return Audit(self._channel)

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
        seconds = None if timeout is None else seconds_of(timeout)
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsageError(f"timeout must be more than 0 seconds, and is {seconds:g}; the default is 30 s")
        if seconds is not None and retry_budget is None:
            retry_budget = RetryBudget(total=seconds)
        return cls(open_channel(endpoint, token, read_ca(ca), seconds), retry_budget=retry_budget)

    @classmethod
    def from_settings(
        cls,
        settings: Settings | None = None,
        *,
        timeout: Span | None = None,
        retry_budget: RetryBudget | None = None,
    ) -> Self:
        """Returns a client by settings; by default those of the environment and of the current context.
        `timeout` and `retry_budget` are those of `connect`. Raises UsageError.
        """
        settings = settings or resolve(os.environ)
        return cls.connect(
            settings.endpoint, token=settings.token, ca=settings.ca, timeout=timeout, retry_budget=retry_budget
        )

    async def run(
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
        return await run_to_completion(self.sessions, command, output, options)

    async def close(self) -> None:
        """Closes the connection; calls in progress are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        """Returns the client itself. Raises UsageError where no event loop of asyncio runs."""
        running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the connection."""
        await self.close()
