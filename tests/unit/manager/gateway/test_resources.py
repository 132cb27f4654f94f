"""Resources that the engine gets, and what people are shown."""

from __future__ import annotations

import re
import uuid

import pytest
from envoy.config.route.v3.route_components_pb2 import Route, RouteMatch
from google.protobuf import json_format

from retinue.manager.gateway.core import connections, pages, resources
from retinue.manager.gateway.core.connections import TunnelIdentity
from retinue.manager.gateway.core.resources import Granted
from retinue.manager.gateway.core.rules import Address, Target
from retinue.proxy.core.fields import pipe, socket_address

ADDRESS = Address("apps.example.org", 443, secure=True)
TARGET = Target(uuid.UUID(int=7), 8080)
ORIGIN = ADDRESS.origin(TARGET)
ASK, OWN_COOKIE = "envoy.filters.http.ext_authz", "envoy.filters.http.lua"


def test_there_is_no_port_for_administration_and_only_sockets_of_this_machine_are_dialled() -> None:
    made = resources.bootstrap("ads-name", "check-name", "traffic-name", "key")
    assert not made.HasField("admin")
    text = json_format.MessageToJson(made, indent=None)
    assert text.count('"address": {') == text.count('"pipe": {"path": "@') == 3
    # Both services know the engine by the key.
    [call] = made.dynamic_resources.ads_config.grpc_services[0].initial_metadata
    assert (call.key, call.value) == (resources.KEY, "key")


@pytest.mark.parametrize("address", [ADDRESS, Address("localhost", 7442, secure=False)])
def test_what_is_secure_is_so_for_browsers_and_tunnels(address: Address) -> None:
    [http] = resources.listener("192.0.2.1", address.number, address, "key").filter_chains
    assert http.HasField("transport_socket") is address.secure
    tunnel = connections.tunnel_chain(b"1", TunnelIdentity("1.tunnel.localhost", b"CHAIN", b"KEY"))
    assert tunnel.HasField("transport_socket")
    # A program sees the name that it listens at, where it has one.
    [place] = connections.access_cluster(b"1", "localhost:8080").load_assignment.endpoints
    assert place.lb_endpoints[0].endpoint.hostname == "localhost:8080"


def matched(route: Route, headers: dict[str, str]) -> bool:
    """Whether a route is that of a request, as the engine decides it."""
    for wanted in route.match.headers:
        value, how = headers.get(wanted.name, ""), wanted.string_match
        match how.WhichOneof("match_pattern"):
            case "contains":
                if how.contains not in value:
                    return False
            case "exact":
                if how.exact != value:
                    return False
            case _:
                if re.fullmatch(how.safe_regex.regex, value) is None:
                    return False
    return True


@pytest.mark.parametrize(
    ("headers", "asked"),
    [
        ({}, True),
        ({"cookie": "a=1; __Host-retinue=rta_mine"}, False),
        ({"cookie": "__Host-retinue=rta_other"}, True),
        ({"cookie": "__Host-retinue=rta_mine", "origin": ORIGIN, "sec-fetch-site": "same-origin"}, False),
        ({"cookie": "__Host-retinue=rta_mine", "sec-fetch-site": "none"}, False),
        ({"cookie": "__Host-retinue=rta_mine", "sec-fetch-site": "same-site"}, True),
        ({"cookie": "__Host-retinue=rta_mine", "origin": "null"}, True),
        ({"cookie": "__Host-retinue=rta_mine", "origin": f"{ORIGIN}.evil.example"}, True),
        ({"cookie": "__Host-retinue=rta_mine", "origin": ORIGIN.replace("apps.", "appsX")}, True),
    ],
)
def test_only_a_request_of_the_browser_itself_goes_without_a_question(headers: dict[str, str], asked: bool) -> None:
    own, last = resources.virtual_host(ADDRESS, TARGET).routes
    routes = [*resources.granted_routes(ADDRESS, Granted(TARGET, "rta_mine", "access/1")), last]
    assert own.match == RouteMatch(prefix="/.retinue/")
    assert not own.typed_per_filter_config
    route = next(route for route in routes if matched(route, headers))
    assert (ASK not in route.typed_per_filter_config) is asked
    # The manager names the cluster of a request that it was asked about.
    assert bool(route.route.cluster_header) is asked
    # The secret is taken away by the route where it is all there is, else by the script.
    alone = headers.get("cookie") == "__Host-retinue=rta_mine" and not asked
    assert (list(route.request_headers_to_remove) == ["cookie"]) is alone
    assert (OWN_COOKIE in route.typed_per_filter_config) is alone


def test_a_host_is_that_of_its_address_only() -> None:
    name = f"p8080-{TARGET.session_id.hex}.apps.example.org"
    assert resources.virtual_host(ADDRESS, TARGET).domains == [name, f"{name}:443"]
    other = Address("localhost", 7442, secure=False)
    name = f"p8080-{TARGET.session_id.hex}.localhost"
    assert resources.virtual_host(other, TARGET).domains == [f"{name}:7442"]


def test_a_leased_port_comes_before_the_relay() -> None:
    both = connections.kernel_cluster(b"1", "name", ("192.0.2.7", 31_400)).load_assignment.endpoints
    addresses = [item.lb_endpoints[0].endpoint.address for item in both]
    relay = pipe("@name")
    assert addresses == [socket_address("192.0.2.7", 31_400), relay]
    assert [item.priority for item in both] == [0, 1]
    [only] = connections.kernel_cluster(b"1", "name", None).load_assignment.endpoints
    assert only.lb_endpoints[0].endpoint.address == relay


def test_bytes_are_those_of_an_access() -> None:
    key = bytes.fromhex("0a" * 32)
    assert connections.access_name(key) != connections.kernel_name(key)
    for way in ("rx", "tx"):
        assert connections.parse_counter(f"cluster.{connections.kernel_name(key)}.upstream_cx_{way}_bytes_total") == key
    for other in (f"{connections.access_name(key)}.upstream_cx_rx_bytes_total", "kernel/0.upstream_cx_total", ""):
        assert connections.parse_counter(f"cluster.{other}") is None


def test_secrets_are_not_shown() -> None:
    assert "rta_" not in repr(Granted(TARGET, "rta_mine", "access/1"))


def test_a_page_says_what_to_do_and_nothing_that_a_stranger_gave() -> None:
    assert b"<code>retinue open SESSION PORT</code>" in pages.NO_ACCESS.body()
    assert b"<script>" not in pages.refused("it comes from <script>").body()
    status, _, rest = pages.closed(8888).message().partition(b"\r\n")
    assert status == b"HTTP/1.1 502 Bad Gateway"
    head, _, body = rest.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"Connection: close" in head
