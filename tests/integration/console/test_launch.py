"""The story that the console is for: launch, watch, enter, open, end; by mouse, and by keyboard alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import Page, expect

from retinue.client.errors import CallError
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from tests.integration.console.conftest import Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERVER = "python3 -m http.server 8000"


async def _enter(visitor: Visitor, command: str, wanted: str) -> None:
    """Types a command into the terminal that is open, until an own line is as wanted."""
    frame = visitor.page.frame_locator("iframe.terminal")
    await expect(frame.locator("#status")).to_contain_text("connected")
    await visitor.page.keyboard.type(f"{command}\n")
    await eventually(visitor.terminal_text, lambda text: wanted in text.splitlines())


async def _run_out(page: Page, name: str) -> None:
    await expect(page.locator(".list .row", has_text=name).locator(".state")).to_contain_text("Terminated")


async def answers(session: Session) -> bytes:
    """Returns the beginning of what the port of a session answers."""
    async with session.open_port("web") as connection:
        await connection.write(b"GET / HTTP/1.0\r\n\r\n")
        async for data in connection:
            return data
    return b""


async def test_by_mouse(visitor: Visitor, client: Client, pictures: Path) -> None:
    page = visitor.page
    await page.get_by_role("link", name="New session").click()
    await page.get_by_role("radio", name="Web program").click()
    await page.get_by_role("button", name="Several").click()
    await page.get_by_label("Number of kernels").fill("2")
    # No node has room for both kernels: the session's tag says where they are.
    await page.get_by_label("cpu", exact=True).fill("2.5")
    await page.get_by_label("Name", exact=True).fill("mouse")
    await page.get_by_label("Command").fill(SERVER)
    await expect(page.get_by_label("Port number 1")).to_have_value("8000")
    await expect(page.locator(".verdict")).to_contain_text("Starts now")
    await expect(page.locator(".nodes")).to_contain_text("sub1")
    await page.screenshot(path=pictures / "console-new.png")
    await page.get_by_role("button", name="Launch").click()

    await expect(page.locator("h1")).to_have_text("mouse")
    await expect(page.locator(".bar-top .tag").last).to_have_text("Multi-node \N{MULTIPLICATION SIGN}2")
    await expect(page.locator(".bar-top .state")).to_contain_text("Running")

    await expect(page.locator(".chart").first).to_contain_text("main1")
    await page.screenshot(path=pictures / "console-session.png")
    await page.get_by_role("tab", name="Terminal").click()
    await page.frame_locator("iframe.terminal").locator(".xterm").click()
    await _enter(visitor, "ssh sub1 hostname", "sub1")
    await page.screenshot(path=pictures / "console-terminal.png")

    # Its server may have been started just now.
    session = await client.sessions.get("mouse")
    await eventually(lambda: answers(session), ignoring=CallError)
    await page.get_by_role("tab", name="Apps and ports").click()
    async with visitor.context.expect_page() as opening:
        await page.get_by_role("button", name="Open web").click()
    app = await opening.value
    await expect(app.locator("h1")).to_contain_text("Directory listing")
    assert await app.evaluate("window.opener") is None
    assert (await app.evaluate("location.host")).startswith("p8000-")
    await app.close()

    await page.get_by_role("button", name="End…").click()
    await page.get_by_role("dialog").get_by_role("button", name="End", exact=True).click()
    await expect(page.locator(".bar-top .state")).to_contain_text("Terminated")
    await page.get_by_role("navigation", name="Menu").get_by_role("link", name="Sessions").click()
    await _run_out(page, "mouse")
    assert (await session.refresh()).state == "TERMINATED"


async def _tab_to(page: Page, selector: str) -> None:
    """Moves focus by the Tab key until it is at an element."""
    for _ in range(80):
        if await page.evaluate("selector => document.activeElement?.matches(selector)", selector):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"{selector} is not reached by the Tab key")


async def test_by_keyboard_alone(visitor: Visitor) -> None:
    page = visitor.page
    await page.keyboard.press("n")
    await expect(page.locator("h1")).to_have_text("New session")
    await _tab_to(page, "[role=group] button")
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("Space")
    await expect(page.get_by_role("button", name="Several")).to_have_attribute("aria-pressed", "true")
    await _tab_to(page, "input[type=number]")
    await page.keyboard.press("ControlOrMeta+a")
    await page.keyboard.type("2")
    await expect(page.locator(".verdict")).to_contain_text("Starts now")
    await page.keyboard.press("Enter")
    await expect(page.locator(".bar-top .state")).to_contain_text("Running")
    name = await page.locator("h1").inner_text()

    await page.locator("main").focus()
    await _tab_to(page, "[role=tab]")
    for tab in ("Logs", "Terminal"):
        await page.keyboard.press("ArrowRight")
        await expect(page.get_by_role("tab", name=tab)).to_be_focused()
    await _tab_to(page, "iframe.terminal")
    await _enter(visitor, "ssh sub1 hostname", "sub1")
    # Out of the terminal, and back to the list.
    await page.keyboard.press("Control+Shift+Escape")
    await expect(page.get_by_role("tab", name="Terminal")).to_be_focused()
    await page.keyboard.press("g")
    await page.keyboard.press("s")
    await expect(page.locator("h1")).to_have_text("Sessions")
    await page.keyboard.press("/")
    await page.keyboard.type(f"name:{name}")
    await expect(page.locator(".list .row")).to_have_count(1)
    await _tab_to(page, ".list")
    await page.keyboard.press("x")
    await page.keyboard.press("Shift+Tab")
    await _tab_to_end(page)
    await page.keyboard.press("Enter")
    # A notice is a dialog, too, but this one is modal.
    dialog = page.get_by_role("dialog").and_(page.locator("[data-open]"))
    await expect(dialog).to_be_visible()
    await _tab_to(page, "[role=dialog][data-open] button:last-child:not([aria-label])")
    await page.keyboard.press("Enter")
    await _run_out(page, name)


async def _tab_to_end(page: Page) -> None:
    """Moves focus to the button that ends what is selected, which is just before the list."""
    focused = await page.evaluate("document.activeElement?.textContent")
    assert focused == "End…", focused
