"""Endpoints in the console, before a real cluster with a router: from a file to requests, and everything between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.v1 import endpoint_pb2 as epb
from tests.integration.console.conftest import STATIC, Visitor, choose, visiting
from tests.integration.router.clients import request
from tests.integration.sessions.replicas import Deployed, manifest, revision
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

CANARY = {"canary": {"steps": [{"percent": 10}, {"percent": 50}]}}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    """A cluster with a router, in place of the one that the other pages have."""
    assert (STATIC / "index.html").is_file(), "run make console"
    options = ClusterOptions(agents=2, prefix="rt-served-", gateway=True, router=True)
    async with Cluster(directory / "served", options) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def someone(chromium: Browser, client: Client) -> AsyncIterator[Visitor]:
    async with visiting(chromium, client) as made:
        yield made


async def _open(page: Page, endpoint: str, part: str = "") -> None:
    origin = page.url.removesuffix("/sessions")
    await page.goto(f"{origin}/endpoints/{endpoint}/{part}")
    await expect(page.get_by_role("tab", selected=True)).to_be_visible()


async def _id(client: Client, name: str) -> str:
    return (await client.endpoints.get(name)).endpoint.id


def _percents(endpoint: epb.Endpoint) -> dict[int, int]:
    return {share.revision: share.percent for share in endpoint.traffic if share.percent}


async def test_mistakes_are_said_where_they_are(someone: Visitor) -> None:
    page = someone.page
    origin = page.url.removesuffix("/sessions")
    await page.goto(f"{origin}/endpoints/new?from=file")
    field = page.get_by_label("File", exact=True)
    await field.fill("name: a\nrevison: {port: 1}")
    await expect(page.get_by_text("Line 2: unknown field revison of EndpointSpec")).to_be_visible()
    await field.fill("name: Bad_name\nrevision: {port: 99999, session: {kernel: {command: ['true']}}}")
    await expect(page.get_by_role("alert")).to_contain_text("spec.revision.port")
    await expect(page.get_by_role("button", name="Create the endpoint")).to_be_disabled()

    await page.goto(f"{origin}/endpoints/new")
    await page.get_by_label("Name", exact=True).fill("by-fields")
    await page.get_by_label("Command").fill("sleep 1000")
    await page.get_by_label("Port").fill("99999")
    await expect(page.get_by_text("must be from 1 to 65535")).to_be_visible()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await page.get_by_label("Port").fill("9000")
    await expect(page.locator(".outcome")).to_contain_text("by-fields can be made")


async def test_a_rollout_is_steered(someone: Visitor, client: Client) -> None:
    page = someone.page
    await client.endpoints.create(manifest("steered", "one", rollout=CANARY))
    await eventually(lambda: client.endpoints.get("steered"), lambda got: got.endpoint.ready_replicas == 1)
    await _open(page, await _id(client, "steered"), "edit")
    field = page.get_by_label("File", exact=True)
    text = await field.input_value()
    assert "- one\n" in text
    await field.fill(text.replace("- one\n", "- two\n"))
    await expect(page.locator(".diff")).to_contain_text("two")
    await page.get_by_role("button", name="Deploy the revision").click()

    steps = page.get_by_role("list", name="Steps of the rollout")
    await expect(steps.locator("[aria-current=step]")).to_contain_text("10 %")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_text("Paused", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_text("In progress", exact=True)).to_be_visible()
    # The share is given once a replica of the new revision is ready.
    await eventually(lambda: client.endpoints.get("steered"), lambda got: _percents(got.endpoint) == {1: 90, 2: 10})
    await page.get_by_role("button", name="Promote").click()
    await expect(steps.locator("[aria-current=step]")).to_contain_text("50 %")
    await eventually(lambda: client.endpoints.get("steered"), lambda got: _percents(got.endpoint) == {1: 50, 2: 50})
    await page.get_by_role("button", name="Abort").click()
    dialog = page.get_by_role("alertdialog")
    await expect(dialog).to_contain_text("the replicas of revision 2 end")
    await dialog.get_by_role("button", name="Abort").click()
    await expect(page.get_by_text("Went back", exact=True)).to_be_visible()
    assert _percents((await client.endpoints.get("steered")).endpoint) == {1: 100}


async def test_traffic_is_split_and_taken_back(someone: Visitor, client: Client) -> None:
    page = someone.page
    await client.endpoints.create(manifest("split", "one"))
    await eventually(lambda: client.endpoints.get("split"), lambda got: got.endpoint.ready_replicas == 1)
    await client.endpoints.deploy("split", revision("two"))
    await eventually(
        lambda: client.endpoints.get("split"),
        lambda got: got.endpoint.rollout.state == epb.ROLLOUT_STATE_DONE and _percents(got.endpoint) == {2: 100},
    )
    await _open(page, await _id(client, "split"), "revisions")
    await expect(page.locator(".diff")).to_contain_text("two")
    await choose(page, "Give another revision a share", "Revision 1")
    await page.get_by_label("Percent of revision 2").fill("70")
    await expect(page.get_by_label("Percent of revision 1")).to_have_value("30")
    await page.get_by_role("slider", name="Share of revision 1").press("ArrowRight")
    await expect(page.get_by_label("Percent of revision 2")).to_have_value("69")
    await page.get_by_role("button", name="Set the shares").click()
    await eventually(lambda: client.endpoints.get("split"), lambda got: _percents(got.endpoint) == {1: 31, 2: 69})
    await page.get_by_role("button", name="Undo").click()
    await eventually(lambda: client.endpoints.get("split"), lambda got: _percents(got.endpoint) == {2: 100})


async def test_a_token_is_shown_once_and_revoked(someone: Visitor, client: Client) -> None:
    page = someone.page
    deployed = await Deployed.create(client, manifest("guarded", "one"))
    await eventually(lambda: client.endpoints.get("guarded"), lambda got: got.endpoint.ready_replicas == 1)
    await _open(page, await _id(client, "guarded"), "tokens")
    await page.get_by_role("button", name="New token").click()
    await page.get_by_label("Label").fill("batch jobs")
    await page.get_by_role("button", name="Make a token").click()
    secret = (await page.locator(".secret pre").inner_text()).strip()
    await page.get_by_role("button", name="I have copied it").click()
    await expect(page.get_by_text(secret)).to_have_count(0)

    async def status() -> int:
        return (await request(deployed.port, deployed.host, authorization=f"Bearer {secret}")).status

    assert (await request(deployed.port, deployed.host)).status == 401
    await eventually(status, lambda answer: answer == 200)
    row = page.get_by_role("row", name="batch jobs")
    await expect(row).to_contain_text("Valid")
    await row.get_by_role("button", name="Revoke").click()
    await page.get_by_role("alertdialog").get_by_role("button", name="Revoke").click()
    await expect(row).to_contain_text("Revoked")
    await eventually(status, lambda answer: answer == 403)


async def test_scaling_logs_and_the_command(someone: Visitor, client: Client) -> None:
    page = someone.page
    spec = manifest("bounded", "one")
    spec.revision.session.kernel.command[:] = ["sh", "-c", "echo it serves; exec python3 -m http.server 8000"]
    spec.revision.ClearField("readiness")
    await client.endpoints.create(spec)
    await eventually(lambda: client.endpoints.get("bounded"), lambda got: got.endpoint.ready_replicas == 1)
    await _open(page, await _id(client, "bounded"), "logs")
    await expect(page.get_by_role("log")).to_contain_text("it serves")

    await page.get_by_role("tab", name="Scaling").click()
    await page.get_by_label("Most replicas").fill("3")
    await page.get_by_role("button", name="Save").click()
    await eventually(lambda: client.endpoints.get("bounded"), lambda got: got.endpoint.spec.scaling.max == 3)
    await page.get_by_label("Replicas at least").fill("2")
    await page.get_by_role("button", name="Set the floor").click()
    await expect(page.get_by_text("At least 2 replicas until")).to_be_visible()
    await eventually(lambda: client.endpoints.get("bounded"), lambda got: got.endpoint.target == 2)

    await page.get_by_role("tab", name="Try it").click()
    await choose(page, "Method", "POST")
    await page.get_by_label("Path").fill("/v1/chat")
    await page.get_by_label("Body").fill('{"q": 1}')
    command = page.get_by_label("The request as a command")
    await expect(command).to_contain_text('"Authorization: Bearer $ENDPOINT_TOKEN"')
    await expect(command).to_contain_text("/v1/chat")

    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Delete the endpoint").click()
    await expect(page.get_by_role("alertdialog")).to_contain_text("finish their requests and end")
    await page.get_by_role("alertdialog").get_by_role("button", name="Delete the endpoint").click()
    await page.wait_for_url("**/endpoints")
