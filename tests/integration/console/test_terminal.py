"""The terminal: its size, its end, and output that is faster than it is drawn."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from retinue.client.aio import Client
from retinue.client.sessions import Session
from tests.integration.console.conftest import Visitor
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def session(visitor: Visitor, client: Client) -> AsyncIterator[Session]:
    made = await client.sessions.create(type="interactive")
    await made.wait("RUNNING")
    await visitor.page.goto(visitor.page.url.split("/sessions")[0] + f"/sessions/{made.id}/terminal")
    frame = visitor.page.frame_locator("iframe.terminal")
    await expect(frame.locator("#status")).to_contain_text("connected")
    await frame.locator(".xterm").click()
    yield made
    await made.terminate()


async def test_it_has_the_size_that_it_is_shown_in(visitor: Visitor, session: Session) -> None:
    page = visitor.page
    frame = next(frame for frame in page.frames if "/terminal/" in frame.url)
    before = await frame.evaluate("[terminal.rows, terminal.cols]")
    await page.set_viewport_size({"width": 900, "height": 700})

    async def size() -> list[int]:
        return list(await frame.evaluate("[terminal.rows, terminal.cols]"))

    await eventually(size, lambda now: now != before)

    async def agrees() -> bool:
        # It may change once more while the page is laid out again: then the shell is asked again.
        rows, columns = await size()
        await page.keyboard.type("clear; stty size\n")
        lines = await eventually(visitor.terminal_text, lambda text: re.search(r"^\d+ \d+$", text, re.MULTILINE))
        return f"{rows} {columns}" in lines.splitlines()

    await eventually(agrees)


async def test_it_says_how_the_shell_ended_and_starts_another(visitor: Visitor, session: Session) -> None:
    await visitor.page.keyboard.type("exit 5\n")
    status = visitor.page.frame_locator("iframe.terminal").locator("#status")
    await expect(status).to_contain_text("exit code 5")
    await visitor.page.keyboard.press("Enter")
    await expect(status).to_contain_text("connected")


async def test_a_program_that_prints_without_end_is_interrupted(visitor: Visitor, session: Session) -> None:
    keyboard = visitor.page.keyboard
    await keyboard.type("yes | head -c 8000000; echo all-$((40+2))\n")
    await eventually(visitor.terminal_text, lambda text: "all-42" in text.splitlines())
    await keyboard.type("yes\n")
    await eventually(visitor.terminal_text, lambda text: text.count("\ny") > 1000)
    await keyboard.press("Control+c")
    await keyboard.type("echo back-$((40+2))\n")
    await eventually(visitor.terminal_text, lambda text: "back-42" in text.splitlines())


async def test_programs_know_the_terminal(visitor: Visitor, session: Session) -> None:
    await visitor.page.keyboard.type("tput colors; echo $TERM-$COLORTERM; clear; echo cleared-$((40+2))\n")
    text = await eventually(visitor.terminal_text, lambda text: "cleared-42" in text.splitlines())
    assert text.splitlines()[0] == "cleared-42"
    await visitor.page.keyboard.type("tput colors; echo $TERM-$COLORTERM\n")
    text = await eventually(visitor.terminal_text, lambda text: "xterm-256color-truecolor" in text.splitlines())
    assert "256" in text.splitlines()


@pytest.mark.parametrize("read", [False, True], ids=["drawn", "read aloud"])
async def test_text_without_keys_is_typed_once(visitor: Visitor, session: Session, read: bool) -> None:
    page = visitor.page
    await page.get_by_label("Screen reader").set_checked(read)
    frame = next(frame for frame in page.frames if "/terminal/" in frame.url)
    await eventually(lambda: frame.evaluate("terminal.options.screenReaderMode"), read.__eq__)
    await frame.locator(".xterm").click()
    await page.keyboard.type("printf '<%s>\\n' 'typed ")
    await page.keyboard.insert_text("dictated words ")
    await page.keyboard.insert_text("\N{GRINNING FACE}")
    await page.keyboard.type("' keys\n")
    text = await eventually(visitor.terminal_text, lambda text: "<keys>" in text.splitlines())
    assert "<typed dictated words \N{GRINNING FACE}>" in text.splitlines()
    await page.get_by_label("Screen reader").set_checked(False)


async def test_a_page_that_is_loaded_again_says_what_became_of_its_shell(visitor: Visitor, session: Session) -> None:
    page, status = visitor.page, visitor.page.frame_locator("iframe.terminal").locator("#status")
    assert "ended" not in await visitor.terminal_text()
    await page.reload()
    await expect(status).to_contain_text("connected")
    await eventually(visitor.terminal_text, lambda text: "its shell has ended" in text and "nohup" in text)
    await page.frame_locator("iframe.terminal").locator(".xterm").click()
    await page.keyboard.type("exit\n")
    await expect(status).to_contain_text("exit code 0")
    await page.reload()
    await expect(status).to_contain_text("connected")
    assert "its shell has ended" not in await visitor.terminal_text()


async def test_output_neither_opens_nor_copies_anything(visitor: Visitor, session: Session) -> None:
    pages = visitor.context.pages
    await visitor.page.keyboard.type(
        "printf '\\033]52;c;b3duZWQ=\\007\\033]8;;javascript:alert(1)\\007link\\033]8;;\\007'; echo done-$((40+2))\n"
    )
    text = await eventually(visitor.terminal_text, lambda text: re.search(r"link.*done-42$", text, re.MULTILINE))
    assert "owned" not in text
    assert visitor.context.pages == pages


async def test_a_window_with_a_shell_asks_before_it_is_closed(visitor: Visitor, session: Session) -> None:
    page = await visitor.context.new_page()
    await page.goto(visitor.page.url.split("/sessions")[0] + f"/terminal/{session.id}/main1")
    await expect(page.locator("#status")).to_contain_text("connected")
    await page.locator(".xterm").click()
    # Browsers ask only where something was done.
    await page.keyboard.type("true\n")
    async with page.expect_event("dialog") as asking:
        await page.close(run_before_unload=True)
    dialog = await asking.value
    assert dialog.type == "beforeunload"
    await dialog.dismiss()
    await page.keyboard.type("exit\n")
    await expect(page.locator("#status")).to_contain_text("exit code 0")
    async with page.expect_event("close"):
        await page.close(run_before_unload=True)
