"""All commands but `run` and `dev`."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Unpack

import pytest
import yaml

from retinue.client import session_spec
from retinue.manager.v1 import fleet_service_pb2
from tests.integration.cli.conftest import PROGRAM, SECONDS, Program, line_with

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client import Client, SessionOptions
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _running(client: Client, label: str, /, **options: Unpack[SessionOptions]) -> str:
    options |= {"type": "interactive", "name": label}
    session = await client.sessions.create(**options)
    await session.wait("RUNNING", timeout=SECONDS)
    return session.id


async def test_lists_in_every_format(retinue: Program, client: Client) -> None:
    identity = await _running(client, "listed", cluster_size=2)
    shown = (await retinue("ls")).out.splitlines()
    assert shown[0].split() == ["ID", "NAME", "TYPE", "STATE", "RESULT", "KERNELS", "AGENTS", "OWNER", "AGE", "REASON"]
    assert shown[1].split()[:4] == [identity[:8], "listed", "interactive", "RUNNING"]
    assert "2/2" in shown[1]
    assert "NETWORK" in (await retinue("ls", "-o", "wide")).out
    assert (await retinue("ls", "-o", "name")).out == f"{identity}\n"
    as_json = json.loads((await retinue("ls", "-o", "json")).out)
    assert as_json["sessions"][0]["state"] == "SESSION_STATE_RUNNING"
    assert yaml.safe_load((await retinue("ls", "-o", "yaml")).out)["sessions"][0]["id"] == identity
    assert (await retinue("ls", "--filter", 'name = "other"', "-o", "name")).out == ""


async def test_get_takes_id_prefix_and_name(retinue: Program, client: Client) -> None:
    identity = await _running(client, "gotten")
    for key in (identity, identity[:8], "gotten"):
        assert (await retinue("get", key, "-o", "name")).out == f"{identity}\n"
    shown = (await retinue("get", "gotten")).out
    assert "state:" in shown
    assert "main1" in shown
    assert json.loads((await retinue("get", "gotten", "-o", "json")).out)["id"] == identity


async def test_logs_of_one_kernel_of_all_and_from_an_offset(retinue: Program, client: Client) -> None:
    session = await client.sessions.create(
        type="batch",
        name="talks",
        command=["sh", "-c", "echo from main; sleep 1"],
        sub_command=["sh", "-c", "echo from sub; sleep 600"],
        cluster_size=2,
        termination_grace=0,
    )
    assert (await retinue("logs", "-f", session.id)).out == "from main\n"
    assert (await retinue("logs", session.id, "--since-offset", "5")).out == "main\n"
    assert (await retinue("logs", session.id, "--kernel", "sub1")).out == "from sub\n"
    everything = (await retinue("logs", "--all", session.id)).out
    assert sorted(everything.splitlines()) == ["main1  | from main", "sub1   | from sub"]
    assert (await retinue("logs", "--all", "--kernel", "sub1", session.id)).code == 2
    assert (await retinue("logs", session.id, "--kernel", "sub9")).code == 1
    assert (await retinue("logs", session.id, "--since-offset", "9999")).code == 1


async def test_watch_ends_with_the_sessions_code(retinue: Program, client: Client) -> None:
    session = await client.sessions.create(type="batch", name="watched", command=["sh", "-c", "exit 9"])
    # It may be over before the program is up, so events are asked for from its beginning on.
    begin = str((session.revision or 1) - 1)
    lines, events = await asyncio.gather(
        retinue("watch", session.id), retinue("watch", "-o", "json", "--after", begin, session.id)
    )
    assert (lines.code, events.code) == (9, 9)
    assert lines.out.splitlines()[-1].startswith("watched: TERMINATED FAILURE, exit code 9")
    moved = [json.loads(line) for line in events.out.splitlines()]
    revisions = [int(event["revision"]) for event in moved]
    assert revisions == sorted(set(revisions))
    assert moved[-1]["sessionMoved"]["toState"] == "SESSION_STATE_TERMINATED"


async def test_mounts(retinue: Program, client: Client, tmp_path: Path) -> None:
    await asyncio.to_thread(tmp_path.chmod, 0o755)
    (tmp_path / "file").write_text("content\n")
    await client.resource_groups.update("default", mount_roots=[fleet_service_pb2.MountRoot(path=str(tmp_path))])
    try:
        ran = await retinue("run", "--type", "batch", "--mount", f"{tmp_path}:/data", "--", "cat", "/data/file")
        assert (ran.code, ran.out) == (0, "content\n")
        refused = await retinue("run", "--mount", f"{tmp_path}:/data:rw", "--", "true")
        assert refused.code != 0
        assert str(tmp_path) in refused.err
    finally:
        await client.resource_groups.update("default", mount_roots=[])
    assert (await retinue("run", "--mount", "/a:/b:x", "--", "true")).code == 2


async def test_watching_everything_from_a_revision(retinue: Program, client: Client) -> None:
    session = await client.sessions.create(type="batch", name="seen", command=["true"])
    process = await retinue.start("watch", "--after", str((session.revision or 1) - 1))
    try:
        assert "seen: PENDING" in await line_with(process.stdout, session.id[:8])
        await line_with(process.stdout, "TERMINATED, exit code 0")
    finally:
        process.kill()
        await process.wait()


async def test_wait_for_what(retinue: Program, client: Client) -> None:
    good = await client.sessions.create(type="batch", command=["true"])
    bad = await client.sessions.create(type="batch", command=["sh", "-c", "exit 4"])
    stays = await _running(client, "stays-up")
    codes = await asyncio.gather(
        retinue("wait", good.id),
        retinue("wait", bad.id),
        retinue("wait", "--for", "SUCCESS", good.id),
        retinue("wait", "--for=SUCCESS", bad.id),
        retinue("wait", "--for=RUNNING", stays),
        retinue("wait", good.id, bad.id),
        retinue("wait", "--timeout", "200ms", stays),
        retinue("wait", "--for", "RUNNING", bad.id),
    )
    # The last one was over before it was asked about.
    assert [ended.code for ended in codes] == [0, 4, 0, 4, 0, 4, 5, 4]


async def test_rm_tries_all_and_waits(retinue: Program, client: Client) -> None:
    first, second = await _running(client, "first"), await _running(client, "second")
    ended = await retinue("rm", "first", "no-such-session", second, "--force", "--wait")
    assert ended.code == 3
    assert ended.out.split() == [first, second]
    assert "NOT_FOUND" in ended.err
    assert [session.id async for session in client.sessions.list()] == []


async def test_explain_says_what_is_short(retinue: Program, client: Client) -> None:
    session = await client.sessions.create(type="interactive", name="waits", slots={"cpu": "4000"})
    async for step in session.progress():
        if step.view.reason not in ("", "QUEUED"):
            break
    shown = (await retinue("explain", "waits")).out
    assert "PENDING" in shown
    assert "configuration" in shown
    assert "cpu" in shown
    assert json.loads((await retinue("explain", "waits", "-o", "json")).out)["tier"] == "REASON_TIER_CONFIGURATION"


async def test_agents(retinue: Program, cluster: Cluster) -> None:
    ids = [agent.id for agent in cluster.agents]
    assert (await retinue("agents", "ls", "-o", "name")).out.split() == ids
    assert (await retinue("agents", "ls")).out.splitlines()[1].split()[:2] == [ids[0], "ALIVE"]
    try:
        assert json.loads((await retinue("agents", "drain", ids[0], "-o", "json")).out)["drained"] is True
        assert "(drained)" in (await retinue("agents", "get", ids[0])).out
    finally:
        assert (await retinue("agents", "undrain", ids[0])).code == 0
    assert (await retinue("agents", "get", "no-such-agent")).code == 3
    token = await retinue("agents", "join-token", "--ttl", "5m")
    assert token.code == 0
    assert len(token.out.split()) == 1


async def test_groups_and_shares(retinue: Program, client: Client) -> None:
    made = await retinue(
        *("groups", "create", "cli-group", "--sessions", "fifo", "--agents", "dispersed", "--weight", "ada=3"),
        *("--max-tries-before-skip", "3", "--start-timeout", "2m", "-o", "json"),
    )
    try:
        shown = json.loads(made.out)
        assert shown["schedulingPolicy"]["sessionStrategy"] == {"fifo": {"maxTriesBeforeSkip": 3}}
        assert (shown["ownerWeights"], shown["startTimeout"]) == ({"ada": 3}, "120s")
        changed = json.loads((await retinue("groups", "update", "cli-group", "--sessions", "lifo", "-o", "json")).out)
        assert changed["schedulingPolicy"] == {"sessionStrategy": {"lifo": {}}, "agentStrategy": {"dispersed": {}}}
        changed = json.loads(
            (await retinue("groups", "update", "cli-group", "--preemption", "requeue", "-o", "json")).out
        )["schedulingPolicy"]
        assert changed["preemption"] == {"mode": "PREEMPTION_MODE_REQUEUE"}
        assert changed["agentStrategy"] == {"dispersed": {}}
        assert (await retinue("groups", "update", "cli-group", "--half-life", "3d")).code == 2
        assert (await retinue("groups", "update", "cli-group", "--sessions", "lifo", "--etag", "old")).code == 1
        assert (await retinue("groups", "update", "cli-group")).code == 2
        assert "cli-group" in (await retinue("groups", "ls", "-o", "name")).out.split()
    finally:
        assert (await retinue("groups", "rm", "cli-group")).code == 0
    assert (await retinue("groups", "get", "cli-group")).code == 3
    await _running(client, "holds", slots={"cpu": "2"})
    assert (await retinue("shares")).out.splitlines()[1].split()[:2] == ["admin", "1/4"]


async def test_users_projects_and_tokens(retinue: Program) -> None:
    assert (await retinue("projects", "create", "cli-project")).code == 0
    try:
        assert "cli-project" in (await retinue("projects", "ls", "-o", "name")).out.split()
        assert (await retinue("users", "create", "cli-eve", "--project", "default=member")).code == 0
        assert (
            "cli-project=admin"
            in (await retinue("projects", "member", "cli-project", "cli-eve", "--role", "admin")).out
        )
        made = json.loads((await retinue("tokens", "create", "--user", "cli-eve", "--ttl", "1h", "-o", "json")).out)
        secret, identity = made["secret"], made["token"]["id"]
        assert (await retinue("users", "me", "-o", "name", RETINUE_TOKEN=secret)).out == "cli-eve\n"
        assert (await retinue("users", "ls", RETINUE_TOKEN=secret)).code == 4
        assert "valid" in (await retinue("tokens", "ls", "--user", "cli-eve")).out
        assert (await retinue("tokens", "revoke", identity)).code == 0
        assert "revoked" in (await retinue("tokens", "ls", "--user", "cli-eve")).out
        # A manager may remember a good token for a few seconds; each try takes long enough to be no burden.
        async with asyncio.timeout(SECONDS):
            while (await retinue("users", "me", RETINUE_TOKEN=secret)).code != 4:
                pass
    finally:
        await retinue("users", "rm", "cli-eve")
        assert (await retinue("projects", "rm", "cli-project")).code == 0


async def test_anothers_session_does_not_exist(retinue: Program, client: Client, owner: str) -> None:
    identity = await _running(client, "private")
    for command in (("get",), ("logs",), ("rm",), ("explain",), ("watch",)):
        assert (await retinue(*command, identity, RETINUE_TOKEN=owner)).code == 3, command
    assert (await retinue("ls", "-a", "-o", "name", RETINUE_TOKEN=owner)).out == ""
    assert (await client.sessions.get(identity)).state == "RUNNING"


async def test_exit_codes_of_failures(retinue: Program, cluster: Cluster) -> None:
    assert (await retinue("get", "no-such-session")).code == 3
    assert (await retinue("ls", RETINUE_TOKEN="rtn_wrong")).code == 4
    assert (await retinue("ls", RETINUE_ENDPOINT="127.0.0.1:9")).code == 7
    assert (await retinue("ls", RETINUE_ENDPOINT="not an endpoint")).code == 2
    assert (await retinue("ls", RETINUE_CA="/no/such/file")).code == 2
    assert (await retinue("ls", "--filter", "nonsense")).code == 1
    assert (await retinue("get", "no-such-session", RETINUE_EXIT_ERROR="99")).code == 99
    missing = await retinue("get", "no-such-session")
    assert "NOT_FOUND" in missing.err
    assert "request " in missing.err
    assert (cluster.settings.token or "?") not in missing.err


async def test_contexts(environment: dict[str, str], tmp_path: Path, cluster: Cluster) -> None:
    configured, bare = Program(environment), Program({k: v for k, v in environment.items() if k != "RETINUE_ENDPOINT"})
    assert (await bare("ls", RETINUE_TOKEN="", RETINUE_CA="")).code == 2
    assert (await configured("contexts", "add", "here")).code == 0
    assert (tmp_path / "contexts.yaml").stat().st_mode & 0o777 == 0o600
    assert (await bare("agents", "ls", "-o", "name", RETINUE_TOKEN="", RETINUE_CA="")).out.split() == [
        agent.id for agent in cluster.agents
    ]
    listed = (await bare("contexts", "ls")).out
    assert "here" in listed
    assert (cluster.settings.token or "?") not in listed
    assert (await bare("contexts", "use", "nowhere")).code == 2
    assert (await bare("contexts", "rm", "here")).code == 0


async def test_a_reader_that_has_enough_is_no_error_to_speak_of(retinue: Program, client: Client) -> None:
    await _running(client, "piped")
    process = await asyncio.create_subprocess_shell(
        f"{PROGRAM} ls -o json | true", env=retinue.environment, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert err == b""


async def test_versions_help_and_completion(retinue: Program) -> None:
    assert (await retinue("version")).out.startswith("retinue ")
    for command in ("run", "ls", "agents", "dev", "watch", "groups"):
        assert "Usage: retinue" in (await retinue(command, "--help")).out
    for shell in ("bash", "zsh", "fish"):
        assert "retinue" in (await retinue("completion", shell)).out


async def test_admin_verify(retinue: Program, client: Client, owner: str) -> None:
    await _running(client, "verified")
    sound = await retinue("admin", "verify")
    assert (sound.code, sound.out) == (0, "")
    assert "2 claims, 1 shares and 2 agents: 0 mismatches" in sound.err
    assert json.loads((await retinue("admin", "verify", "default", "-o", "json")).out)["claims"] == "2"
    assert (await retinue("admin", "verify", "nowhere")).code == 3
    assert (await retinue("admin", "verify", RETINUE_TOKEN=owner)).code == 4


async def test_quotas(retinue: Program, client: Client, owner: str, owner_name: str) -> None:
    assert (await retinue("quotas", "set", "user", owner_name, "--slots", "cpu=2,mem=1g", "--pending", "0")).code == 0
    listed = (await retinue("quotas", "ls")).out.splitlines()
    assert listed[0].split() == ["KIND", "NAME", "SLOTS", "SESSIONS", "PENDING", "PRIORITY"]
    assert listed[1].split() == ["user", owner_name, "cpu=0/2", "mem=0/1g", "0", "0/0", "-"]
    refused = await retinue("run", "-d", "--", "true", RETINUE_TOKEN=owner)
    assert refused.code == 6
    assert f"0 of at most 0 sessions of user {owner_name} wait already" in refused.err
    assert (await retinue("quotas", "set", "user", "nobody", "--sessions", "1")).code == 3
    assert (await retinue("quotas", "set", "user", owner_name, "--priority", "101")).code == 1
    assert (await retinue("quotas", "set", "user", owner_name)).code == 0
    assert len((await retinue("quotas", "ls")).out.splitlines()) == 1


async def test_many_sessions_at_once(client: Client) -> None:
    specs = [session_spec(type="batch", name=f"many{number % 20}", command=["true"]) for number in range(21)]
    answer = await client.sessions.create_many(specs)
    assert [item.WhichOneof("outcome") for item in answer.results] == ["accepted"] * 20 + ["refused"]
    for item in answer.results[:20]:
        session = await client.sessions.get(item.accepted.id)
        assert (await session.wait_ended(timeout=SECONDS)).result == "SUCCESS"


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        ("ls <&- >&-", 0, "", ""),
        ("exec streams -- sh -c 'echo out; exit 5' <&- 2>&-", 5, "out\n", ""),
        ("exec -i streams -- sh -c 'cat; echo out' <&-", 0, "out\n", ""),
        ("get nobody 2>&-", 3, "", ""),
        ("ls >/dev/full", 1, "", "retinue: No space left on device\n"),
        ("exec streams -- echo out >/dev/full", 1, "", "retinue: No space left on device\n"),
    ],
)
async def test_missing_streams_and_full_disks(
    retinue: Program, client: Client, arguments: str, code: int, out: str, err: str
) -> None:
    await _running(client, "streams")
    shell = await asyncio.create_subprocess_shell(
        f"{PROGRAM} {arguments}",
        env=retinue.environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS):
        told = await shell.communicate()
    assert (shell.returncode, *(text.decode() for text in told)) == (code, out, err)
