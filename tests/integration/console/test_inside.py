"""What one does inside a session: files, code, apps; and what administrators do to the cluster."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import yaml
from google.protobuf.json_format import ParseDict
from playwright.async_api import FilePayload, Page, Route, expect

from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster
    from tests.integration.console.conftest import Visitor

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
    card = page.get_by_role("list", name="Apps and ports").get_by_role("listitem").filter(has_text="web")
    await card.get_by_role("button", name="Start web").click()
    await expect(card).to_contain_text("running")
    await card.get_by_role("button", name="Stop web").click()
    await expect(card).to_contain_text("stopped")


async def test_dropped_files_are_uploaded_and_looked_at(visitor: Visitor, session: Session) -> None:
    page = await _part(visitor, session, "files")
    await page.get_by_role("button", name="New folder").click()
    await page.get_by_label("Name").fill("dropped")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="dropped/").click()
    await expect(page.get_by_text("This folder is empty.")).to_be_visible()
    dropped = await page.evaluate_handle(
        """() => {
            const dropped = new DataTransfer();
            dropped.items.add(new File(["one <b>two</b>"], "note.txt"));
            const dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
            dropped.items.add(new File([Uint8Array.from(atob(dot), (c) => c.charCodeAt(0))], "dot.png"));
            dropped.items.add(new File([new Uint8Array([0, 255, 1])], "raw.bin"));
            return dropped;
        }"""
    )
    for event in ("dragenter", "dragover", "drop"):
        await page.get_by_text("This folder is empty.").dispatch_event(event, {"dataTransfer": dropped})
    # Notices are dialogs, too.
    dialog = page.get_by_role("dialog").and_(page.locator("[data-open]"))
    await page.get_by_role("button", name="note.txt", exact=True).click()
    await expect(dialog.locator("pre")).to_have_text("one <b>two</b>")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="dot.png", exact=True).click()
    assert (
        await dialog.get_by_role("img", name="dot.png").evaluate(
            "image => image.decode().then(() => image.naturalWidth)"
        )
        == 1
    )
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="raw.bin", exact=True).click()
    await expect(dialog).to_contain_text("neither text nor an image")
    assert await _output(session, "cat", "dropped/note.txt") == "one <b>two</b>"


async def test_files_of_running_sessions_are_in_one_place(visitor: Visitor, session: Session) -> None:
    page = visitor.page
    await _output(session, "sh", "-c", "mkdir -p from-here && echo x > from-here/found")
    await page.get_by_role("navigation", name="Menu").get_by_role("link", name="Files").click()
    name = (await session.refresh()).name
    await page.get_by_role("navigation", name="Running sessions").get_by_role("link", name=name).click()
    await page.get_by_role("button", name="from-here/").click()
    await expect(page.locator("tbody")).to_contain_text("found")


async def test_a_notebook_is_saved_and_opened(visitor: Visitor, session: Session) -> None:
    page = await _part(visitor, session, "code")
    await page.get_by_label("Code 1", exact=True).last.fill("print('kept', 6 * 7)")
    await page.keyboard.press("Shift+Enter")
    await expect(page.locator(".cell").nth(0).locator(".outputs")).to_contain_text("kept 42")
    # What is written stays while other parts are looked at.
    await page.get_by_role("tab", name="Spec").click()
    await page.get_by_role("tab", name="Code").click()
    await expect(page.locator(".cell").nth(0).locator(".outputs")).to_contain_text("kept 42")
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Save .ipynb").click()
    saved = await (await downloading.value).path()
    notebook = json.loads(await asyncio.to_thread(saved.read_text))
    assert notebook["cells"][0]["source"] == ["print('kept', 6 * 7)"]
    assert notebook["cells"][0]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": ["kept 42\n"]}]
    notebook["cells"] = [{"cell_type": "code", "source": "print('opened')", "outputs": [], "metadata": {}}]
    content = json.dumps(notebook).encode()
    given = FilePayload(name="given.ipynb", mimeType="application/json", buffer=content)
    await page.locator("input[type=file]").set_input_files([given])
    await expect(page.get_by_label("Code 1", exact=True).last).to_have_value("print('opened')")
    await page.get_by_role("button", name="Run all").click()
    await expect(page.locator(".cell").nth(0).locator(".outputs")).to_contain_text("opened")


async def test_the_last_of_two_clicks_on_tabs_decides(visitor: Visitor, session: Session) -> None:
    """Also where the part of the first one is loaded after the second, which goes back."""
    page = await _part(visitor, session, "logs")
    await expect(page.get_by_role("tab", name="Logs")).to_have_attribute("aria-selected", "true")
    go_on = asyncio.Event()

    async def late(route: Route) -> None:
        await go_on.wait()
        await route.continue_()

    await page.route("**/assets/spec-*.js", late)
    async with page.expect_request("**/assets/spec-*.js"):
        await page.get_by_role("tab", name="Spec").click()
    await expect(page.get_by_role("tab", name="Spec")).to_have_attribute("aria-selected", "true")
    await page.get_by_role("tab", name="Logs").click()
    async with page.expect_event("requestfinished", lambda request: "/assets/spec-" in request.url):
        go_on.set()
    # A part that has been loaded is shown by the next render.
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    await expect(page.get_by_role("tab", name="Logs")).to_have_attribute("aria-selected", "true")
    await expect(page).to_have_url(re.compile("/logs$"))


async def test_events_are_told_in_sentences(visitor: Visitor, session: Session) -> None:
    await _output(session, "true")
    page = await _part(visitor, session, "events")
    story = page.get_by_role("list", name="Events")
    await expect(story).to_contain_text("All kernels run.")
    await expect(story).to_contain_text("ran a command or a shell in main1.")
    await expect(story).not_to_contain_text("RUNNING")
    runs = story.get_by_role("listitem").filter(has_text="All kernels run.")
    assert "PREPARING → RUNNING" in (await runs.get_attribute("title") or "")
    await page.get_by_role("button", name="Access").click()
    await expect(story).not_to_contain_text("All kernels run.")


async def test_the_spec_is_yaml(visitor: Visitor, session: Session) -> None:
    page = await _part(visitor, session, "spec")
    text = await page.get_by_role("region", name="YAML").locator("pre").text_content()
    spec = yaml.safe_load(text or "")
    assert spec["service_ports"] == [{"name": "web", "protocol": "http", "ports": [8000]}]
    assert ParseDict(spec, session_pb2.SessionSpec()).apps[0].name == "web"


async def test_many_are_ended_together(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    made = [await client.sessions.create(type="interactive", name=f"many-{at}") for at in range(3)]
    await page.get_by_label("Search").fill("name:many-*")
    for session in made:
        await page.locator(f".row[data-session='{session.id}']").get_by_role("checkbox").check()
    await page.get_by_role("button", name="End…").click()
    await page.get_by_role("dialog").get_by_role("button", name="End at once").click()
    for session in made:
        state = page.locator(f".row[data-session='{session.id}'] .state")
        await expect(state).to_contain_text(re.compile("Terminated|Cancelled"))
