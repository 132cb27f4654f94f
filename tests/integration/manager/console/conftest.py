"""A console over TLS behind a gateway, without agents."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest_asyncio

from retinue.manager.agent_rpc.relay import Forwarder
from retinue.manager.console.core.address import ConsoleAddress
from retinue.manager.console.serving import Console
from retinue.manager.daemon import agent_dialer
from retinue.manager.gateway.serving import Gateway
from retinue.manager.gateway.settings import GatewaySettings
from retinue.manager.identity.authority import Authority
from retinue.manager.server.authentication import Authenticator
from retinue.manager.server.calls import Browsers
from tests.integration.manager.console.page import Page
from tests.integration.manager.rig import Service, now, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import grpc.aio

DOMAIN = "apps.example.org"


@dataclass(frozen=True, slots=True)
class Served:
    """A manager with a console, the folder of its files, and the channels that it has made to the API."""

    service: Service
    gateway: Gateway
    static: Path
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    def page(self) -> Page:
        """A page that is not logged in, at an address of its own."""
        return Page(self.gateway.address.console_origin, self.service.authority.certificate)

    async def logged_in(self, token: str) -> Page:
        """A page that is logged in by a token."""
        page = self.page()
        answer = await page.log_in(token=token)
        assert answer.status == 204, answer
        return page


@pytest_asyncio.fixture(loop_scope="session")
async def console(database_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    static = tmp_path / "static"
    static.mkdir()
    gateway = Gateway(GatewaySettings("127.0.0.1:0", DOMAIN), Authority.load(tmp_path, now))
    origin = gateway.address.console_origin
    browsers = Browsers()
    async with served(database_url, tmp_path, console_origin=origin, browsers=browsers) as service:
        authenticator = Authenticator(service.database, monotonic=time.monotonic, clock=now)
        found = Served(service, gateway, static)

        def connect() -> grpc.aio.Channel:
            found.channels.append(service.channel())
            return found.channels[-1]

        made = Console(
            ConsoleAddress(origin), service.database, authenticator, connect, service.auditor, browsers, static
        )
        forwarder = Forwarder(agent_dialer(service.authority))
        group = asyncio.TaskGroup()
        async with (
            made.serving() as connected,
            group,
            gateway.serving(
                group, service.database, service.tail, forwarder, tmp_path, connected, service.auditor.deny
            ),
        ):
            yield found
