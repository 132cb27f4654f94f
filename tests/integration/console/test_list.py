"""The live list: what it shows, and that it loses and repeats nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from playwright.async_api import expect

from retinue.client.aio import Client
from retinue.client.errors import Unavailable
from retinue.devtools.cluster import Cluster
from tests.integration.console.conftest import Visitor
from tests.support.eventually import eventually
from tests.support.postmaster import kill_database

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
    await page.get_by_role("tab", name="Ended").click()
    await expect(page.locator(".list .row .state").first).to_contain_text("Success")
    await page.reload()
    await expect(page.locator(".list .row")).to_have_count(3)
    assert "tab=ended" in page.url
    assert "found" in page.url


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
    await expect(page.locator(".why")).to_contain_text(explained.reason)
    await expect(page.locator(".why")).to_contain_text(explained.message)
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
    outcome = page.locator(".outcome")
    await expect(outcome).to_contain_text(explained.reason)
    await expect(outcome).to_contain_text(explained.message)
    (change,) = explained.would_start_with
    await outcome.get_by_role("button", name=change).click()
    await expect(page.get_by_label("cpu", exact=True)).to_have_value("1")
    await expect(outcome).to_contain_text("Starts now")
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
