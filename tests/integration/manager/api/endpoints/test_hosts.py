"""Further host names of endpoints: none is the installation's own, and no two endpoints have the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from grpc import StatusCode as Code
from sqlalchemy import text

from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from tests.integration.manager.rig import failure

if TYPE_CHECKING:
    from tests.integration.manager.endpoints.controlled import Rig

pytestmark = pytest.mark.asyncio(loop_scope="session")


def named(*hosts: str) -> epb.RoutingPolicy:
    return epb.RoutingPolicy(hosts=hosts)


async def update(rig: Rig, name: str, *hosts: str) -> Any:
    spec = epb.EndpointSpec(routing=named(*hosts))
    return await rig.call("UpdateEndpoint", pb.UpdateEndpointRequest(endpoint=name, spec=spec))


async def test_a_name_of_the_installation_is_refused(rig: Rig) -> None:
    async with rig.service.database.transaction() as tx:
        await tx.execute(
            text("INSERT INTO router (id, address, url, software_version) VALUES ('r', 'x:1', :url, '')"),
            {"url": "https://router.site.test:7443"},
        )
    other = await rig.create("other")
    for host in (f"{other.host_label}.localhost", "console.localhost", "manager.retinue", "router.site.test"):
        refused = await failure(rig.create("bad", routing=named("good.site.test", host)))
        assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, ["spec.routing.hosts[1]"]), host
        assert (await failure(update(rig, "other", host))).fields == ["spec.routing.hosts[0]"]


async def test_a_host_belongs_to_one_endpoint_until_that_is_deleted(rig: Rig) -> None:
    await rig.create("first", routing=named("llm.site.test"))
    await rig.create("second")
    taken = await failure(rig.create("third", "bob", routing=named("llm.site.test")))
    assert (taken.code, taken.reason, taken.metadata["kind"]) == (Code.ALREADY_EXISTS, "NAME_TAKEN", "host")
    assert (await failure(update(rig, "second", "llm.site.test"))).reason == "NAME_TAKEN"
    # Its own it keeps.
    await update(rig, "first", "llm.site.test", "more.site.test")
    await rig.call("DeleteEndpoint", pb.DeleteEndpointRequest(endpoint="first"))
    assert (await failure(update(rig, "second", "llm.site.test"))).reason == "NAME_TAKEN"
    await rig.look(2)
    await update(rig, "second", "llm.site.test")


async def test_of_many_that_ask_for_a_host_at_once_one_gets_it(rig: Rig) -> None:
    made = await asyncio.gather(
        *(rig.create(f"racer-{number}", routing=named("llm.site.test")) for number in range(8)), return_exceptions=True
    )
    assert sum(isinstance(item, epb.Endpoint) for item in made) == 1
