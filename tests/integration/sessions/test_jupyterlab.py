"""JupyterLab in a session, used in a browser through a local port and through the gateway: a cell is typed and run,
and its output shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retinue.client.kernel.port import LocalPort
from retinue.types.v1 import app_pb2 as service_pb
from tests.integration.sessions.browser import Page, page
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Made by scripts/install, by the Python that native processes see.
PATH = "/var/cache/retinue/jupyterlab/bin:/usr/local/bin:/usr/bin:/bin"
# What the test asks the page about; and nothing is fetched from elsewhere.
ARGUMENTS = ["--LabApp.expose_app_in_browser=True", "--LabApp.news_url="]
OUTPUT = "document.querySelector('.jp-OutputArea-output')?.innerText?.trim()"


async def run_a_cell(browser: Page, url: str) -> str:
    """Opens a new notebook at an address, runs a cell in it, and returns its output."""
    await browser.send("Page.navigate", url=url)
    await browser.until("window.jupyterapp?.restored && document.querySelector('.jp-Launcher') !== null")
    create = "window.jupyterapp.commands.execute('notebook:create-new', {kernelName: 'python3'})"
    await browser.evaluate(f"{create}.then(panel => panel.sessionContext.ready).then(() => true)")
    await browser.until("document.querySelector('.jp-Notebook .cm-content') !== null")
    await browser.evaluate("document.querySelector('.jp-Notebook .cm-content').focus()")
    await browser.send("Input.insertText", text="import os; print(f\"{os.environ['BACKENDAI_CLUSTER_HOST']} {6 * 7}\")")
    key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 8}
    await browser.send("Input.dispatchKeyEvent", type="rawKeyDown", **key)
    await browser.send("Input.dispatchKeyEvent", type="keyUp", **key)
    return str(await browser.until(OUTPUT))


async def test_a_cell_is_run(client: Client) -> None:
    session = await client.sessions.create(
        type="interactive",
        slots={"cpu": "1", "mem": "768m"},
        termination_grace=0,
        environment={"PATH": PATH},
        apps=["jupyterlab"],
    )
    try:
        await session.wait("RUNNING", timeout=NEVER)
        while (await session.start_app("jupyterlab", ARGUMENTS)).state != service_pb.APP_STATE_RUNNING:
            pass
        async with LocalPort(lambda: session.open_port("jupyterlab")) as local, page() as browser:
            host, port = local.address
            assert await run_a_cell(browser, f"http://{host}:{port}/lab") == "main1 42"
            await browser.open()
            ticket = await session.create_port_ticket("jupyterlab", "/lab/workspaces/gateway")
            await browser.send("Page.navigate", url=ticket.origin)
            await browser.until("document.title === 'Not open to this browser'")
            assert await run_a_cell(browser, ticket.url) == "main1 42"
            # No script sees the gateway's cookie, but it goes along with what scripts ask for,
            # up to the end of the session.
            assert "retinue" not in await browser.evaluate("document.cookie")
            status = "fetch('/api/status').then(answer => answer.status)"
            assert await browser.evaluate(status) == 200
            await session.terminate(force=True)
            # In between, a program that has ended gives no answer.
            await eventually(lambda: browser.evaluate(status), lambda answered: answered in (401, 403))
    finally:
        await session.terminate(force=True)
        await session.wait_ended(NEVER)
