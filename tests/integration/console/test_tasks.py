"""What a newcomer does first, from the home page and in few clicks: what a console is chosen for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.v1 import endpoint_pb2 as epb
from tests.integration.console.conftest import Visitor, visiting
from tests.integration.sessions.replicas import PROGRAM
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

# In every document, and before anything in it can stop the event: a click of a mouse, or of a key on a button.
COUNT = "addEventListener('click', event => event.isTrusted && counted(), true)"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    """A cluster with a router, which serves endpoints."""
    options = ClusterOptions(agents=2, prefix="rt-tasks-", gateway=True, router=True)
    (directory / "tasks").mkdir()
    async with Cluster(directory / "tasks", options) as made:
        yield made


@dataclass(frozen=True, slots=True)
class Task:
    """Something to do with the console, and with how many clicks at most."""

    clicks: int
    carry_out: Callable[[Visitor, Client, Path], Awaitable[None]]


async def _shell(page: Page) -> None:
    """Waits for the terminal that the page shows, which has the focus."""
    frame = page.frame_locator("iframe.terminal")
    await expect(frame.locator("#status")).to_contain_text("connected")
    await expect(frame.locator(".xterm textarea")).to_be_focused()


async def first_session(visitor: Visitor, client: Client, _: Path) -> None:
    page = visitor.page
    await page.get_by_role("main").get_by_role("link", name="New session").click()
    await page.get_by_role("button", name="Launch").click()
    await page.get_by_role("link", name="Terminal", exact=True).click()
    await _shell(page)
    await page.keyboard.type("echo $((6*7))-$BACKENDAI_CLUSTER_HOST\n")
    await eventually(visitor.terminal_text, lambda text: "42-main1" in text.splitlines())


async def why_it_waits(visitor: Visitor, client: Client, _: Path) -> None:
    page = visitor.page
    await client.sessions.create(type="interactive", name="too-large", slots={"cpu": 64})
    await page.get_by_role("link", name="too-large").click()
    await expect(page.get_by_role("region", name="Why it waits")).to_contain_text("64 cpu")


async def ssh_to_another_kernel(visitor: Visitor, client: Client, _: Path) -> None:
    page = visitor.page
    session = await client.sessions.create(type="interactive", name="pair", cluster_size=2, slots={"cpu": 1})
    await session.wait("RUNNING")
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.get_by_role("link", name="pair").click()
    await page.get_by_role("row", name="sub1").get_by_role("button", name="Copy").click()
    command = await page.evaluate("navigator.clipboard.readText()")
    await page.get_by_role("link", name="Terminal", exact=True).click()
    await _shell(page)
    await page.keyboard.type(f"{command} 'echo $((6*7))-$BACKENDAI_CLUSTER_HOST'\n")
    await eventually(visitor.terminal_text, lambda text: "42-sub1" in text.splitlines())


async def deploy_an_endpoint(visitor: Visitor, client: Client, directory: Path) -> None:
    page = visitor.page
    path = directory / "from-file.yaml"
    kernel = {"command": ["python3", "-c", PROGRAM, "from-file"], "slots": {"cpu": "0.2", "mem": "64m"}}
    readiness = {"http": {"path": "/health"}, "period": "1s"}
    made = {"port": 8000, "readiness": readiness, "session": {"kernel": kernel}}
    path.write_text(json.dumps({"kind": "endpoint", "name": "from-file", "revision": made, "scaling": {"max": 2}}))

    await page.get_by_role("link", name="Endpoints", exact=True).click()
    await page.get_by_role("link", name="From a file").click()
    async with page.expect_file_chooser() as chooser:
        await page.get_by_role("button", name="Choose a file").click()
    await (await chooser.value).set_files(path)
    await expect(page.locator(".outcome")).to_contain_text("from-file can be made, with 1 to 2 replicas")
    await page.get_by_role("button", name="Create the endpoint").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("from-file")
    await expect(page.locator(".bar-top .state")).to_have_text("Ready")
    spec = (await client.endpoints.get("from-file")).endpoint.spec
    assert spec.scaling.max == 2
    assert spec.access.mode == epb.ACCESS_MODE_TOKEN


async def raise_a_quota(visitor: Visitor, client: Client, _: Path) -> None:
    page = visitor.page
    await client.users.create("grace")
    await client.quotas.set("user", "grace", slots={"cpu": "2"})
    await page.get_by_role("link", name="Quotas", exact=True).click()
    await page.locator(".quotas li[data-quota=grace]").get_by_role("button", name="Edit").click()
    await page.get_by_role("dialog").get_by_label("cpu", exact=True).fill("4")
    await page.get_by_role("dialog").get_by_role("button", name="Save").click()
    await expect(page.get_by_role("dialog")).to_be_hidden()
    assert dict((await client.quotas.get("user", "grace")).slots) == {"cpu": "4"}


TASKS = {
    "a first session and a shell in it": Task(4, first_session),
    "why a session waits": Task(1, why_it_waits),
    "ssh to sub1 of a session": Task(3, ssh_to_another_kernel),
    "an endpoint from a file": Task(4, deploy_an_endpoint),
    "a higher quota": Task(5, raise_a_quota),
}


@pytest.mark.parametrize("name", TASKS)
async def test_a_newcomer_needs_few_clicks(chromium: Browser, client: Client, tmp_path: Path, name: str) -> None:
    clicks = 0

    def counted() -> None:
        nonlocal clicks
        clicks += 1

    async with visiting(chromium, client) as visitor:
        page = visitor.page
        await visitor.context.expose_function("counted", counted)
        await visitor.context.add_init_script(COUNT)
        await page.goto(page.url.replace("/sessions", "/home"))
        await expect(page.get_by_role("heading", level=1)).to_have_text("Home")
        await TASKS[name].carry_out(visitor, client, tmp_path)
    assert 0 < clicks <= TASKS[name].clicks
