"""`apply` and `graph`: a pipeline from a file to its end."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.integration.client.command.conftest import Program

if TYPE_CHECKING:
    from pathlib import Path

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


async def test_a_pipeline_from_a_file(retinue: Program, tmp_path: Path) -> None:
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
    session["spec"] |= {"name": "cli-refused", "dependsOn": [ids[2]]}
    file.write_text(yaml.safe_dump(session))
    refused = await retinue("apply", "-f", str(file))
    assert refused.code == 1
    assert "cli-refused refused: cli-bad terminated without success" in refused.err
    file.write_text("type: batch\nkernels: {}\n")
    wrong = await retinue("apply", "-f", str(file))
    assert (wrong.code, wrong.err) == (
        2,
        f"retinue: {file}:2: unknown field 'kernels' of SessionSpec; did you mean kernel?\n",
    )


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
    tried = await retinue("run", *command, "--", "sh", "-c", 'echo "$RETINUE_EPOCH"; exit 4')
    assert tried.code == 4
    assert tried.out.splitlines() == ["1", "2"]
    assert (await retinue("run", "--retry-on-failure", "--", "true")).code == 2
