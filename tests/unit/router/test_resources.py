"""Resources out of the table: every one has what refers to it, whatever the endpoint asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from envoy.config.route.v3.route_components_pb2 import VirtualHost
from hypothesis import given
from hypothesis import strategies as st

from retinue.proxy.core.fields import pack
from retinue.router.core.holding import HoldQueue, releasable
from retinue.router.core.listener import Listening, listener, secret
from retinue.router.core.resources import endpoint_resources, merged
from retinue.router.core.table import Access, Algorithm, Cors, Endpoint, Picker, Replica, Revision, Routing

ENDPOINT = Endpoint("00000000-0000-0000-0000-000000000001", "toy", "p", ("toy.test",))
REPLICAS: st.SearchStrategy[list[Replica]] = st.lists(
    st.builds(Replica, st.just("s"), st.just("127.0.0.1"), st.integers(1, 9), st.booleans()), max_size=4
)
REVISIONS: st.SearchStrategy[list[Revision]] = st.lists(
    st.builds(
        Revision,
        st.integers(1, 5),
        st.just(0),
        st.booleans(),
        st.integers(0, 4),
        st.integers(0, 9),
        REPLICAS.map(tuple),
    ),
    max_size=3,
    unique_by=lambda revision: revision.number,
)


@st.composite
def endpoints(draw: st.DrawFn) -> Endpoint:
    found = draw(REVISIONS)
    if draw(st.booleans()) and found:
        found[0] = replace(found[0], percent=100)
    algorithm = draw(st.sampled_from(Algorithm))
    pickers = [Picker("192.0.2.1", 9002), Picker("picker.test", 9002, "certificate")]
    routing = Routing(
        algorithm,
        draw(st.sampled_from(["", "x-key"])),
        draw(st.sampled_from(["", "key"])),
        draw(st.sampled_from(["", "sticky"])),
        retry_idempotent=draw(st.booleans()),
        request_timeout=draw(st.sampled_from([0.0, 1.5])),
        idle_timeout=draw(st.sampled_from([0.0, 300.0])),
        cors=draw(st.sampled_from([None, Cors(("*",)), Cors(("https://page.test",), ("GET",), ("x-a",), True)])),
        picker=draw(st.sampled_from(pickers)) if algorithm is Algorithm.PICKER else None,
    )
    access = Access(
        draw(st.booleans()),
        draw(st.sampled_from([(), ("t1", "t2")])),
        draw(st.sampled_from([(), ("192.0.2.0/24", "2001:db8::/32")])),
        draw(st.integers(0, 5)),
    )
    return replace(ENDPOINT, revisions=tuple(found), routing=routing, access=access, deleted=draw(st.booleans()))


@given(endpoints(), st.booleans(), REVISIONS)
def test_every_resource_has_the_name_that_others_call_it_by(
    endpoint: Endpoint, gated: bool, kept: list[Revision]
) -> None:
    resources = endpoint_resources(endpoint, gated=gated, kept=kept)
    assert resources.host is not None
    assert resources.host.name == endpoint.id
    assert len(resources.host.routes) >= 1
    assert resources.assignments.keys() <= resources.clusters.keys()
    for name, cluster in resources.clusters.items():
        assert cluster.name == name
        if name in resources.assignments:
            assert resources.assignments[name].cluster_name == name


@given(endpoints(), endpoints())
def test_every_route_leads_to_a_cluster_that_is_there(one: Endpoint, other: Endpoint) -> None:
    for endpoint in (one, other):
        resources = endpoint_resources(replace(endpoint, deleted=False), gated=True)
        assert resources.host is not None
        for route in resources.host.routes:
            names = [found.name for found in route.route.weighted_clusters.clusters]
            for name in names or [route.route.cluster]:
                assert name in resources.clusters


def test_dropping_and_adding_an_endpoint_gives_the_same_versions() -> None:
    endpoint = replace(ENDPOINT, revisions=(Revision(1, 100, replicas=(Replica("s", "127.0.0.1", 1),)),))
    first, second = (endpoint_resources(endpoint, gated=False) for _ in range(2))
    assert first == second
    # The engine is sent what differs in its bytes.
    assert pack(first.host or VirtualHost()).value == pack(second.host or VirtualHost()).value
    for name, cluster in first.clusters.items():
        assert pack(cluster).value == pack(second.clusters[name]).value


@pytest.mark.parametrize("tls", [True, False])
def test_the_listener_has_the_certificate_that_its_secret_is(tls: bool) -> None:
    made = listener(Listening("127.0.0.1", 1, tls, "/log"), bytes(32))
    assert made.filter_chains[0].HasField("transport_socket") is tls
    assert secret("certificate", "key").name.encode() in made.SerializeToString()


def test_replicas_that_go_stay_until_routes_have_moved() -> None:
    old, new = (
        endpoint_resources(
            replace(ENDPOINT, revisions=(Revision(1, 100, replicas=(Replica("s", "127.0.0.1", port),)),)), gated=False
        ).assignments[f"{ENDPOINT.id}/1"]
        for port in (1, 2)
    )
    hosts = merged(old, new).endpoints[0].lb_endpoints
    assert [host.endpoint.address.socket_address.port_value for host in hosts] == [1, 2]


def test_requests_are_held_in_order_up_to_a_limit_and_a_deadline() -> None:
    queue = HoldQueue()
    assert [queue.add(number, 10.0 + number, 3) for number in range(4)] == [True, True, True, False]
    assert queue.release(1) == [0]
    assert queue.expired(11.5) == [1]
    assert queue.release(9) == [2]
    assert len(queue) == 0


def test_as_many_go_as_replicas_take() -> None:
    ready = tuple(Replica("s", "127.0.0.1", port) for port in (1, 2))
    limited = replace(ENDPOINT, revisions=(Revision(1, 100, max_concurrency=3, replicas=ready),))
    assert [releasable(limited, count) for count in (0, 4, 9)] == [6, 2, 0]
    unlimited = replace(ENDPOINT, revisions=(Revision(1, 100, replicas=ready),))
    assert releasable(unlimited, 1000) == 200
    assert releasable(replace(ENDPOINT, revisions=(Revision(1, 100),)), 0) == 0
