"""`apply` and `graph`: a pipeline from a file to its end."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.aio import Client
    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

PIPELINE = """\
name: cli-prepare
type: batch
kernel: {command: [sleep, 0.5]}
---
- name: cli-good
  type: batch
  dependsOn: [cli-prepare]
  kernel: {command: ["true"]}
- name: cli-bad
  type: batch
  dependsOn: [cli-prepare]
  kernel: {command: ["false"]}
- name: cli-after
  type: batch
  dependsOn: [cli-good, cli-bad]
  kernel: {command: ["true"]}
"""


async def test_a_pipeline_from_a_file(retinue: Program, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE)
    checked = await retinue("apply", "-f", str(file), "--validate-only")
    assert (checked.code, checked.out.count("(only checked)")) == (0, 4)
    assert (await retinue("ls", "-a", "--filter", 'name = "cli-after"', "-o", "name")).out == ""
    request = str(uuid.uuid4())
    applied = await retinue("apply", "-f", str(file), "--request-id", request, "-o", "name")
    again = await retinue("apply", "-f", str(file), "--request-id", request, "-o", "name")
    assert (applied.code, again.out) == (0, applied.out)
    ids = applied.out.split()
    followed = await retinue("graph", ids[3])
    assert followed.code == 1
    shown = await retinue("graph", ids[0], "--once")
    assert shown.code == 0
    assert shown.out.splitlines()[0].split()[-1] == "SUCCESS"
    assert "└─ cli-bad" in shown.out
    assert "CANCELLED  after cli-good, cli-bad  DEPENDENCY_FAILED" in shown.out
    graph = json.loads((await retinue("graph", ids[0], "-o", "json")).out)
    assert [node["name"] for node in graph["nodes"]] == ["cli-prepare", "cli-good", "cli-bad", "cli-after"]
    # What is shown can be edited and applied again.
    session = yaml.safe_load((await retinue("get", ids[1], "-o", "yaml")).out)
    session["spec"]["name"] = "cli-again"
    file.write_text(yaml.safe_dump(session))
    assert (await retinue("apply", "-f", str(file))).code == 0
    session["spec"] |= {"name": "cli-late", "dependsOn": [ids[2]]}
    file.write_text(yaml.safe_dump(session))
    assert (await retinue("apply", "-f", str(file))).code == 0
    await (await client.sessions.get("cli-late")).wait_ended(NEVER)
    late = json.loads((await retinue("get", "cli-late", "-o", "json")).out)
    assert (late["state"], late["reason"]) == ("SESSION_STATE_CANCELLED", "DEPENDENCY_FAILED")
    file.write_text("type: batch\nkernels: {}\n")
    wrong = await retinue("apply", "-f", str(file))
    assert (wrong.code, wrong.err) == (
        2,
        f"retinue: {file}:2: unknown field 'kernels' of SessionSpec; did you mean kernel?\n",
    )


def _becomes(out: str) -> dict[str, str]:
    """Returns what became of each session, by name, as `apply` prints it."""
    return {line.split()[0]: line.split(maxsplit=2)[2] for line in out.splitlines()[1:]}


async def test_a_file_is_applied_whole_and_again(retinue: Program, tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text(
        "name: cli-one\ntype: batch\nkernel: {command: ['true']}\n---\n"
        "name: cli-two\ntype: batch\ndependsOn: [cli-one]\nkernel: {command: ['false']}\n---\n"
        "name: cli-three\ntype: batch\ndependsOn: [cli-two]\nkernel: {command: ['true']}\n"
    )
    held = await retinue("run", "-n", "cli-three", "--hold", "-d", "--", "true")
    refused = await retinue("apply", "-f", str(file))
    assert (refused.code, refused.out) == (1, "")
    assert "cli-three refused: there is a session cli-three of yours that has not ended" in refused.err
    assert refused.err.count("refused: ") == 3, "all or nothing, as they depend on each other"
    assert (await retinue("rm", held.out.strip())).code == 0

    first = await retinue("apply", "-f", str(file))
    assert (first.code, set(_becomes(first.out).values())) == (0, {"created"})
    assert (await retinue("wait", "cli-three")).code != 0
    file.write_text(file.read_text().replace("false", "true"))
    second = await retinue("apply", "-f", str(file))
    states = {"cli-one": "unchanged (TERMINATED)", "cli-two": "created", "cli-three": "created"}
    assert (second.code, _becomes(second.out)) == (0, states)
    assert (await retinue("wait", "cli-three")).code == 0
    third = await retinue("apply", "-f", str(file), "-o", "name")
    fourth = await retinue("apply", "-f", str(file), "-o", "json")
    assert [result["accepted"]["id"] for result in json.loads(fourth.out)["results"]] == third.out.split()
    assert len(third.out.split()) == 3
    again = await retinue("apply", "-f", str(file), "--again")
    assert (again.code, set(_becomes(again.out).values())) == (0, {"created"})
    assert (await retinue("wait", "cli-three")).code == 0


async def test_run_with_dependencies_retries_and_a_start_time(retinue: Program, tmp_path: Path) -> None:
    script = tmp_path / "first.sh"
    script.write_text("echo first\n")
    first = await retinue("run", "-n", "cli-first", "--bootstrap", str(script), "--", "echo", "second")
    assert (first.code, first.out) == (0, "first\nsecond\n")
    command = [
        "--depends-on",
        "cli-first",
        "--earliest-start-time",
        "1s",
        "--retry",
        "2",
        "--retry-on-failure",
        "--retry-backoff",
        "0s",
    ]
    tried = await retinue("run", *command, "--", "sh", "-c", 'echo "$RETINUE_ATTEMPT"; exit 4')
    assert tried.code == 4
    assert tried.out.splitlines() == ["1", "2"]
    assert (await retinue("run", "--retry-on-failure", "--", "true")).code == 2


async def test_files_of_two_projects_may_name_the_same_session(
    retinue: Program, client: Client, tmp_path: Path
) -> None:
    me = (await client.users.caller()).name
    await client.projects.create("cli-other")
    await client.projects.set_member("cli-other", me)
    ids = set()
    try:
        for became in ("created", "unchanged (PENDING)"):
            for project in ("default", "cli-other"):
                file = tmp_path / project
                file.write_text(
                    f"name: cli-same\nproject: {project}\ntype: batch\nhold: true\nkernel: {{command: ['true']}}\n"
                )
                applied = await retinue("apply", "-f", str(file))
                assert (applied.code, _becomes(applied.out)) == (0, {"cli-same": became})
                ids.add(applied.out.split()[4])
        assert len(ids) == 2
        assert (await retinue("rm", *ids)).code == 0
    finally:
        # Who is in several projects has to name one.
        await client.projects.remove_member("cli-other", me)
