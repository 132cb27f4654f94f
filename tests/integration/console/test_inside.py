"""What one does inside a session: files, code, apps; and what administrators do to the cluster."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from retinue.client.aio import Client
from retinue.client.sessions import Session
from retinue.devtools.cluster import Cluster
from retinue.manager.v1 import session_pb2
from tests.integration.console.conftest import Visitor
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAME = "naïve 'file' <b>.bin"
HTML = "<b id=rich>bold</b><script>parent.document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    app = session_pb2.AppDefinition(name="web", command=["python3", "-m", "http.server", "{port}"])
    async with cluster.client() as client:
        made = await client.sessions.create(type="interactive", apps=[app], ports=[("web", "http", 8000)])
        await made.wait("RUNNING")
        yield made
        await made.terminate()


async def _output(session: Session, *command: str) -> str:
    """Returns what a command prints in main1."""
    async with session.attach(command) as attached:
        return b"".join([piece.data async for piece in attached]).decode()


async def _part(visitor: Visitor, session: Session, part: str) -> Page:
    page = visitor.page
    await page.goto(page.url.split("/sessions")[0] + f"/sessions/{session.id}/{part}")
    return page


async def test_files_go_there_and_come_back(visitor: Visitor, session: Session, tmp_path: Path) -> None:
    page = await _part(visitor, session, "files")
    content = bytes(range(256)) * 4096
    given = tmp_path / NAME
    given.write_bytes(content)
    await page.locator("input[type=file]").set_input_files(given)
    row = page.locator("tbody tr", has_text=NAME)
    await expect(row).to_contain_text("1.0M")
    async with page.expect_download() as downloading:
        await row.get_by_role("button", name=f"Download {NAME}").click()
    download = await downloading.value
    assert await asyncio.to_thread((await download.path()).read_bytes) == content
    inside = await _output(session, "sha256sum", NAME)
    assert hashlib.sha256(content).hexdigest() in inside


async def test_a_download_over_a_slow_network_is_whole(visitor: Visitor, session: Session, tmp_path: Path) -> None:
    content = random.Random(7).randbytes(4 << 20)
    (tmp_path / "slow.bin").write_bytes(content)
    await session.files().upload(tmp_path / "slow.bin", "slow.bin")
    page = await _part(visitor, session, "files")
    row = page.locator("tbody tr", has_text="slow.bin")
    await expect(row).to_contain_text("4.0M")
    network = await visitor.context.new_cdp_session(page)
    await network.send(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": 50, "downloadThroughput": 600_000, "uploadThroughput": 600_000},
    )
    async with page.expect_download() as downloading:
        await row.get_by_role("button", name="Download slow.bin").click()
    download = await downloading.value
    assert await asyncio.to_thread((await download.path()).read_bytes) == content


async def test_folders_are_entered(visitor: Visitor, session: Session) -> None:
    await _output(session, "sh", "-c", "mkdir -p one/two && echo x > one/two/three")
    page = await _part(visitor, session, "files")
    await page.get_by_role("button", name="one/").click()
    await page.get_by_role("button", name="two/").click()
    await expect(page.locator("tbody")).to_contain_text("three")
    await page.get_by_role("navigation", name="Folder").get_by_role("button", name="~").click()
    await expect(page.get_by_role("button", name="one/")).to_be_visible()


async def test_names_of_files_are_text(visitor: Visitor, session: Session) -> None:
    names = ["<img src=x onerror=document.title='owned'>", "\x1b[31mred\x1b[0m", "javascript:alert(1)", "n" * 255]
    await _output(session, "touch", "--", *names)
    page = await _part(visitor, session, "files")
    for part in ("<img src=x onerror=", "31mred", "javascript:alert(1)", "n" * 255):
        await expect(page.locator("tbody tr", has_text=part)).to_be_visible()
    assert await page.locator("main img, main a[href^='javascript:']").count() == 0
    assert await page.title() == "Retinue"


async def test_cells_share_what_they_define(visitor: Visitor, session: Session) -> None:
    page = await _part(visitor, session, "code")
    await page.get_by_label("Code 1", exact=True).last.fill("x = 41\nprint('first')")
    await page.keyboard.press("Shift+Enter")
    first = page.locator(".cell").nth(0)
    await expect(first.locator(".outputs")).to_contain_text("first")
    await page.get_by_label("Code 2", exact=True).last.fill("x + 1")
    await page.keyboard.press("Shift+Enter")
    await expect(page.locator(".cell").nth(1).locator(".outputs")).to_contain_text("42")
    await page.get_by_label("Code 3", exact=True).last.fill("raise ValueError('wrong')")
    await page.keyboard.press("Shift+Enter")
    await expect(page.locator(".cell").nth(2).locator(".error")).to_contain_text("ValueError")


async def test_code_is_interrupted_and_answers(visitor: Visitor, session: Session) -> None:
    page = await _part(visitor, session, "code")
    await page.get_by_label("Code 1", exact=True).last.fill("import time\nprint('begun')\ntime.sleep(3600)")
    await page.keyboard.press("Shift+Enter")
    cell = page.locator(".cell").nth(0)
    await expect(cell.locator(".outputs")).to_contain_text("begun")
    await cell.get_by_role("button", name="Interrupt").click()
    await expect(cell.locator(".error")).to_contain_text("KeyboardInterrupt")
    await page.get_by_label("Code 2", exact=True).last.fill("print('hello', input('Who? '))")
    await page.keyboard.press("Shift+Enter")
    await page.get_by_label("Who?").fill("world")
    await page.keyboard.press("Enter")
    await expect(page.locator(".cell").nth(1).locator(".outputs")).to_contain_text("hello world")


async def test_rich_output_is_shown_where_it_reaches_nothing(visitor: Visitor, session: Session) -> None:
    page = await _part(visitor, session, "code")
    shown = f"class Shown:\n    def _repr_html_(self):\n        return {HTML!r}\nShown()"
    await page.get_by_label("Code 1", exact=True).last.fill(shown)
    await page.keyboard.press("Shift+Enter")
    frame = page.frame_locator("iframe.output")
    await expect(frame.locator("#rich")).to_have_text("bold")
    inside = next(frame for frame in page.frames if "/output" in frame.url)
    assert await inside.evaluate("origin") == "null"
    assert await page.title() == "Retinue"
    # The browser reports what the sandbox has kept from running.
    visitor.errors[:] = [
        error for error in visitor.errors if "/output" not in error and "Content Security" not in error
    ]


async def test_apps_start_and_stop(visitor: Visitor, session: Session) -> None:
    page = await _part(visitor, session, "apps")
    row = page.locator("tbody tr", has_text="web")
    await row.get_by_role("button", name="Start web").click()
    await expect(row).to_contain_text("running")
    await row.get_by_role("button", name="Stop web").click()
    await expect(row).to_contain_text("stopped")


async def test_an_agent_is_drained_and_undrained(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    await page.get_by_role("navigation", name="Menu").get_by_role("link", name="Cluster").click()
    agent = page.locator(".agents li").first
    name = await agent.locator("h2").inner_text()
    await agent.get_by_role("button", name="Drain").click()
    await expect(agent).to_contain_text("drained")
    assert (await client.agents.get(name)).drained
    await agent.get_by_role("button", name="Undrain").click()
    await eventually(lambda: client.agents.get(name), lambda found: not found.drained)


async def test_a_token_is_made_shown_once_and_revoked(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    await page.get_by_role("navigation", name="Menu").get_by_role("link", name="Users and tokens").click()
    await page.get_by_label("Description").fill("for a test")
    await page.get_by_role("button", name="Create").first.click()
    secret = await page.get_by_role("dialog").locator("pre").inner_text()
    assert secret.startswith("rtn_")
    await page.get_by_role("dialog").get_by_role("button", name="Close").click()
    await page.get_by_role("button", name="Revoke for a test").click()
    await expect(page.locator("tbody tr", has_text="for a test")).to_contain_text("revoked")


async def test_many_are_ended_together(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    made = [await client.sessions.create(type="interactive", name=f"many-{at}") for at in range(3)]
    await page.get_by_label("Search").fill("name:many-*")
    for session in made:
        await page.locator(f".row[data-session='{session.id}'] input").check()
    await page.get_by_role("button", name="End…").click()
    await page.get_by_role("dialog").get_by_role("button", name="End at once").click()
    for session in made:
        state = page.locator(f".row[data-session='{session.id}'] .state")
        await expect(state).to_contain_text(re.compile("Terminated|Cancelled"))
