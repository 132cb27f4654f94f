"""What users may write of an endpoint's routing and access at its odd ends, in the engine itself: all of it is served,
and what no router can serve costs its endpoint only.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration

from retinue.manager.api.endpoints.settings_convert import Reader
from retinue.manager.domain.endpoints.model import RoutedEndpoint
from retinue.manager.endpoints.routers.messages import endpoint_message
from retinue.manager.server.fields import Violations
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.router import convert
from retinue.router.core.table import Access, Endpoint, Revision
from retinue.types.v1 import cors_pb2
from tests.integration.router.backends import Backend
from tests.integration.router.certificates import authority
from tests.integration.router.clients import request
from tests.integration.router.running import replicas, running, toy

if TYPE_CHECKING:
    from pathlib import Path

# All characters that the API takes in names of headers and cookies.
NAME = "aZ09!#$%&'*+.^_`|~-"
DAY = Duration(seconds=86_400)


def odd() -> dict[str, epb.EndpointSpec]:
    hashed, picked = epb.ROUTING_ALGORITHM_HASH, epb.ROUTING_ALGORITHM_PICKER
    routings = {
        "header": epb.RoutingPolicy(algorithm=hashed, hash_key=epb.HashKey(header=NAME)),
        "long header": epb.RoutingPolicy(algorithm=hashed, hash_key=epb.HashKey(header="x" * 128)),
        "cookie": epb.RoutingPolicy(algorithm=hashed, hash_key=epb.HashKey(cookie=NAME)),
        "affinity": epb.RoutingPolicy(affinity=epb.Affinity(cookie=NAME, lifetime=Duration(seconds=30 * 86_400))),
        "times": epb.RoutingPolicy(request_timeout=DAY, idle_timeout=DAY, hold_timeout=Duration(seconds=3_600)),
        "short times": epb.RoutingPolicy(idle_timeout=Duration(seconds=1), hold_timeout=Duration()),
        "repeated": epb.RoutingPolicy(retry_idempotent=True, algorithm=epb.ROUTING_ALGORITHM_ROUND_ROBIN),
        "hosts": epb.RoutingPolicy(hosts=["a" * 63 + ".test", "xn--a.test", "1.2.test", "1.2.test"]),
        "picker": epb.RoutingPolicy(algorithm=picked, picker=epb.Picker(address="Picker.test:1", ca=authority())),
        "address": epb.RoutingPolicy(algorithm=picked, picker=epb.Picker(address="[2001:db8::1]:65535")),
        "cors": epb.RoutingPolicy(
            cors=cors_pb2.Cors(
                origins=["http://" + "a" * 253, "https://.-:]", "https://[::1]:8"],
                methods=[NAME],
                headers=[NAME],
                credentials=True,
                max_age=DAY,
            )
        ),
        "all origins": epb.RoutingPolicy(cors=cors_pb2.Cors(origins=["*"] * 64)),
    }
    accesses = {
        "networks": epb.AccessPolicy(source_ranges=["::/0", "0.0.0.0/0", "::ffff:192.0.2.1/128", "10.0.0.0/08"]),
        "rate": epb.AccessPolicy(per_token=epb.RequestRate(requests=1_000_000, period=DAY)),
        "public rate": epb.AccessPolicy(mode=epb.ACCESS_MODE_PUBLIC, per_token=epb.RequestRate(requests=1)),
    }
    specs = {key: epb.EndpointSpec(routing=routing) for key, routing in routings.items()}
    return specs | {key: epb.EndpointSpec(access=access) for key, access in accesses.items()}


def endpoint(place: int, spec: epb.EndpointSpec) -> Endpoint:
    violations = Violations()
    read = Reader(violations).settings(spec, "spec")
    violations.raise_any()
    found = RoutedEndpoint(uuid.UUID(int=place), "p", "odd", f"odd-{place}", routing=read.routing, access=read.access)
    return convert.endpoint(endpoint_message(found, "models.test"))


async def test_the_engine_serves_whatever_the_api_accepts(tmp_path: Path) -> None:
    async with running(tmp_path) as router:
        names = {str(uuid.UUID(int=place)): name for place, name in enumerate(odd(), 1)}
        await router.serve(*(endpoint(place, spec) for place, spec in enumerate(odd().values(), 1)))
        refused = {names[key]: text for key, text in router.serving.refusals.items()}
        # Served without their pickers, which are at no address that is allowed.
        assert all(name in {"picker", "address"} and "its picker" in text for name, text in refused.items()), refused


async def test_an_endpoint_without_resources_costs_itself_only(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        only = Revision(1, 100, replicas=replicas(backend.port))
        # A mask in place of a length, as a manager of another version may send it.
        bad = toy(only, hosts=("bad.test",), access=Access(public=True, source_ranges=("10.0.0.0/255.0.0.0",)))
        await router.serve(bad, toy(only, hosts=("good.test",)))
        assert list(router.serving.refusals) == [bad.id]
        await router.listening()
        await router.serve(toy(only, hosts=("later.test",)))
        for host, status in (("good.test", 200), ("later.test", 200), ("bad.test", 404)):
            assert (await request(router.port, host)).status == status
