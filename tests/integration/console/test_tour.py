"""The pages of the tutorial, with things in them: each shows what runs, and the documentation has their pictures."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from retinue.client.manifest import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster
    from tests.integration.console.conftest import Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")

ENDPOINT = """
kind: endpoint
name: assistant
revision:
  port: 8000
  session: {kernel: {command: [python3, -m, http.server, "8000"], slots: {cpu: 0.5, mem: 64m}}}
scaling: {min: 1, max: 3}
"""


async def test_pages_show_what_runs(visitor: Visitor, client: Client, cluster: Cluster, pictures: Path) -> None:
    page = visitor.page
    origin = page.url.removesuffix("/sessions")
    notebook = await client.sessions.create(
        type="interactive", name="notebook", ports=[("web", "http", 8000)], command=["python3", "-m", "http.server"]
    )
    training = await client.sessions.create(
        type="interactive", name="training", cluster_size=2, cluster_mode="multi-node", slots={"cpu": 1, "mem": "128m"}
    )
    waiting = await client.sessions.create(type="batch", name="large", slots={"cpu": 64}, command=["true"])
    ended = await client.sessions.create(type="batch", name="evaluation", slots={"cpu": 1}, command=["true"])
    ((spec, _),) = read_manifest(ENDPOINT, "test").endpoints
    endpoint = await client.endpoints.create(spec)
    await asyncio.gather(notebook.wait("RUNNING"), training.wait("RUNNING"), ended.wait_ended())
    try:
        shown = {
            "home": "notebook",
            "sessions": "training",
            "endpoints": "assistant",
            "cluster": cluster.agents[0].id,
        }
        for path, text in shown.items():
            await page.goto(f"{origin}/{path}")
            await expect(page.locator("main").get_by_text(text).first).to_be_visible()
            await page.wait_for_load_state("networkidle")
            await page.screenshot(path=pictures / f"console-{'nodes' if path == 'cluster' else path}.png")
    finally:
        await client.endpoints.delete(endpoint.id)
        await asyncio.gather(*(session.terminate() for session in (notebook, training, waiting)))
