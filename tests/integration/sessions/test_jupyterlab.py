"""JupyterLab in a session, used in a browser through a local port: a cell is typed and run, and its output shown."""

from __future__ import annotations

import pytest

from retinue.client import Client
from retinue.client.port import LocalPort
from retinue.manager.v1 import session_pb2
from retinue.manager.v1 import session_service_pb2 as service_pb
from tests.integration.sessions.browser import page

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAIT = 60.0
# Made by scripts/install, by the Python that native processes see.
PROGRAM = "/var/cache/retinue/jupyterlab/bin/jupyter-lab"
LAB = session_pb2.ServiceDefinition(
    name="jupyter",
    command=[
        PROGRAM,
        "--no-browser",
        "--ip=127.0.0.1",
        "--port={port}",
        "--ServerApp.port_retries=0",
        "--IdentityProvider.token={session}",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=",
    ],
)
OUTPUT = "document.querySelector('.jp-OutputArea-output')?.innerText?.trim()"


async def test_a_cell_is_run(client: Client) -> None:
    session = await client.sessions.create(
        type="interactive",
        slots={"cpu": "1", "mem": "768m"},
        termination_grace=0,
        ports=[("jupyter", "http", 8888)],
        services=[LAB],
    )
    try:
        await session.wait("RUNNING", timeout=WAIT)
        while (await session.start_service("jupyter")).state != service_pb.SERVICE_STATE_RUNNING:
            pass
        async with LocalPort(lambda: session.open_port("jupyter")) as local, page() as browser:
            host, port = local.address
            await browser.send("Page.navigate", url=f"http://{host}:{port}/lab?token={session.id}")
            await browser.until("window.jupyterapp?.restored && document.querySelector('.jp-Launcher') !== null", WAIT)
            create = "window.jupyterapp.commands.execute('notebook:create-new', {kernelName: 'python3'})"
            await browser.evaluate(f"{create}.then(panel => panel.sessionContext.ready).then(() => true)")
            await browser.until("document.querySelector('.jp-Notebook .cm-content') !== null", WAIT)
            await browser.evaluate("document.querySelector('.jp-Notebook .cm-content').focus()")
            await browser.send("Input.insertText", text="import os; print(os.environ['BACKENDAI_CLUSTER_HOST'], 6 * 7)")
            key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 8}
            await browser.send("Input.dispatchKeyEvent", type="rawKeyDown", **key)
            await browser.send("Input.dispatchKeyEvent", type="keyUp", **key)
            assert await browser.until(OUTPUT, WAIT) == "main1 42"
    finally:
        await session.terminate(force=True)
        await session.wait_ended(WAIT)
