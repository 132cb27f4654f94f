"""A stranger's gRPC tool, which knows nothing but reflection: it lists, creates, watches and terminates."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

BUF = Path(sys.executable).parent / "buf"
SESSIONS = "retinue.manager.v1.SessionService"


async def buf_curl(
    cluster: Cluster, home: Path, *arguments: str, method: str = "", token: str | None = None
) -> tuple[int, str, str]:
    """Exit status, output and errors of the tool."""
    settings = cluster.settings
    command = [str(BUF), "curl", "--protocol", "grpc", "--cacert", str(settings.ca), "--servername", "manager.retinue"]
    command += ["-H", f"authorization: Bearer {settings.token if token is None else token}"]
    command += ["--reflect-header", f"authorization: Bearer {settings.token}"]
    command += [*arguments, f"https://{settings.endpoint}{method and '/' + method}"]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HOME": str(home)},
    )
    try:
        async with asyncio.timeout(NEVER):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


def messages(output: str) -> list[dict[str, Any]]:
    """The JSON values in an output, one after the other."""
    decoder, found, position = json.JSONDecoder(), [], 0
    while text := output[position:].lstrip():
        value, length = decoder.raw_decode(text)
        found.append(value)
        position = len(output) - len(text) + length
    return found


async def test_services_are_listed_by_reflection(cluster: Cluster, tmp_path: Path) -> None:
    status, output, errors = await buf_curl(cluster, tmp_path, "--list-services")
    assert status == 0, errors
    assert {SESSIONS, "retinue.manager.v1.FleetService", "retinue.manager.v1.AccountService"} <= set(output.split())
    assert "grpc.health.v1.Health" in output
    status, output, errors = await buf_curl(cluster, tmp_path, "--list-methods")
    assert f"{SESSIONS}/WatchSessions" in output, errors


async def test_a_cluster_session_from_creation_to_its_end(client: Client, cluster: Cluster, tmp_path: Path) -> None:
    request = {
        "spec": {
            "type": "SESSION_TYPE_INTERACTIVE",
            "clusterMode": "CLUSTER_MODE_MULTI_NODE",
            "clusterSize": 3,
            "kernel": {"slots": {"cpu": "2", "mem": "64m"}},
        }
    }
    status, output, errors = await buf_curl(
        cluster, tmp_path, "-d", json.dumps(request), method=f"{SESSIONS}/CreateSession"
    )
    assert status == 0, errors
    created = messages(output)[0]
    session_id = created["session"]["id"]
    before = {"revision": str(int(created["position"]["revision"]) - 1)}
    watch = {"sessionId": session_id, "after": before, "untilEnded": True}
    watching = asyncio.create_task(
        buf_curl(cluster, tmp_path, "-d", json.dumps(watch), method=f"{SESSIONS}/WatchSessions")
    )
    await (await client.sessions.get(session_id)).wait("RUNNING", timeout=NEVER)
    status, output, errors = await buf_curl(
        cluster, tmp_path, "-d", json.dumps({"session": session_id}), method=f"{SESSIONS}/GetSession"
    )
    assert messages(output)[0]["session"]["state"] == "SESSION_STATE_RUNNING", errors
    status, _, errors = await buf_curl(
        cluster, tmp_path, "-d", json.dumps({"session": session_id}), method=f"{SESSIONS}/TerminateSession"
    )
    assert status == 0, errors
    status, output, errors = await watching
    assert status == 0, errors
    events = [event for message in messages(output) for event in message.get("events", [])]
    states = (event["sessionMoved"]["toState"] for event in events if "sessionMoved" in event)
    moves = " ".join(state.removeprefix("SESSION_STATE_") for state in states)
    # On a busy machine an agent may be late, and the session is scheduled again.
    assert re.fullmatch(
        "(SCHEDULED (PREPARING )?PENDING )*SCHEDULED PREPARING RUNNING TERMINATING TERMINATED", moves
    ), events
    assert "created" in events[0]


async def test_errors_are_shown_in_full(cluster: Cluster, tmp_path: Path) -> None:
    status, _, errors = await buf_curl(
        cluster,
        tmp_path,
        "-d",
        '{"spec": {"type": "SESSION_TYPE_BATCH", "clusterSize": -1}}',
        method=f"{SESSIONS}/CreateSession",
    )
    # The tool's exit status is the gRPC code times eight.
    assert status == 3 * 8
    assert json.loads(errors)["code"] == "invalid_argument"
    status, _, errors = await buf_curl(
        cluster, tmp_path, "-d", "{}", method=f"{SESSIONS}/ListSessions", token="rtn_wrong"
    )
    assert status == 16 * 8
    assert json.loads(errors)["code"] == "unauthenticated"
