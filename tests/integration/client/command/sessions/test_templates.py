"""`retinue template`, `retinue run --template`, and references to templates in files."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import yaml

from retinue.client.aio import Client, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEMPLATE = """
name: pair
description: A server and those who ask it
spec:
  type: batch
  clusterMode: multi-node
  terminationGrace: 0.1s
  kernel: {slots: {cpu: 0.1, mem: 32m}, environment: {GREETING: hello, EXTRA: "1"}}
  roles:
    - role: main
      kernel:
        command: [sh, -c, 'echo "$GREETING/$EXTRA $BACKENDAI_CLUSTER_REPLICAS $BACKENDAI_CLUSTER_HOSTS"; getent ahostsv4 asker1 asker2 | grep STREAM']
    - {role: asker, count: 2, kernel: {command: [sleep, "60"], slots: {cpu: 0.2}}}
"""


SESSIONS = """
name: one
template: pair
kernel: {environment: {EXTRA: null, MORE: "2"}}
roles: [{role: asker, count: 1, kernel: {command: null}}]
---
name: two
template: {name: pair, version: 9}
---
name: three
type: interactive
template: {name: pair, version: 1, overrideMask: [roles.asker, kernel.slots]}
roles: [{role: main, kernel: {command: [sleep, "9"]}}]
"""


@pytest_asyncio.fixture(loop_scope="session")
async def template(client: Client, retinue: Program, tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "pair.yaml"
    made = await retinue("template", "create", "-f", written(path, TEMPLATE), "-o", "name")
    assert (made.code, made.out) == (0, "pair\n"), made.err
    try:
        yield path
    finally:
        with suppress(NotFound):
            await client.templates.delete("pair")


def written(path: Path, text: str, mode: int = 0o644) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


async def test_a_template_of_two_roles_runs_with_overrides(client: Client, retinue: Program, template: Path) -> None:
    arguments = ["--template", "pair", "--set", "slots.mem=48m", "--set", "environment.GREETING=good day", "--unset"]
    ran = await retinue("run", *arguments, "environment.EXTRA", "--name", "from-pair")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == "good day/ main:1,asker:2 main1,asker1,asker2"
    assert [line.split()[2] for line in lines[1:]] == ["asker1", "asker2"]
    (session,) = [item async for item in client.sessions.list(filter='name = "from-pair"', show_ended=True)]
    reference = session.view.spec.template
    assert (reference.name, reference.version, reference.project) == ("pair", 1, "default")
    assert [dict(kernel.slots) for kernel in session.view.kernels] == [
        {"cpu": "0.1", "mem": "48m", "disk": "1g"},
        {"cpu": "0.2", "mem": "48m", "disk": "1g"},
        {"cpu": "0.2", "mem": "48m", "disk": "1g"},
    ]
    # What the session remembers is there when the template is not.
    assert (await retinue("template", "rm", "pair")).out == "pair\n"
    shown = await retinue("get", session.id)
    assert "pair@1" in shown.out
    gone = await retinue("run", "--template", "pair")
    assert (gone.code, gone.out) == (3, "")


async def test_templates_in_and_out_of_files(retinue: Program, template: Path) -> None:
    printed = await retinue("template", "get", "pair", "-o", "yaml")
    content = yaml.safe_load(printed.out)
    assert (content["version"], content["spec"]["roles"][1]["count"]) == (1, 2)
    for description, version in (("A server and those who ask it", 1), ("Changed", 2)):
        content["description"] = description
        file = written(template, yaml.safe_dump(content))
        applied = await retinue("template", "apply", "-f", file, "-o", "json")
        assert json.loads(applied.out)["version"] == version, applied.err
    listed = await retinue("template", "ls", "--versions-of", "pair", "-o", "json")
    assert [item["version"] for item in json.loads(listed.out)["templates"]] == [2, 1]
    first = await retinue("template", "get", "pair@1")
    assert "those who ask it" in first.out
    assert "count: 2" in first.out
    rendered = await retinue(
        "template", "render", "pair@1", "--set", "roles.asker.count=0", "--unset", "kernel.environment"
    )
    spec = yaml.safe_load(rendered.out)
    assert spec["roles"][1] == {**content["spec"]["roles"][1], "count": 0}
    assert "environment" not in spec["kernel"]
    assert spec["template"]["version"] == 1
    wrong = await retinue("template", "render", "pair", "--set", "nothing.here=1")
    assert wrong.code == 2
    assert "nothing.here" in wrong.err
    editor = written(template.with_name("editor"), "#!/bin/sh\nsed -i 's/Changed/Edited/' \"$1\"\n", 0o755)
    edited = await retinue("template", "edit", "pair", "-o", "json", EDITOR=editor, VISUAL=editor)
    assert (json.loads(edited.out)["version"], json.loads(edited.out)["description"]) == (3, "Edited"), edited.err


async def test_a_file_of_sessions_refers_to_templates(retinue: Program, template: Path) -> None:
    path = written(template.with_name("sessions.yaml"), SESSIONS)
    asked = await retinue("apply", "-f", path, "-o", "json")
    results = json.loads(asked.out)["results"]
    assert [item.get("accepted", {}).get("name", "") for item in results] == ["one", "", "three"], asked.err
    assert asked.code == 1
    assert "two refused: no such template" in asked.err
    one = json.loads((await retinue("get", "one", "-o", "json")).out)["spec"]
    assert one["kernel"]["environment"] == {"GREETING": "hello", "MORE": "2"}
    assert (one["roles"][1]["count"], one["clusterSize"]) == (1, 2)
    assert "command" not in one["roles"][1]["kernel"]
    three = json.loads((await retinue("get", "three", "-o", "json")).out)["spec"]
    assert (three["clusterSize"], three["kernel"]["slots"]) == (1, {"cpu": "1", "mem": "256m", "disk": "1g"})
