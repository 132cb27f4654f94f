"""`retinue endpoint` and `apply` with an endpoint, on a cluster that runs its replicas."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.client.aio import Client, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAME = "shop"
ENDPOINT = """
kind: endpoint
name: shop
revision:
  port: 8000
  maxConcurrency: 4
  session:
    terminationGrace: 0.1s
    kernel: {command: [sh, -c, "echo serving GREETING; exec python3 -m http.server 8000"], slots: {cpu: 0.1, mem: 64m}}
scaling: {min: 2, max: 3}
"""


@pytest_asyncio.fixture(loop_scope="session")
async def file(client: Client, tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "shop.yaml"
    write(path, ENDPOINT)
    try:
        yield path
    finally:
        with suppress(NotFound):
            await client.endpoints.delete(NAME)


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def test_an_endpoint_is_applied_deployed_scaled_explained_and_removed(retinue: Program, file: Path) -> None:
    applied = await retinue("apply", "-f", str(file))
    assert (applied.code, applied.out) == (0, "endpoint shop created\n"), applied.err
    again = await retinue("apply", "-f", str(file))
    assert (again.code, again.out) == (0, "endpoint shop unchanged\n"), again.err
    write(file, ENDPOINT.replace("GREETING", "NEW").replace("max: 3", "max: 4"))
    changed = await retinue("apply", "-f", str(file))
    assert changed.out == "endpoint shop updated and deployed revision 2\n", changed.err
    write(file, ENDPOINT.replace("GREETING", "NEWEST"))
    waited = await retinue("endpoint", "rollback", NAME, "--wait", "-o", "json")
    assert waited.code == 0, waited.err
    shown = json.loads(waited.out)
    assert (shown["state"], shown["readyReplicas"]) == ("ENDPOINT_STATE_READY", 2)
    assert shown["rollout"]["state"] == "ROLLOUT_STATE_ROLLED_BACK"
    deployed = await retinue("endpoint", "deploy", NAME, "-f", str(file), "--wait", "-o", "json")
    assert deployed.code == 0, deployed.err
    assert json.loads(deployed.out)["traffic"] == [{"revision": 3, "percent": 100, "effectivePercent": 100}]
    logs = await retinue("endpoint", "logs", NAME)
    assert logs.out.count("serving NEWEST\n") == 2
    scaled = await retinue("endpoint", "scale", NAME, "--min", "1", "--floor", "3", "--for", "1m", "-o", "json")
    assert json.loads(scaled.out)["spec"]["scaling"]["min"] == 1, scaled.err
    top = await retinue("endpoint", "top", NAME, "-n", "1")
    assert top.code == 0, top.err
    explained = await retinue("endpoint", "explain", NAME)
    assert "concurrency   2.8           unknown" in explained.out, explained.err
    listed = await retinue("endpoint", "ls", "-o", "name")
    assert NAME in listed.out.splitlines()
    token = await retinue("endpoint", "token", "create", NAME, "--label", "ci")
    assert token.out.count(".") == 2, token.err
    tokens = await retinue("endpoint", "token", "ls", NAME, "-o", "name")
    assert len(tokens.out.split()) == 1, tokens.err
    revoked = await retinue("endpoint", "token", "revoke", NAME, tokens.out.strip())
    assert (revoked.code, revoked.out) == (0, tokens.out), revoked.err
    tokens = await retinue("endpoint", "token", "ls", NAME)
    assert tokens.out.split()[:5] == ["ID", "LABEL", "BY", "AGE", "REVOKED"], tokens.err
    removed = await retinue("endpoint", "rm", NAME, "--wait")
    assert (removed.code, removed.out) == (0, "shop\n"), removed.err


async def test_a_rollout_is_paused_and_resumed(retinue: Program, file: Path) -> None:
    steps = "rollout: {canary: {steps: [{percent: 50}]}}"
    write(file, ENDPOINT.replace("GREETING", "ONE") + steps)
    applied = await retinue("endpoint", "create", "-f", str(file), "--wait", "-o", "name")
    assert applied.out == "shop\n", applied.err
    write(file, ENDPOINT.replace("GREETING", "TWO") + steps)
    deployed = await retinue("endpoint", "deploy", NAME, "-f", str(file), "-o", "name")
    assert deployed.code == 0, deployed.err
    paused = await retinue("endpoint", "pause", NAME, "-o", "json")
    assert json.loads(paused.out)["rollout"]["state"] == "ROLLOUT_STATE_PAUSED", paused.err
    again = await retinue("endpoint", "pause", NAME)
    assert (again.code, "the rollout is PAUSED" in again.err) == (1, True), again.err
    resumed = await retinue("endpoint", "resume", NAME, "-o", "json")
    assert json.loads(resumed.out)["rollout"]["state"] == "ROLLOUT_STATE_PROGRESSING", resumed.err
    removed = await retinue("endpoint", "rm", NAME, "--wait")
    assert removed.code == 0, removed.err


async def test_options_take_the_place_of_a_file_and_every_change_can_be_waited_for(
    retinue: Program, file: Path
) -> None:
    script = "echo serving $WORD; exec python3 -m http.server 8000"
    created = await retinue(
        *("endpoint", "create", NAME, "--port", "8000", "--slots", "cpu=0.1,mem=64m", "-e", "WORD=one", "--max", "2"),
        *("--target", "queue=2", "--public", "--wait", "-o", "json", "--", "sh", "-c", script),
    )
    assert created.code == 0, created.err
    shown = json.loads(created.out)
    assert (shown["state"], shown["spec"]["access"]["mode"]) == ("ENDPOINT_STATE_READY", "ACCESS_MODE_PUBLIC")
    assert shown["spec"]["scaling"]["metrics"] == [{"queue": {}, "target": "2"}]
    assert "1 READY of revision 1" in created.err.splitlines()[-1]

    scaled = await retinue("endpoint", "scale", NAME, "--min", "2", "--wait", "-o", "json")
    assert (scaled.code, json.loads(scaled.out)["readyReplicas"]) == (0, 2), scaled.err

    deployed = await retinue("endpoint", "deploy", NAME, "-e", "WORD=two", "--wait", "-o", "json")
    assert deployed.code == 0, deployed.err
    assert json.loads(deployed.out)["traffic"] == [{"revision": 2, "percent": 100, "effectivePercent": 100}]
    logs = await retinue("endpoint", "logs", NAME)
    assert logs.out.count("serving two\n") == 2, logs.err

    late = await retinue("endpoint", "deploy", NAME, "--slots", "cpu=64", "--wait", "--timeout", "1s")
    assert (late.code, "it is not done yet" in late.err) == (5, True), late.err
    back = await retinue("endpoint", "rollback", NAME, "--wait", "-o", "json")
    assert json.loads(back.out)["rollout"]["state"] == "ROLLOUT_STATE_ROLLED_BACK", back.err

    removed = await retinue("endpoint", "rm", NAME, "--wait")
    assert (removed.code, removed.out) == (0, "shop\n"), removed.err
    assert "DELETED" in removed.err.splitlines()[-1]
    nameless = await retinue("endpoint", "create", "--port", "8000")
    assert (nameless.code, "a name and a port" in nameless.err) == (2, True), nameless.err


async def test_promotion_is_waited_for_step_by_step(retinue: Program, file: Path) -> None:
    write(file, ENDPOINT.replace("GREETING", "ONE") + "rollout: {canary: {steps: [{percent: 50}]}}")
    applied = await retinue("endpoint", "create", "-f", str(file), "--wait", "-o", "name")
    assert applied.out == "shop\n", applied.err
    deployed = await retinue("endpoint", "deploy", NAME, "--wait", "-o", "json")
    assert deployed.code == 0, deployed.err
    assert [item["percent"] for item in json.loads(deployed.out)["traffic"]] == [50, 50]
    assert "`retinue endpoint promote shop` continues" in deployed.err.splitlines()[-1]
    promoted = await retinue("endpoint", "promote", NAME, "--wait", "-o", "json")
    assert json.loads(promoted.out)["rollout"]["state"] == "ROLLOUT_STATE_DONE", promoted.err


async def test_what_a_file_must_be(retinue: Program, file: Path) -> None:
    write(file, "kind: castle\nname: shop\n")
    wrong = await retinue("apply", "-f", str(file))
    assert (wrong.code, wrong.err) == (2, f"retinue: {file}:1: kind must be session or endpoint\n")
    write(file, ENDPOINT.replace("port:", "prot:"))
    wrong = await retinue("endpoint", "create", "-f", str(file))
    assert f"{file}:5: unknown field 'prot' of RevisionSpec" in wrong.err
