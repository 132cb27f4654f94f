"""What administrators do in the console: users, quotas, nodes, tokens, policies, and the audit of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import Browser, Page, expect

from retinue.client.aio import Client
from retinue.client.errors import CallError
from retinue.manager.v1.account_service_pb2 import UserRole
from tests.integration.console.conftest import Visitor, choose, visiting
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _go(page: Page, place: str) -> None:
    await page.get_by_role("navigation", name="Menu").get_by_role("link", name=place, exact=True).click()
    await expect(page.locator("h1")).to_have_text(place)


async def test_a_user_is_made_and_gets_a_quota(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    await client.projects.create("nets")
    await _go(page, "Users and tokens")
    await page.get_by_role("button", name="New user").click()
    await page.get_by_label("Name", exact=True).fill("Grace!")
    await page.get_by_role("button", name="Create", exact=True).click()
    # What the server refuses stands beside the field.
    await expect(page.get_by_label("Name", exact=True)).to_have_attribute("aria-invalid", "true")
    await page.get_by_label("Name", exact=True).fill("grace")
    await page.get_by_role("button", name="Create", exact=True).click()
    sheet = page.get_by_role("dialog", name="grace", exact=True)
    await choose(page, "Add to a project", "nets")
    await sheet.get_by_role("button", name="Add", exact=True).click()
    await expect(sheet.locator(".members")).to_contain_text("nets")
    for action, role in (
        ("Make an administrator", UserRole.USER_ROLE_ADMIN),
        ("Make an ordinary user", UserRole.USER_ROLE_USER),
    ):
        await sheet.get_by_role("button", name=action).click()
        asked = page.get_by_role("alertdialog")
        await expect(asked).to_contain_text("grace")
        await asked.get_by_role("button", name=action).click()
        await expect(asked).to_be_hidden()
        assert (await client.users.get("grace")).role == role
    await page.keyboard.press("Escape")

    # From the home page: the page of users, the button, the field, and Save.
    await _go(page, "Home")
    await _go(page, "Users and tokens")
    await page.get_by_role("button", name="Quota grace").click()
    dialog = page.get_by_role("dialog", name="Quota of grace", exact=True)
    cpu, save = dialog.get_by_label("cpu", exact=True), dialog.get_by_role("button", name="Save")
    await expect(cpu).to_be_visible()
    await expect(save).to_be_disabled()
    await cpu.fill("plenty")
    await save.click()
    await expect(cpu).to_have_attribute("aria-invalid", "true")
    await cpu.fill("2")
    await expect(dialog.locator(".changes")).to_have_text("cpunot set2")
    await save.click()
    await expect(dialog).to_be_hidden()
    assert dict((await client.quotas.get("user", "grace")).slots) == {"cpu": "2"}

    await _go(page, "Quotas")
    row = page.locator(".quotas li[data-quota=grace]")
    await expect(row.get_by_role("meter", name="cpu")).to_have_attribute("aria-valuetext", "0 of 2 used")
    await row.get_by_role("button", name="Remove").click()
    await page.get_by_role("alertdialog").get_by_role("button", name="Remove").click()
    await expect(row).to_have_count(0)
    await client.users.delete("grace")
    await client.projects.delete("nets")


async def test_a_project_has_members(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    await client.users.create("ada")
    await _go(page, "Projects")
    await page.get_by_role("button", name="New project").first.click()
    await page.get_by_label("Name", exact=True).fill("engines")
    await page.get_by_role("button", name="Create", exact=True).click()
    sheet = page.get_by_role("dialog", name="engines", exact=True)
    await choose(page, "Add a user", "ada")
    await sheet.get_by_role("button", name="Add", exact=True).click()
    await choose(page, "Role of ada in engines", "Project admin")
    await expect(page.get_by_text("ada is now Project admin of engines.").first).to_be_visible()
    (membership,) = (await client.users.get("ada")).memberships
    assert membership.project == "engines"
    await sheet.get_by_role("button", name="Delete").click()
    asked = page.get_by_role("alertdialog")
    await expect(asked).to_contain_text("ada")
    await asked.get_by_role("button", name="Delete").click()
    # Behind the question, which hides the sheet too, the project may be there still.
    await expect(asked).to_be_hidden()
    await expect(sheet).to_be_hidden()
    assert [project.name async for project in client.projects.list() if project.name == "engines"] == []
    await client.users.delete("ada")


async def test_a_node_is_drained_and_comes_back(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    session = await client.sessions.create(type="interactive", name="tenant", command=["sleep", "3600"])
    await session.wait("RUNNING")
    agent = (await session.refresh()).kernels[0].agent
    await _go(page, "Nodes")
    card = page.locator(f"li[data-agent='{agent}']")
    await card.get_by_role("button", name=f"Drain {agent}", exact=True).click()
    asked = page.get_by_role("alertdialog", name=f"Drain {agent}?")
    there = asked.locator(".sessions-there li", has_text="tenant")
    await expect(there).to_contain_text("stays until it ends")
    await choose(page, "Evict what still runs", "At once")
    await expect(there).to_contain_text("is ended then")
    await choose(page, "Evict what still runs", "Never: wait for it to end")
    await asked.get_by_role("button", name="Drain", exact=True).click()
    await expect(card).to_contain_text("drained")
    assert (await client.agents.get(agent)).drained

    await card.get_by_role("button", name=f"Undrain {agent}").click()
    await page.get_by_role("alertdialog").get_by_role("button", name="Undrain").click()
    await expect(card.get_by_role("button", name=f"Drain {agent}", exact=True)).to_be_visible()
    assert not (await client.agents.get(agent)).drained

    await card.get_by_role("button", name=agent, exact=True).click()
    await expect(page.get_by_role("dialog", name=agent, exact=True).get_by_role("link", name="tenant")).to_be_visible()
    await page.keyboard.press("Escape")
    for view, hook in (("Table", "section[aria-label=Nodes] table"), ("Heat map", "table.heat")):
        await page.get_by_role("button", name=view, exact=True).click()
        await expect(page.locator(hook)).to_contain_text(agent)
    await session.terminate()


async def test_a_join_token_is_shown_once(visitor: Visitor) -> None:
    page = visitor.page
    await _go(page, "Nodes")
    await page.get_by_role("button", name="Add a node").click()
    await page.get_by_label("Good for").fill("soon")
    await page.get_by_role("button", name="Make the token").click()
    await expect(page.get_by_label("Good for")).to_have_attribute("aria-invalid", "true")
    await page.get_by_label("Good for").fill("1h")
    await page.get_by_role("button", name="Make the token").click()
    shown = page.get_by_role("dialog", name="Join token")
    await expect(shown.locator(".secret")).not_to_be_empty()
    await expect(shown).to_contain_text("retinue-agent join")
    await shown.get_by_role("button", name="I have copied it").click()
    await expect(shown).to_be_hidden()


async def test_a_token_is_made_and_revoked(visitor: Visitor, client: Client, cluster: Cluster) -> None:
    page = visitor.page
    await _go(page, "Users and tokens")
    await page.get_by_role("tab", name="My tokens").click()
    await page.get_by_role("button", name="New token").click()
    await page.get_by_label("Description").fill("nightly")
    await page.get_by_role("button", name="Create", exact=True).click()
    secret = await page.locator(".secret").inner_text()
    await page.get_by_role("button", name="I have copied it").click()
    settings = cluster.settings
    async with Client.connect(settings.endpoint, token=secret, ca=settings.ca) as other:
        assert (await other.users.caller()).name == (await client.users.caller()).name
    await page.get_by_role("button", name="Revoke nightly").click()
    asked = page.get_by_role("alertdialog")
    await asked.get_by_role("button", name="Revoke").click()
    # While it asks, what is behind it has no role.
    await expect(asked).to_be_hidden()
    await expect(page.get_by_role("button", name="Revoke nightly")).to_have_count(0)
    (token,) = [token async for token in client.tokens.list() if token.description == "nightly"]
    assert token.HasField("revoke_time")


async def test_the_policy_of_a_group_changes_and_is_taken_back(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    await client.resource_groups.create("pool")
    await _go(page, "Resource groups")
    await page.get_by_role("button", name="pool", exact=True).click()
    await page.get_by_role("dialog", name="pool", exact=True).get_by_role("button", name="Edit").click()
    editor = page.get_by_role("dialog", name="Policies of pool")
    await choose(page, "Next session", "First come, first served")
    await page.get_by_label("Cancelled after a wait of").fill("1h")
    await expect(editor.locator(".changes li")).to_have_count(2)
    await editor.get_by_role("tab", name="Idle sessions").click()
    await editor.get_by_label("Ends when unused for").fill("1s")
    await editor.get_by_role("button", name="Save").click()
    await expect(editor.get_by_label("Ends when unused for")).to_have_attribute("aria-invalid", "true")
    await editor.get_by_label("Ends when unused for").fill("2h")
    await editor.get_by_role("button", name="Save").click()
    await expect(editor).to_be_hidden()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog", name="pool", exact=True)).to_be_hidden()
    # A notice stays while it is pointed at.
    await page.get_by_text("The policies of pool are changed.").first.hover()
    policy = (await client.resource_groups.get("pool")).scheduling_policy
    assert policy.session_strategy.WhichOneof("strategy") == "fifo"
    assert policy.pending_timeout.seconds == 3600
    assert (await client.resource_groups.get("pool")).idle_policy.interaction_timeout.seconds == 7200

    await page.get_by_role("button", name="Undo").click()

    async def strategy() -> str:
        group = await client.resource_groups.get("pool")
        return str(group.scheduling_policy.session_strategy.WhichOneof("strategy"))

    await eventually(strategy, lambda name: name == "drf")
    await page.get_by_role("button", name="pool", exact=True).click()
    await page.get_by_role("dialog", name="pool", exact=True).get_by_role("button", name="Delete").click()
    await page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("button", name="pool", exact=True)).to_have_count(0)


async def test_the_audit_is_filtered(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    await client.projects.create("audited")
    with pytest.raises(CallError):
        await client.projects.create("audited")
    await _go(page, "Audit")
    await page.get_by_label("On what").fill("audited")
    rows = page.locator("section[aria-label=Audit] tbody tr")
    await expect(rows).to_have_count(2)
    await choose(page, "Outcome", "Refused or failed")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("NAME_TAKEN")
    await rows.get_by_role("button", name="Details").click()
    details = page.get_by_role("dialog", name="CreateProject")
    await expect(details).to_contain_text("ALREADY_EXISTS")
    await page.keyboard.press("Escape")
    await choose(page, "Call", "DeleteUser")
    await expect(page.get_by_text("Nothing matches.")).to_be_visible()
    await page.get_by_role("button", name="Clear the filters").click()
    await expect(rows.nth(1)).to_be_visible()
    await client.projects.delete("audited")


async def test_what_an_ordinary_user_may_not_do_is_not_offered(
    chromium: Browser, client: Client, cluster: Cluster
) -> None:
    await client.users.create("eve")
    secret = (await client.tokens.create(user="eve")).secret
    settings = cluster.settings
    async with (
        Client.connect(settings.endpoint, token=secret, ca=settings.ca) as own,
        visiting(chromium, own) as visitor,
    ):
        page = visitor.page
        for place in ("Nodes", "Users and tokens", "Projects", "Quotas", "Resource groups", "Audit"):
            await _go(page, place)
            await page.wait_for_load_state("networkidle")
            cards = page.locator("li[data-agent]")
            offered = page.get_by_role("button", name="Add a node").or_(cards.get_by_role("button", name="Drain"))
            for name in ("New user", "New project", "Set a quota", "New resource group"):
                offered = offered.or_(page.get_by_role("button", name=name))
            await expect(offered).to_have_count(0)
            await expect(page.get_by_role("alert")).to_have_count(0)
    await client.users.delete("eve")
