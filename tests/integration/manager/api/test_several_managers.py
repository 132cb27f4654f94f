"""A client with several managers uses the first that can be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retinue.client.aio import Client, UsageError

if TYPE_CHECKING:
    from tests.integration.manager.rig import Service

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("dead", ["127.0.0.2:1", "[::1]:1", "no.such.host.invalid:1"])
async def test_a_manager_that_is_dead_is_passed_over(service: Service, dead: str) -> None:
    token = await service.user("ada")
    ca = service.authority.certificate
    async with Client.connect(f"{dead},{service.endpoint}", token=token, ca=ca) as client:
        assert (await client.users.caller()).name == "ada"


async def test_names_without_addresses(service: Service) -> None:
    with pytest.raises(UsageError, match=r"none of .* is known"):
        Client.connect("no.such.host.invalid,none.such.invalid:7", token=None, ca=service.authority.certificate)
