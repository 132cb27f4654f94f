"""Accesses that come and go: what the engine is sent, and how often."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest
from envoy.config.route.v3.route_pb2 import RouteConfiguration

from retinue.manager.gateway.core import resources
from retinue.manager.gateway.core.connections import access_name, kernel_name
from retinue.manager.gateway.core.rules import Address, Target
from retinue.manager.gateway.routes import Routes
from retinue.proxy.ads import CLUSTERS, LISTENERS, ROUTES, AdsServer

if TYPE_CHECKING:
    from collections.abc import Collection

    from google.protobuf.message import Message

pytestmark = pytest.mark.asyncio

TARGET = Target(uuid.UUID(int=7), 8080)


class Followed(AdsServer):
    """One whose engine follows at once; keeps what it has."""

    def __init__(self) -> None:
        super().__init__()
        self.has: dict[tuple[str, str], Message] = {}
        self.route_updates = 0

    def put(self, kind: str, name: str, message: Message) -> None:
        self.has[kind, name] = message
        self.route_updates += kind == ROUTES

    def remove(self, kind: str, name: str) -> None:
        del self.has[kind, name]

    async def settled(self, kind: str, resource_names: Collection[str]) -> None:
        return

    def routes(self) -> RouteConfiguration:
        """The routes that the engine has."""
        configuration = self.has[ROUTES, resources.ROUTES]
        assert isinstance(configuration, RouteConfiguration)
        return configuration

    def secrets(self) -> list[str]:
        """Those of the routes that the engine has, in their order."""
        return [
            header.string_match.contains
            for host in self.routes().virtual_hosts
            for route in host.routes
            for header in route.match.headers
            if header.name == "cookie" and header.string_match.contains
        ]


async def test_many_that_end_together_change_the_routes_once() -> None:
    ads = Followed()
    routes = Routes(ads, Address("localhost", 7442, secure=False))
    keys = [bytes([number]) * 32 for number in range(100)]
    for key in keys:
        name = await routes.grant(key, TARGET, f"rta_{key[0]}", "relay", ("192.0.2.7", 31_400))
        assert name == access_name(key)
    assert ads.secrets() == [f"rta_{key[0]}" for key in keys]
    before, ended = ads.route_updates, []
    for key in keys[1:]:
        routes.withdraw(key, lambda key=key: ended.append(key))  # type: ignore[misc]
    while len(ended) < len(keys) - 1:
        await asyncio.sleep(0)
    assert ads.route_updates == before + 1
    assert ads.secrets() == ["rta_0"]
    # The listener goes, and with it every connection.
    left = {(kind, name) for kind, name in ads.has if kind in (CLUSTERS, LISTENERS)}
    first = keys[0]
    assert left == {(CLUSTERS, access_name(first)), (CLUSTERS, kernel_name(first)), (LISTENERS, access_name(first))}


async def test_one_that_ended_has_no_route_whatever_comes_after() -> None:
    ads = Followed()
    routes = Routes(ads, Address("localhost", 7442, secure=False))
    one, other = b"1" * 32, b"2" * 32
    await routes.grant(one, TARGET, "rta_one", "relay", None)
    routes.withdraw(one, lambda: None)
    # Before the task that removes it has begun.
    await routes.grant(other, TARGET, "rta_other", "relay", None)
    assert ads.secrets() == ["rta_other"]


async def test_requests_for_the_console_pass_without_a_question() -> None:
    ads = Followed()
    Routes(ads, Address("apps.example.org", 443, secure=True), "socket")
    assert (CLUSTERS, "console") in ads.has
    console, others = ads.routes().virtual_hosts
    assert list(console.domains) == ["console.apps.example.org", "console.apps.example.org:443"]
    [route] = console.routes
    assert route.route.cluster == "console"
    # The cookie is the console's own, and reaches it.
    assert set(route.typed_per_filter_config) == {
        "envoy.filters.http.ext_authz",
        "envoy.filters.http.lua",
        "set-cookie",
    }
    # Where a browser is, the engine says, and nothing that came with the request.
    added = {header.header.key: header for header in route.request_headers_to_add}
    assert added["x-forwarded-for"].append_action == added["x-forwarded-for"].OVERWRITE_IF_EXISTS_OR_ADD
    assert list(others.domains) == ["*"]
    without = Followed()
    Routes(without, Address("apps.example.org", 443, secure=True))
    assert (CLUSTERS, "console") not in without.has
