"""The request beside the form is the same one in every language."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.json_format import MessageToDict, ParseDict
from playwright.async_api import expect

from retinue.client.aio import Client
from retinue.client.spec import session_spec
from retinue.devtools.cluster import Cluster
from retinue.manager.v1 import fleet_service_pb2, session_pb2
from tests.integration.client.command.conftest import Program
from tests.integration.console.conftest import Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def roots(client: Client) -> AsyncIterator[None]:
    """Has the directories that are mounted."""
    given = [fleet_service_pb2.MountRoot(path=path, writable=True) for path in ("/data", "/models")]
    await client.resource_groups.update("default", mount_roots=given)
    yield
    await client.resource_groups.update("default", mount_roots=[])


@pytest.mark.usefixtures("roots")
async def test_they_ask_for_the_same(visitor: Visitor, cluster: Cluster) -> None:
    page = visitor.page
    await page.get_by_role("link", name="New session").click()
    fields = {
        "Name": "same",
        "Command": """python3 -c 'print("it'"'"'s", "$HOME")' "two words" 한국""",
        "Mounts": "/data:/data:rw\n/models:/models",
        "Environment": "A=1 2\nQUOTE='\"",
        "Service ports": "web:http:8000\ndb:5432",
        "Cluster size": "3",
        "cpu": "0.5",
        "mem": "1g",
    }
    await page.get_by_label("Batch").check()
    await page.get_by_label("Multi node").check()
    for label, value in fields.items():
        await page.get_by_label(label, exact=True).fill(value)
    await page.get_by_text("Start, limits, retries").click()
    for label, value in {"Priority": "20", "Time limit": "90m", "Attempts": "3", "Labels": "team=vision x"}.items():
        await page.get_by_label(label, exact=True).fill(value)
    texts = {}
    for name in ("CLI", "Python", "JSON", "grpcurl"):
        await page.get_by_role("tab", name=name).click()
        texts[name] = await page.locator("#same-text").inner_text()
        await expect(page.locator("#same-text")).not_to_be_empty()

    wanted = ParseDict(json.loads(texts["JSON"]), session_pb2.SessionSpec())
    assert wanted.kernel.environment["QUOTE"] == "'\""
    assert list(wanted.kernel.command) == ["python3", "-c", """print("it's", "$HOME")""", "two words", "한국"]
    assert _spec_of_python(texts["Python"]) == wanted
    assert _spec_of_grpcurl(texts["grpcurl"]) == wanted
    assert await _spec_of_cli(cluster, texts["CLI"]) == _accepted(wanted)


def _spec_of_python(text: str) -> session_pb2.SessionSpec:
    """Runs the text with a client that keeps what it is asked for."""
    kept: list[session_pb2.SessionSpec] = []

    class Sessions:
        def create(self, **options: Any) -> None:
            kept.append(session_spec(**options))

    class Recorder:
        sessions = Sessions()

        def __enter__(self) -> Recorder:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    assert text.startswith("from retinue.client import Client\n")
    exec(text.partition("\n")[2], {"Client": Recorder})  # noqa: S102  # the page's own text
    return kept[0]


def _spec_of_grpcurl(text: str) -> session_pb2.SessionSpec:
    words = shlex.split(text.replace("\\\n", " "))
    return ParseDict(json.loads(words[words.index("-d") + 1])["spec"], session_pb2.SessionSpec())


async def _spec_of_cli(cluster: Cluster, text: str) -> dict[str, Any]:
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:3] == ["retinue", "run", "--detach"]
    settings = cluster.settings
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("RETINUE_")},
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": str(settings.ca),
    }
    ended = await Program(environment)("run", "--dry-run", "-o", "json", *words[3:])
    assert ended.code == 0, ended.err
    return _without_defaults(json.loads(ended.out)["session"]["spec"])


def _accepted(spec: session_pb2.SessionSpec) -> dict[str, Any]:
    return _without_defaults(MessageToDict(spec))


def _without_defaults(spec: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what the server adds."""
    return {
        key: value
        for key, value in spec.items()
        if key not in {"project", "resourceGroup", "terminationGrace", "retry"}
    }
