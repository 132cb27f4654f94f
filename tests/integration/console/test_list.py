"""The live list: what it shows, and that it loses and repeats nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import Page, expect

from retinue.client.errors import Unavailable
from tests.support.eventually import eventually
from tests.support.postmaster import kill_database

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster
    from tests.integration.console.conftest import Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")

MARKUP = "<img src=x onerror=document.title='owned'>"


async def test_it_follows_without_a_reload(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    session = await client.sessions.create(type="interactive", name="followed")
    row = page.locator(f".row[data-session='{session.id}']")
    await expect(row.locator(".state")).to_contain_text("Running")
    await session.terminate()
    await expect(row.locator(".state")).to_contain_text("Terminated")


async def test_a_search_is_in_the_address(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    batch = [await client.sessions.create(type="batch", name=f"found-{at}", command=["true"]) for at in range(3)]
    for session in batch:
        await session.wait_ended()
    await page.get_by_label("Search").fill("name:found-*")
    await expect(page.locator(".list .row")).to_have_count(3)
    await page.get_by_role("button", name="Ended").click()
    await expect(page.locator(".list .row .state").first).to_contain_text("Success")
    await page.reload()
    await expect(page.locator(".list .row")).to_have_count(3)
    assert "tab=ended" in page.url
    assert "found" in page.url


async def _top(page: Page, session: Session) -> float:
    """Returns where on the screen the row of a session is."""
    box = await page.locator(f".row[data-session='{session.id}']").bounding_box()
    assert box is not None
    return box["y"]


async def _held(client: Client, name: str) -> Session:
    return await client.sessions.create(type="batch", name=name, command=["true"], hold=True)


async def test_rows_stay_where_they_are_read_when_others_come(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    await page.set_viewport_size({"width": 1280, "height": 500})
    made = [await _held(client, f"still-{at:02}") for at in range(20)]
    await page.get_by_label("Search").fill("name:still-*")
    table = page.get_by_role("table", name="Sessions")
    await expect(table).to_have_attribute("aria-rowcount", "21")
    await table.evaluate("list => list.scrollTo(0, 300)")
    read = made[8]
    await page.locator(f".row[data-session='{read.id}']").click()
    before = await _top(page, read)
    made += [await _held(client, f"still-{at}") for at in range(20, 23)]
    await expect(table).to_have_attribute("aria-rowcount", "24")
    assert await _top(page, read) == before
    # Keys go on from the row, wherever it is by now.
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("still-08")
    await asyncio.gather(*(session.terminate() for session in made))


async def test_waiting_sessions_are_held_and_released_together(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    made = [await _held(client, f"bulk-{at}") for at in range(3)]
    await page.get_by_label("Search").fill("name:bulk-*")
    await expect(page.locator(".list .row")).to_have_count(3)
    bar = page.get_by_role("status").filter(has_text="3 selected")
    await expect(bar).to_have_count(0)
    await page.get_by_role("checkbox", name="Select all").check()
    await expect(bar).to_be_visible()
    await page.get_by_role("button", name="Priority…").click()
    await page.get_by_label("Priority", exact=True).fill("33")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("3 sessions have priority 33.")).to_be_visible()
    assert {(await session.refresh()).view.spec.priority for session in made} == {33}
    await page.get_by_role("button", name="Undo").click()
    for session in made:
        await eventually(session.refresh, lambda found: found.view.spec.priority == 10)
    await page.get_by_role("button", name="Release").click()
    for session in made:
        await expect(page.locator(f".row[data-session='{session.id}'] .state")).to_contain_text("Success")
    await page.keyboard.press("Escape")
    await expect(bar).to_have_count(0)


async def test_a_row_has_a_menu(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    session = await _held(client, "with-menu")
    await page.get_by_role("button", name="Actions for with-menu").click()
    await page.get_by_role("menuitem", name="End…").click()
    dialog = page.get_by_role("dialog", name="End with-menu?")
    await dialog.get_by_role("button", name="End", exact=True).click()
    await expect(page.locator(f".row[data-session='{session.id}'] .state")).to_contain_text("Cancelled")
    await page.get_by_role("button", name="Actions for with-menu").click()
    await page.get_by_role("menuitem", name="Logs").click()
    await expect(page.locator("h1")).to_have_text("with-menu")
    await expect(page.get_by_role("tab", name="Logs")).to_have_attribute("aria-selected", "true")


async def test_filters_and_columns_are_kept(newcomer: Visitor, client: Client) -> None:
    page = newcomer.page
    session = await client.sessions.create(type="batch", name="kept", command=["true"], labels={"team": "vision"})
    await session.wait_ended()
    await page.get_by_label("Search").fill("name:kept")
    await page.get_by_role("button", name="Filters").click()
    await page.get_by_role("menuitem", name="Save this filter").click()
    await page.get_by_label("Name", exact=True).fill("Mine")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Columns").click()
    await page.get_by_role("menuitemcheckbox", name="Labels").click()
    await page.keyboard.press("Escape")

    await page.goto(page.url.split("?")[0])
    row = page.locator(f".row[data-session='{session.id}']")
    await expect(row.get_by_role("cell", name="team=vision")).to_be_visible()
    await page.get_by_role("button", name="Filters").click()
    await page.get_by_role("menuitem", name="Mine").click()
    await expect(page.locator(".list .row")).to_have_count(1)
    await expect(page.get_by_label("Search")).to_have_value("name:kept")
    await page.get_by_role("button", name="Mine").click()
    await page.get_by_role("menuitem", name="Delete “Mine”").click()
    await expect(page.get_by_role("button", name="Filters")).to_be_visible()
    await page.get_by_role("button", name="Undo").click()
    await expect(page.get_by_role("button", name="Mine")).to_be_visible()


async def test_text_of_users_is_text(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    command = [
        "sh",
        "-c",
        f"printf '%s\\n' \"{MARKUP}\"; printf '\\033]8;;javascript:alert(1)\\007link\\033]8;;\\007\\n'",
    ]
    session = await client.sessions.create(
        type="batch", name="markup", command=command, labels={"note": MARKUP}, environment={"X": MARKUP}
    )
    await session.wait_ended()
    for part in ("", "/logs", "/events", "/spec", "/graph"):
        await page.goto(page.url.split("/sessions")[0] + f"/sessions/{session.id}{part}")
        await expect(page.locator("h1")).to_have_text("markup")
    await page.get_by_role("tab", name="Logs").click()
    await expect(page.locator(".log")).to_contain_text(MARKUP)
    await expect(page.locator(".log")).to_contain_text("link")
    assert await page.locator(".log a, .log img").count() == 0
    assert await page.title() == "Retinue"


async def test_a_line_of_a_megabyte_is_shown(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    command = ["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo the-end"]
    session = await client.sessions.create(type="batch", name="long-line", command=command)
    await session.wait_ended()
    await page.goto(page.url.split("/sessions")[0] + f"/sessions/{session.id}/logs")
    await expect(page.locator(".log")).to_contain_text("the-end")


async def test_a_full_cluster_shows_the_reason_and_what_would_start_it(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    session = await client.sessions.create(type="interactive", name="too-big", slots={"cpu": 64})
    explained = await eventually(session.explain, lambda found: found.reason not in {"", "QUEUED"})
    await page.goto(page.url.split("/sessions")[0] + f"/sessions/{session.id}")
    await expect(page.locator(".why p[title]")).to_have_attribute("title", explained.reason)
    await expect(page.locator(".why")).to_contain_text(explained.message.splitlines()[0], ignore_case=True)
    for change in explained.would_start_with:
        await expect(page.locator(".why")).to_contain_text(change)
    await session.terminate()


async def test_conditions_are_marked_in_the_list_and_shown_on_the_page(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    eat = "/usr/bin/python3 -c 'bytearray(200 * 1024 * 1024)'"
    session = await client.sessions.create(
        type="batch", name="eater", slots={"cpu": 1, "mem": "64m"}, command=["sh", "-c", f"{eat}; sleep 1000"]
    )
    mark = page.locator(f".row[data-session='{session.id}'] .condition-mark")
    await expect(mark).to_have_attribute("aria-label", "OOM_KILLED")
    await session.refresh()
    (condition,) = session.view.conditions
    assert await mark.get_attribute("title") == f"OOM_KILLED: {condition.message}"
    await page.goto(page.url.split("/sessions")[0] + f"/sessions/{session.id}")
    shown = page.locator(".condition")
    await expect(shown).to_have_count(1)
    await expect(shown.locator("code")).to_have_text("OOM_KILLED")
    await expect(shown).to_contain_text(condition.message)
    await expect(shown.locator("small")).to_contain_text(re.compile(r"since .*\d"))
    await session.terminate(force=True)


async def test_a_change_that_the_preview_names_starts_what_would_wait(
    visitor: Visitor, client: Client, cluster: Cluster
) -> None:
    """All agents are full but for one processor of the first."""
    page = visitor.page
    fillers = [
        await client.sessions.create(
            type="interactive", slots={"cpu": cpu, "mem": "64m"}, agents=[agent.id], agent_choice="strict"
        )
        for agent, cpu in zip(cluster.agents, (3, 4), strict=True)
    ]
    for filler in fillers:
        await filler.wait("RUNNING")
    asked = await client.sessions.create(type="interactive", slots={"cpu": 2, "mem": "64m"})
    explained = await eventually(asked.explain, lambda found: found.reason not in {"", "QUEUED"})
    await asked.terminate()
    await page.goto(page.url.split("/sessions")[0] + "/sessions/new")
    for label, value in {"Name": "changed", "cpu": "2", "mem": "64m"}.items():
        await page.get_by_label(label, exact=True).fill(value)
    verdict, outcome = page.locator(".verdict"), page.locator(".outcome")
    await expect(verdict).to_contain_text("Would wait")
    await expect(verdict).to_have_attribute("title", explained.reason)
    await expect(outcome).to_contain_text(explained.message)
    (change,) = explained.would_start_with
    await outcome.get_by_role("button", name=change).click()
    await expect(page.get_by_label("cpu", exact=True)).to_have_value("1")
    await expect(verdict).to_contain_text("Starts now")
    await page.get_by_role("button", name="Launch").click()
    await expect(page.locator("h1")).to_have_text("changed")
    await expect(page.locator(".bar-top .state")).to_contain_text("Running")
    started = await client.sessions.get("changed")
    for session in (started, *fillers):
        await session.terminate()


def _engine(cluster: Cluster) -> int:
    """Returns the process of the gateway's Envoy."""
    children = Path(f"/proc/{cluster.manager.pid}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    return next(pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "envoy")


# Has a page remember what its footer says, however short a time it does.
_KEEP_STATES = """() => {
    const footer = document.querySelector("footer");
    window.states = [];
    new MutationObserver(() => window.states.push(footer.dataset.state)).observe(footer, {attributeFilter: ["data-state"]});
}"""


@pytest.mark.parametrize("killed", ["manager", "database", "gateway"])
async def test_after_a_kill_the_list_is_the_servers(
    visitor: Visitor, client: Client, cluster: Cluster, killed: str
) -> None:
    page = visitor.page
    await page.evaluate(_KEEP_STATES)
    match killed:
        case "manager":
            await cluster.manager.kill()
            await eventually(lambda: page.evaluate("window.states"), lambda found: "reconnecting" in found)
            await cluster.start_manager()
        case "database":
            await kill_database(cluster)
        case _:
            os.kill(await asyncio.to_thread(_engine, cluster), signal.SIGKILL)
            await eventually(lambda: page.evaluate("window.states"), lambda found: "reconnecting" in found)
    session = await eventually(
        lambda: client.sessions.create(type="batch", name=f"after-{killed}", command=["true"]), ignoring=Unavailable
    )
    await session.wait_ended()
    row = page.locator(f".row[data-session='{session.id}']")
    await expect(row.locator(".state")).to_contain_text("Success")
    await expect(page.locator("footer")).to_have_attribute("data-state", "live")
    listed = {found.id async for found in client.sessions.list(show_ended=True)}
    await page.set_viewport_size({"width": 1280, "height": 40 * len(listed) + 800})
    await expect(page.locator(".list .row")).to_have_count(len(listed))
    shown = await page.evaluate("[...document.querySelectorAll('.row')].map(row => row.dataset.session)")
    assert set(shown) == listed
