"""Connects to a manager; the entry point of the library."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self, Unpack

from retinue.client.accounts import IdleOverrides, Projects, SshKeys, Tokens, Users
from retinue.client.channel import open_channel
from retinue.client.completed import Completed, run_to_completion
from retinue.client.endpoints import Endpoints
from retinue.client.fleet import Agents, ResourceGroups, Routers
from retinue.client.quotas import Quotas
from retinue.client.sessions import Sessions
from retinue.client.settings import Settings, read_ca, resolve
from retinue.client.templates import Templates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    import grpc.aio

    from retinue.client.backoff import RetryBudget
    from retinue.client.logs import LogChunk
    from retinue.client.spec import SessionOptions


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
        self.sessions = Sessions(channel, retry_budget)
        self.templates = Templates(channel)
        self.endpoints = Endpoints(channel, retry_budget)
        self.agents = Agents(channel)
        self.routers = Routers(channel)
        self.resource_groups = ResourceGroups(channel)
        self.projects = Projects(channel)
        self.users = Users(channel)
        self.tokens = Tokens(channel)
        self.ssh_keys = SshKeys(channel)
        self.quotas = Quotas(channel)
        self.idle_overrides = IdleOverrides(channel)

    @classmethod
    def connect(
        cls,
        endpoint: str,
        *,
        token: str | None = None,
        ca: str | bytes | os.PathLike[str] | None = None,
        retry_budget: RetryBudget | None = None,
    ) -> Self:
        """Returns a client of the manager at `HOST:PORT`; the first call connects.

        `ca` is the CA that signed the manager's certificate: PEM, or the path of a PEM file; None trusts the machine's
        usual CAs. Raises UsageError.
        """
        return cls(open_channel(endpoint, token, read_ca(ca)), retry_budget=retry_budget)

    @classmethod
    def from_settings(cls, settings: Settings | None = None, *, retry_budget: RetryBudget | None = None) -> Self:
        """Returns a client by settings; by default those of the environment and of the current context.
        Raises UsageError.
        """
        settings = settings or resolve(os.environ)
        return cls.connect(settings.endpoint, token=settings.token, ca=settings.ca, retry_budget=retry_budget)

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
        """Returns the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the connection."""
        await self.close()
