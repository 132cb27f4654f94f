"""The terminal: its size, its end, and output that is faster than it is drawn."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from playwright.async_api import Browser, FloatRect, Page, expect

from tests.integration.console.conftest import Visitor, visiting
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session

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
    await page.get_by_role("checkbox", name="Screen reader").set_checked(read)
    frame = next(frame for frame in page.frames if "/terminal/" in frame.url)
    await eventually(lambda: frame.evaluate("terminal.options.screenReaderMode"), read.__eq__)
    await frame.locator(".xterm").click()
    await page.keyboard.type("printf '<%s>\\n' 'typed ")
    await page.keyboard.insert_text("dictated words ")
    await page.keyboard.insert_text("\N{GRINNING FACE}")
    await page.keyboard.type("' keys\n")
    text = await eventually(visitor.terminal_text, lambda text: "<keys>" in text.splitlines())
    assert "<typed dictated words \N{GRINNING FACE}>" in text.splitlines()
    await page.get_by_role("checkbox", name="Screen reader").set_checked(False)


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


async def test_shells_survive_other_pages_until_they_are_closed(visitor: Visitor, session: Session) -> None:
    page = visitor.page
    await page.keyboard.type("kept=42\n")
    await page.get_by_role("tab", name="Logs").click()
    await page.get_by_role("navigation", name="Menu").get_by_role("link", name="Sessions").click()
    await expect(page.locator("h1")).to_have_text("Sessions")
    await expect(page.locator("iframe.terminal")).to_be_hidden()
    await page.go_back()
    await page.get_by_role("tab", name="Terminal").click()
    await page.frame_locator("iframe.terminal").locator(".xterm").click()
    await page.keyboard.type("echo still-$kept\n")
    await eventually(visitor.terminal_text, lambda text: "still-42" in text.splitlines())

    await page.get_by_role("button", name="Split in two").click()
    frames = page.locator("iframe.terminal:visible")
    await expect(frames).to_have_count(2)
    first, second = [await frame.bounding_box() for frame in await frames.all()]
    assert first is not None
    assert second is not None
    assert first["x"] + first["width"] <= second["x"]
    other = page.frame_locator("iframe.terminal >> nth=1")
    await expect(other.locator("#status")).to_contain_text("connected")
    await other.locator(".xterm").click()
    await page.keyboard.type("exit 7\n")
    await expect(other.locator("#status")).to_contain_text("exit code 7")
    await page.get_by_role("button", name="Close main1 (2)").click()
    await expect(frames).to_have_count(1)


async def _underscore(page: Page) -> int:
    """Returns how many pixels of the underscores that are the only text of the first line are drawn."""
    clip = await page.locator(".xterm-rows > div").first.bounding_box()
    assert clip is not None
    picture = base64.b64encode(await page.screenshot(clip=FloatRect(**clip))).decode()
    return int(
        await page.evaluate(
            """async (picture) => {
                const bytes = Uint8Array.from(atob(picture), (c) => c.charCodeAt(0));
                const image = await createImageBitmap(new Blob([bytes]));
                const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
                context.drawImage(image, 0, 0);
                const {data} = context.getImageData(0, 0, image.width, image.height);
                let dark = 0;
                for (let at = 0; at < data.length; at += 4) if (data[at] + data[at + 1] + data[at + 2] < 660) dark += 1;
                return dark;
            }""",
            picture,
        )
    )


@pytest.mark.parametrize("scale", [1, 1.25, 1.5, 2])
async def test_every_letter_is_drawn_whole(chromium: Browser, client: Client, session: Session, scale: float) -> None:
    async with visiting(chromium, client, device_scale_factor=scale, color_scheme="light") as visitor:
        page = visitor.page
        await page.goto(page.url.split("/sessions")[0] + f"/terminal/{session.id}/main1")
        await expect(page.locator("#status")).to_contain_text("connected")
        # Its prompt is behind us.
        await expect(page.locator(".xterm-rows")).to_contain_text("$")
        await page.evaluate("terminal.reset(); terminal.write('\\x1b[?25l' + '_'.repeat(40))")
        await expect(page.locator(".xterm-rows > div").first).to_have_text("_" * 40)
        # A line of 40 underscores is at least a pixel high.
        columns = await page.evaluate("document.querySelector('.xterm-rows span').getBoundingClientRect().width")
        assert await _underscore(page) >= 0.9 * columns * scale
        await page.evaluate("terminal.input('exit\\n')")
        await expect(page.locator("#status")).to_contain_text("exit code")


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


async def test_keys_along_the_tabs_of_a_page_are_not_caught(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    session = await client.sessions.create(type="interactive")
    await session.wait("RUNNING")
    await page.goto(page.url.split("/sessions")[0] + f"/sessions/{session.id}/logs")
    await page.get_by_role("tab", name="Logs").focus()
    await page.keyboard.press("ArrowRight")
    tab = page.get_by_role("tab", name="Terminal")
    await expect(tab).to_be_focused()
    await page.keyboard.press("Enter")
    frame = page.frame_locator("iframe.terminal")
    await expect(frame.locator("#status")).to_contain_text("connected")
    await expect(tab).to_be_focused()
    # By a click one has come to type.
    await page.get_by_role("tab", name="Logs").click()
    await tab.click()
    await expect(frame.locator(".xterm textarea")).to_be_focused()
    await session.terminate()


async def test_it_is_as_dark_as_the_console(visitor: Visitor, session: Session) -> None:
    page = visitor.page
    screen = page.frame_locator("iframe.terminal").locator(".xterm-scrollable-element")
    light, dark = "rgb(255, 255, 255)", "rgb(22, 24, 29)"
    await page.emulate_media(color_scheme="light")
    await expect(screen).to_have_css("background-color", light)
    await page.emulate_media(color_scheme="dark")
    await expect(screen).to_have_css("background-color", dark)
    # What is chosen in the console comes before what the system says.
    for theme, colour in (("Light", light), ("Dark", dark), ("System", dark)):
        await page.get_by_role("button", name="Account of").click()
        await page.get_by_role("menuitemradio", name=theme).click()
        await page.keyboard.press("Escape")
        await expect(screen).to_have_css("background-color", colour)
    await page.emulate_media(color_scheme=None)
