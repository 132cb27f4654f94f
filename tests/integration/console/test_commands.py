"""The request beside the form is the same one in every language."""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from google.protobuf.json_format import MessageToDict, ParseDict
from playwright.async_api import expect

from retinue.client.manifest import read_manifest
from retinue.client.spec import session_spec
from retinue.manager.v1 import fleet_service_pb2, session_pb2
from tests.integration.client.command.conftest import Program
from tests.integration.console.conftest import choose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster
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
    await page.get_by_role("radio", name="Batch job").click()
    await page.get_by_role("button", name="Several").click()
    fields = {
        "Name": "same",
        "Command": """python3 -c 'print("it'"'"'s", "$HOME")' "two words" 한국""",
        "Number of kernels": "3",
        "cpu": "0.5",
        "mem": "1g",
        "Priority": "20",
        "Time limit": "90m",
        "Attempts": "3",
    }
    for label, value in fields.items():
        await page.get_by_label(label, exact=True).fill(value)
    rows = {
        ("Mounts", "Add a mount", "Folder of the nodes", "Folder in the kernels"): [
            ("/data", "/data"),
            ("/models", ""),
        ],
        ("Environment", "Add a variable", "Variable", "Value of variable"): [("A", "1 2"), ("QUOTE", "'\"")],
        ("Service ports", "Add a port", "Port name", "Port number"): [("web", "8000"), ("db", "5432")],
        ("Labels", "Add a label", "Label", "Value of label"): [("team", "vision x")],
    }
    for (tab, add, first, second), values in rows.items():
        await page.get_by_role("tab", name=tab).click()
        for number, (one, other) in enumerate(values, start=1):
            await page.get_by_role("button", name=add).click()
            await page.get_by_label(f"{first} {number}", exact=True).fill(one)
            await page.get_by_label(f"{second} {number}", exact=True).fill(other)
        if tab == "Mounts":
            await page.get_by_label("Writable").first.check()
        if tab == "Service ports":
            await choose(page, "Protocol 2", "TCP")
    texts = {}
    for name in ("CLI", "Python", "YAML", "JSON", "grpcurl"):
        await page.get_by_role("tab", name=name).click()
        await expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        texts[name] = await page.locator("#same-text pre").inner_text()

    wanted = ParseDict(json.loads(texts["JSON"]), session_pb2.SessionSpec())
    assert wanted.kernel.environment["QUOTE"] == "'\""
    assert list(wanted.kernel.command) == ["python3", "-c", """print("it's", "$HOME")""", "two words", "한국"]
    assert [(mount.source, mount.target, mount.writable) for mount in wanted.mounts] == [
        ("/data", "/data", True),
        ("/models", "/models", False),
    ]
    assert _spec_of_python(texts["Python"]) == wanted
    ((applied, _),) = read_manifest(texts["YAML"], "page").sessions
    assert applied == wanted
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
