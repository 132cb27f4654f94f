"""What waits, and what people do about it: why, what would help, its priority, and holding it back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from tests.integration.console.conftest import Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def waiting(client: Client) -> AsyncIterator[Session]:
    made = await client.sessions.create(type="batch", name="too-much", slots={"cpu": 64}, command=["true"])
    yield made
    await made.terminate()


async def test_why_it_waits_is_one_click_away(visitor: Visitor, client: Client, waiting: Session) -> None:
    page = visitor.page
    # The reason comes with the first pass.
    await eventually(lambda: client.sessions.get("too-much"), lambda got: got.view.reason == "EXCEEDS_LARGEST_AGENT")
    await page.goto(page.url.replace("/sessions", "/queue"))
    row = page.get_by_role("row", name="too-much")
    await expect(row.locator(".why")).to_contain_text("Needs 64 cpu on one node", ignore_case=True)
    await row.get_by_role("button", name="Explain why too-much waits").click()
    sheet = page.get_by_role("dialog", name="Why too-much waits")
    await expect(sheet).to_contain_text("Asks for more than any node has")
    await expect(sheet).to_contain_text("main1 asks for cpu 64 on one node")
    await expect(sheet).to_contain_text("It would start now with one of these")
    await expect(sheet).to_contain_text(re.compile("cpu of [1-4] or less"))


async def test_priority_and_hold(visitor: Visitor, client: Client, waiting: Session) -> None:
    page = visitor.page
    await page.goto(page.url.replace("/sessions", "/queue"))
    row = page.get_by_role("row", name="too-much")
    await row.get_by_role("button", name="Actions for too-much").click()
    await page.get_by_role("menuitem", name="Change the priority").click()
    await page.get_by_label("Priority", exact=True).fill("7")
    await page.get_by_role("button", name="Set the priority").click()
    await eventually(lambda: client.sessions.get("too-much"), lambda got: got.view.spec.priority == 7)
    await page.get_by_role("button", name="Undo").click()
    await eventually(lambda: client.sessions.get("too-much"), lambda got: got.view.spec.priority == 10)
    await row.get_by_role("button", name="Actions for too-much").click()
    await page.get_by_role("menuitem", name="Hold").click()
    await expect(row).to_contain_text("On hold")
    await row.get_by_role("button", name="Actions for too-much").click()
    await page.get_by_role("menuitem", name="Release").click()
    await expect(row).not_to_contain_text("On hold")
