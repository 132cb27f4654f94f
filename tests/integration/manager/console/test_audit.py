"""What the audit has of browsers: denied log-ins and calls, and the address of the browser, not of the manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retinue.manager.console.logins import LOG_IN
from retinue.manager.identity.tokens import CONSOLE_TICKET_PREFIX, TOKEN_PREFIX, new_secret
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.manager.v1 import account_service_pb2_grpc
from tests.integration.manager.console.page import ACCOUNTS
from tests.integration.manager.rig import bearer

if TYPE_CHECKING:
    from tests.integration.manager.console.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="session")

METHOD = f"{ACCOUNTS.removeprefix('/rpc')}/CreateToken"


async def listed(console: Served, filter_: str) -> list[pb.AuditRecord]:
    """The records that an administrator sees, of denials too."""
    token = await console.service.user("root", role="ADMIN", projects=())
    await console.service.auditor.write()
    async with console.service.channel() as channel:
        stub = account_service_pb2_grpc.AccountServiceStub(channel)
        request = pb.ListAuditRecordsRequest(filter=filter_)
        return list((await stub.ListAuditRecords(request, metadata=bearer(token))).records)


@pytest.mark.attack("acts-without-a-trace")
async def test_denied_log_ins_and_calls_are_counted_by_the_address_of_the_browser(console: Served) -> None:
    page, other = console.page(), console.page()
    assert (await page.log_in(token=new_secret(TOKEN_PREFIX))).status == 401
    assert (await other.log_in(ticket=new_secret(CONSOLE_TICKET_PREFIX))).status == 401
    assert (await other.call(f"{ACCOUNTS}/CreateToken")).trailers()["grpc-status"] == "16"
    other.cookie = f"__Host-retinue-console={new_secret(TOKEN_PREFIX)}"
    assert (await other.call(f"{ACCOUNTS}/CreateToken")).trailers()["grpc-status"] == "16"
    records = await listed(console, 'category = "DENIAL"')
    assert {(record.address, record.method, record.reason) for record in records} == {
        (page.address, LOG_IN, "TOKEN_INVALID"),
        (other.address, LOG_IN, "TOKEN_INVALID"),
        (other.address, METHOD, "CREDENTIALS_MISSING"),
        (other.address, METHOD, "TOKEN_INVALID"),
    }
    assert {(record.principal, record.code, record.count) for record in records} == {("", "UNAUTHENTICATED", 1)}


@pytest.mark.attack("acts-without-a-trace")
async def test_an_act_at_the_console_has_the_address_of_its_browser(console: Served) -> None:
    page = await console.logged_in(await console.service.user("ada"))
    assert (await page.call(f"{ACCOUNTS}/CreateToken")).trailers()["grpc-status"] == "0"
    (record,) = await listed(console, f'method = "{METHOD}"')
    assert (record.principal, record.address, record.code) == ("ada", page.address, "OK")


@pytest.mark.attack("acts-without-a-trace")
async def test_no_caller_names_an_address(console: Served) -> None:
    token = await console.service.user("eve")
    async with console.service.channel() as channel:
        stub = account_service_pb2_grpc.AccountServiceStub(channel)
        for forged in ("203.0.113.9", " 203.0.113.9", "x 203.0.113.9"):
            metadata = (*bearer(token), ("x-retinue-browser", forged))
            await stub.CreateToken(pb.CreateTokenRequest(), metadata=metadata)
    records = await listed(console, f'method = "{METHOD}"')
    assert [record.address for record in records] == ["127.0.0.1"] * 3
