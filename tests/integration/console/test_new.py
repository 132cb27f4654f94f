"""New session and templates: what is chosen, what is refused where, and what is kept for another time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

if TYPE_CHECKING:
    from playwright.async_api import Locator

    from retinue.client.aio import Client
    from tests.integration.console.conftest import Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")


def _origin(visitor: Visitor) -> str:
    return visitor.page.url.split("/sessions")[0]


async def test_a_refusal_stands_beside_its_field(visitor: Visitor) -> None:
    page = visitor.page
    await page.goto(f"{_origin(visitor)}/sessions/new")
    name = page.get_by_label("Name", exact=True)
    await name.fill("-bad-")
    await expect(name).to_have_accessible_description(
        "must be 1-63 characters a-z, 0-9 and -, with no dash first or last"
    )
    await expect(name).to_have_attribute("aria-invalid", "true")
    cpu = page.get_by_label("cpu", exact=True)
    await cpu.fill("much")
    await expect(cpu).to_have_attribute("aria-invalid", "true")

    # Of a row in a part that is not shown, its tab says so.
    ports = page.get_by_role("tab", name="Service ports")
    await ports.click()
    await page.get_by_role("button", name="Add a port").click()
    await page.get_by_role("button", name="Add a port").click()
    number = page.get_by_label("Port number 2")
    await number.fill("80")
    await expect(number).to_have_accessible_description("must be from 1024 to 65535")
    await page.get_by_role("tab", name="Mounts").click()
    await expect(ports).to_contain_text("!")
    await ports.click()
    await page.get_by_role("button", name="Remove row 2").click()
    await expect(ports).not_to_contain_text("!")

    # What the page itself cannot read does not go to the server.
    size = page.get_by_label("Number of kernels")
    await size.fill("1.5")
    await expect(size).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_role("button", name="Launch")).to_be_disabled()


async def test_sizes_sliders_and_amounts_say_the_same(visitor: Visitor) -> None:
    page = visitor.page
    await page.get_by_role("link", name="New session").click()
    cpu = page.get_by_label("cpu", exact=True)
    whole = page.get_by_role("radio", name="Whole")
    await whole.click()
    await expect(cpu).to_have_value("4")
    slider = page.get_by_role("slider", name="Processors")
    await expect(slider).to_have_attribute("aria-valuenow", "4")
    await slider.press("ArrowLeft")
    await expect(cpu).to_have_value("3.5")
    await expect(whole).not_to_be_checked()
    await page.get_by_label("mem", exact=True).fill("64m")
    await expect(page.get_by_role("slider", name="Memory")).to_have_attribute("aria-valuetext", "64M")


async def test_a_template_is_made_started_from_changed_and_deleted(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    await page.goto(f"{_origin(visitor)}/sessions/new")
    await page.get_by_role("radio", name="Batch job").click()
    await page.get_by_label("Command").fill("echo 'a  template'")
    await page.get_by_label("mem", exact=True).fill("64m")
    await page.get_by_role("button", name="Save as a template").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("kept")
    await dialog.get_by_label("Description").fill("Kept by the page")
    await dialog.get_by_role("button", name="Create").click()
    await expect(dialog).to_have_count(0)

    await page.get_by_role("navigation", name="Menu").get_by_role("link", name="Templates").click()
    await expect(_card(visitor, "kept")).to_contain_text("Kept by the page")
    await page.get_by_role("link", name="Start a session from kept").click()
    await expect(page.get_by_role("radio", name="kept")).to_be_checked()
    await expect(page.get_by_label("Command")).to_have_attribute("placeholder", "echo 'a  template'")
    await page.get_by_label("Name", exact=True).fill("of-kept")
    await expect(page.locator(".verdict")).to_contain_text("Starts now")
    await page.get_by_role("button", name="Launch").click()
    await expect(page.locator("h1")).to_have_text("of-kept")
    session = await client.sessions.get("of-kept")
    await session.wait_ended()
    assert session.exit_code == 0
    spec = session.view.spec
    assert (spec.template.name, list(spec.kernel.command)) == ("kept", ["echo", "a  template"])
    assert spec.kernel.slots["mem"] == "64m"

    await page.goto(f"{_origin(visitor)}/templates")
    await _act(visitor, "Edit")
    request = dialog.get_by_label("Request")
    await request.fill((await request.input_value()).replace("mem: 64m", "mem: 96m"))
    await expect(dialog.get_by_role("region", name="What changes")).to_contain_text("+     mem: 96m")
    await dialog.get_by_role("button", name="Save version 2").click()
    await expect(_card(visitor, "kept")).to_contain_text("Version 2")

    await _act(visitor, "Edit")
    await request.fill("kernel: {slots: {cpu: much}}")
    await expect(dialog.get_by_role("button", name="Save version 3")).to_be_disabled()
    await expect(request).to_have_attribute("aria-invalid", "true")
    await dialog.get_by_role("button", name="Cancel").click()

    await _act(visitor, "Delete")
    asked = page.get_by_role("alertdialog")
    await expect(asked).to_contain_text("kept")
    await asked.get_by_role("button", name="Delete").click()
    await expect(_card(visitor, "kept")).to_have_count(0)
    await page.get_by_role("button", name="Undo").click()
    await expect(_card(visitor, "kept")).to_contain_text("mem 96M")
    await client.templates.delete("kept")


def _card(visitor: Visitor, name: str) -> Locator:
    return visitor.page.get_by_role("list", name="Templates").get_by_role("listitem").filter(has_text=name)


async def _act(visitor: Visitor, action: str) -> None:
    """Picks an action of the menu of a template."""
    await visitor.page.get_by_role("button", name="Actions of kept").click()
    await visitor.page.get_by_role("menuitem", name=action).click()
