"""All commands but `run` and `dev`."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Unpack

import pytest
import yaml
from click.shell_completion import ShellComplete

from retinue.client.aio import session_spec
from retinue.client.command.application import cli
from retinue.client.command.shell import completed_names
from retinue.client.errors import CallError
from retinue.manager.v1 import fleet_service_pb2
from tests.integration.client.command.conftest import Program, line_with
from tests.support.eventually import NEVER, eventually
from tests.support.forked_programs import PROGRAM

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.aio import Client, SessionOptions
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _running(client: Client, label: str, /, **options: Unpack[SessionOptions]) -> str:
    options |= {"type": "interactive", "name": label}
    session = await client.sessions.create(**options)
    await session.wait("RUNNING", timeout=NEVER)
    return session.id


async def test_lists_in_every_format(retinue: Program, client: Client) -> None:
    identity = await _running(client, "listed", cluster_size=2)
    shown = (await retinue("ls")).out.splitlines()
    assert " ".join(shown[0].split()) == "ID NUMBER NAME TYPE STATE RESULT KERNELS AGENTS OWNER AGE REASON"
    short, number, *rest = shown[1].split()
    assert (short, number.isdecimal(), rest[:3]) == (identity[:8], True, ["listed", "interactive", "RUNNING"])
    assert "2/2" in shown[1]
    wide = (await retinue("ls", "-o", "wide")).out.splitlines()
    assert "NETWORK" in wide[0]
    assert "process" in wide[1][wide[0].index("ISOLATION") :]
    assert (await retinue("ls", "-o", "name")).out == f"{identity}\n"
    as_json = json.loads((await retinue("ls", "-o", "json")).out)
    assert as_json["sessions"][0]["state"] == "SESSION_STATE_RUNNING"
    assert yaml.safe_load((await retinue("ls", "-o", "yaml")).out)["sessions"][0]["id"] == identity
    assert (await retinue("ls", "--filter", 'name = "other"', "-o", "name")).out == ""


async def test_get_takes_id_prefix_number_and_name(retinue: Program, client: Client) -> None:
    identity = await _running(client, "gotten")
    number = str((await client.sessions.get(identity)).number)
    assert (await client.sessions.get(number)).id == identity
    for key in (identity, identity[:8], number, "gotten"):
        assert (await retinue("get", key, "-o", "name")).out == f"{identity}\n"
    shown = (await retinue("get", "gotten")).out
    assert "state:" in shown
    assert [line.split()[:3] for line in shown.splitlines() if line.startswith("main1")] == [
        ["main1", "RUNNING", "process"]
    ]
    assert json.loads((await retinue("get", "gotten", "-o", "json")).out)["id"] == identity


async def test_get_shows_what_an_ended_kernel_had_used(retinue: Program) -> None:
    count = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done"
    assert (await retinue("run", "-n", "spent", "--slots", "cpu=0.5,mem=256m", "--", "sh", "-c", count)).code == 0
    titles, kernel = (await retinue("get", "spent")).out.splitlines()[-2:]
    cpu, memory = titles.index("CPU TIME"), titles.index("PEAK MEMORY")
    assert re.fullmatch(r"\d+\.\ds \(\d+%\)", kernel[cpu:memory].strip())
    assert re.fullmatch(r"[0-9.]+[km] \(\d+%\)", kernel[memory:].strip())
    usage = json.loads((await retinue("get", "spent", "-o", "json")).out)["kernels"][0]["usage"]
    assert float(usage["cpuTime"].removesuffix("s")) > 0
    assert int(usage["memoryPeakBytes"]) > 0
    assert "sampleTime" in usage


async def test_logs_of_one_kernel_of_all_and_from_an_offset(retinue: Program, client: Client) -> None:
    session = await client.sessions.create(
        type="batch",
        name="talks",
        command=["sh", "-c", "echo from main; sleep 600"],
        sub_command=["sh", "-c", "echo from sub; sleep 600"],
        cluster_size=2,
        termination_grace=0,
    )

    async def printed(hostname: str) -> str:
        return b"".join([chunk.data async for chunk in session.logs(hostname, follow=False)]).decode()

    for hostname, text in (("main1", "from main\n"), ("sub1", "from sub\n")):
        await eventually(partial(printed, hostname), text.__eq__, ignoring=CallError)
    following = asyncio.create_task(retinue("logs", "-f", session.id))
    await session.terminate()
    assert (await following).out == "from main\n"
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
    assert lines.out.splitlines()[-1].startswith("watched: TERMINATED FAILED, exit code 9")
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
    await bad.wait_ended(NEVER)
    codes = await asyncio.gather(
        retinue("wait", good.id),
        retinue("wait", bad.id),
        retinue("wait", "--for", "SUCCESS", good.id),
        retinue("wait", "--for=SUCCESS", bad.id),
        retinue("wait", "--for=RUNNING", stays),
        retinue("wait", good.id, bad.id),
        retinue("wait", "--timeout", "200ms", stays),
        # It has ended already.
        retinue("wait", "--for", "RUNNING", bad.id),
    )
    assert [ended.code for ended in codes] == [0, 4, 0, 4, 0, 4, 5, 4]
    await _running(client, "endless")
    hopeless = await retinue("wait", "endless", "--for", "success")
    assert (hopeless.code, "endless is no batch session" in hopeless.err) == (2, True)


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
    wide = (await retinue("agents", "ls", "-o", "wide")).out.splitlines()
    assert wide[1][wide[0].index("RUNTIMES") :].startswith("process")
    assert "docker: no Docker engine was found" in wide[1][wide[0].index("NOT OFFERED") :]
    try:
        assert json.loads((await retinue("agents", "drain", ids[0], "-o", "json")).out)["drained"] is True
        assert re.search(r"\(drain(ed|ing)\)", (await retinue("agents", "get", ids[0])).out)
    finally:
        assert (await retinue("agents", "undrain", ids[0])).code == 0
    assert (await retinue("agents", "get", "no-such-agent")).code == 3
    token = await retinue("agents", "join-token", "--ttl", "5m")
    assert token.code == 0
    assert len(token.out.split()) == 1
    joining = token.err.splitlines()[-1]
    assert (
        f"retinue-agent join --id ID --manager {cluster.settings.endpoint} --join-token {token.out.strip()}" in joining
    )


async def test_a_drain_evicts_what_runs_there(retinue: Program, cluster: Cluster, client: Client) -> None:
    node, other = (agent.id for agent in cluster.agents[:2])
    ends = await _running(client, "ends", agents=[node], agent_choice="strict")
    moves = await client.sessions.create(
        type="batch", name="moves", command=["sleep", "600"], agents=[node], max_attempts=2
    )
    await moves.wait("RUNNING", timeout=NEVER)
    try:
        assert (await retinue("agents", "cordon", node)).code == 0
        late = await retinue("agents", "drain", node, "--deadline", "1h", "--wait", "--timeout", "100ms")
        assert (late.code, "2 kernels are still live" in late.err) == (5, True)
        assert "evicts: " in (await retinue("agents", "get", node)).out
        busy = await retinue("agents", "rm", node)
        assert (busy.code, "live kernels" in busy.err) == (1, True)
        drained = await retinue("agents", "drain", node, "--evict", "--wait")
        assert drained.code == 0, drained.err
        assert "2 kernels left" in drained.err
        ended = await client.sessions.get(ends)
        await ended.wait_ended(NEVER)
        assert ended.view.reason == "AGENT_DRAINED"
        await moves.refresh()
        await moves.wait("RUNNING", timeout=NEVER)
        assert [kernel.agent for kernel in moves.view.kernels] == [other]
        assert (await retinue("agents", "drain", node, "--evict", "--deadline", "1m")).code == 2
    finally:
        assert (await retinue("agents", "uncordon", node)).code == 0


async def test_groups_and_shares(retinue: Program, client: Client) -> None:
    made = await retinue(
        *("groups", "create", "cli-group", "--sessions", "fifo", "--agents", "dispersed", "--weight", "ada=3"),
        *("--max-tries-before-skip", "3", "--start-timeout", "2m", "-o", "json"),
        *("--max-grace", "1d"),
    )
    try:
        shown = json.loads(made.out)
        assert shown["schedulingPolicy"]["sessionStrategy"] == {"fifo": {"maxTriesBeforeSkip": 3}}
        assert (shown["ownerWeights"], shown["startTimeout"]) == ({"ada": 3}, "120s")
        assert shown["maxGrace"] == "86400s"
        changed = json.loads((await retinue("groups", "update", "cli-group", "--sessions", "lifo", "-o", "json")).out)
        assert changed["schedulingPolicy"] == {"sessionStrategy": {"lifo": {}}, "agentStrategy": {"dispersed": {}}}
        changed = json.loads(
            (await retinue("groups", "update", "cli-group", "--preemption", "requeue", "-o", "json")).out
        )["schedulingPolicy"]
        assert changed["preemption"] == {"mode": "PREEMPTION_MODE_REQUEUE"}
        assert changed["agentStrategy"] == {"dispersed": {}}
        isolations = ("--allow-isolation", "vm", "--allow-isolation", "container", "--default-isolation", "vm")
        changed = json.loads((await retinue("groups", "update", "cli-group", *isolations, "-o", "json")).out)
        assert changed["isolations"] == ["ISOLATION_VM", "ISOLATION_CONTAINER"]
        assert changed["defaultIsolation"] == "ISOLATION_VM"
        assert "vm,container (default vm)" in (await retinue("groups", "get", "cli-group")).out
        assert (await retinue("groups", "update", "cli-group", "--default-isolation", "process")).code == 1
        nothing = ("--allow-isolation", "", "--default-isolation", "")
        changed = json.loads((await retinue("groups", "update", "cli-group", *nothing, "-o", "json")).out)
        assert not {"isolations", "defaultIsolation"} & changed.keys()
        assert (await retinue("groups", "update", "cli-group", "--half-life", "3d")).code == 2
        assert (await retinue("groups", "update", "cli-group", "--sessions", "lifo", "--etag", "old")).code == 1
        assert (await retinue("groups", "update", "cli-group")).code == 2
        assert "cli-group" in (await retinue("groups", "ls", "-o", "name")).out.split()
    finally:
        assert (await retinue("groups", "rm", "cli-group")).code == 0
    assert (await retinue("groups", "get", "cli-group")).code == 3
    await _running(client, "holds", slots={"cpu": "2"})
    assert (await retinue("shares")).out.splitlines()[1].split()[:2] == ["admin", "1/4"]


async def test_whom_the_files_of_a_user_belong_to(retinue: Program) -> None:
    made = await retinue("users", "create", "cli-ida", "--file-owner", "1500:1501")
    try:
        assert (made.code, "1500:1501" in made.out) == (0, True), made.err
        assert "1500:1501" in (await retinue("users", "ls", "-o", "wide")).out
        assert "7:8" in (await retinue("users", "update", "cli-ida", "--file-owner", "7:8")).out
        assert "7:8" not in (await retinue("users", "update", "cli-ida", "--file-owner", "none")).out
        assert "admin" in (await retinue("users", "update", "cli-ida", "--role", "admin")).out
        assert "admin" not in (await retinue("users", "update", "cli-ida", "--role", "user")).out
        assert "give --role or --file-owner" in (await retinue("users", "update", "cli-ida")).err
        for wrong in ("7", "0:0", "0:7", "7:0", f"7:{2**31}", "ann:users"):
            answer = await retinue("users", "update", "cli-ida", "--file-owner", wrong)
            assert (answer.code, "must be UID:GID" in answer.err) == (2, True), answer.err
    finally:
        assert (await retinue("users", "rm", "cli-ida")).code == 0


async def test_mount_roots_come_and_go_one_by_one(retinue: Program) -> None:
    async def roots(*update: str) -> list[str]:
        answer = await retinue("groups", "update", "cli-mounts", *update, "-o", "json")
        assert answer.code == 0, answer.err
        shown = json.loads(answer.out).get("mountRoots", [])
        return [root["path"] + (":rw" if root.get("writable") else "") for root in shown]

    assert (await retinue("groups", "create", "cli-mounts", "--mount-root", "/srv/first")).code == 0
    try:
        assert await roots("--add-mount-root", "/srv/second:rw") == ["/srv/first", "/srv/second:rw"]
        assert await roots("--add-mount-root", "/srv/first:rw") == ["/srv/first:rw", "/srv/second:rw"]
        # Administrators who add at the same time do not lose each other's.
        await asyncio.gather(*(roots("--add-mount-root", f"/srv/{number}") for number in range(4)))
        assert len(await roots("--remove-mount-root", "/srv/first")) == 5
        wrong = await retinue("groups", "update", "cli-mounts", "--remove-mount-root", "/srv/first")
        assert (wrong.code, "/srv/first is no mount root of the group; there is /srv/" in wrong.err) == (2, True)
        both = await retinue("groups", "update", "cli-mounts", "--mount-root", "/a", "--add-mount-root", "/b")
        assert (both.code, "replaces all mount roots" in both.err) == (2, True)
        stale = await retinue("groups", "update", "cli-mounts", "--add-mount-root", "/b", "--etag", "old")
        assert stale.code == 1
        assert await roots("--mount-root", "/srv/all") == ["/srv/all"]
        for owned in ("/srv/{user}:rw,uid=account", "/srv/a:uid=account,gid=9", "/srv/b:rw,uid=7,gid=8@default"):
            await roots("--mount-root", owned)
            shown = (await retinue("groups", "get", "cli-mounts")).out
            assert f" {owned}\n" in shown, shown
        for refused, words in (
            ("/srv/a:uid=0,gid=0", "is not PATH"),
            ("/srv/a:uid=7", "is not PATH"),
            ("/srv/a:uid=x", "is not PATH[:rw][,uid=N|account"),
        ):
            answer = await retinue("groups", "update", "cli-mounts", "--mount-root", refused)
            assert (answer.code, words in answer.err) == (2, True), answer.err
        assert await roots("--mount-root", "") == []
    finally:
        assert (await retinue("groups", "rm", "cli-mounts")).code == 0


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
        async with asyncio.timeout(NEVER):
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
    assert missing.err == (
        "retinue: no such session: no-such-session (one of another user is OWNER/no-such-session) [NOT_FOUND]\n"
    )
    assert "request " in (await retinue("-v", "get", "no-such-session")).err
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
    assert "3 claims, 1 shares and 2 agents: 0 mismatches" in sound.err
    assert json.loads((await retinue("admin", "verify", "default", "-o", "json")).out)["claims"] == "3"
    assert (await retinue("admin", "verify", "nowhere")).code == 3
    assert (await retinue("admin", "verify", RETINUE_TOKEN=owner)).code == 4


async def test_quotas(retinue: Program, client: Client, owner: str, owner_name: str) -> None:
    assert (await retinue("quotas", "set", "user", owner_name, "--slots", "cpu=2,mem=1g", "--pending", "0")).code == 0
    listed = (await retinue("quotas", "ls")).out.splitlines()
    assert listed[0].split() == ["KIND", "NAME", "SLOTS", "SESSIONS", "PENDING", "SYSTEM", "PRIORITY"]
    assert listed[1].split() == ["user", owner_name, "cpu=0/2", "mem=0/1g", "0", "0/0", "-", "-"]
    refused = await retinue("run", "-d", "--", "true", RETINUE_TOKEN=owner)
    assert refused.code == 6
    assert f"0 of at most 0 sessions of user {owner_name} wait already" in refused.err
    assert (await retinue("quotas", "set", "user", "missing", "--sessions", "1")).code == 3
    assert (await retinue("quotas", "set", "user", owner_name, "--priority", "101")).code == 1
    assert (await retinue("quotas", "set", "user", owner_name)).code == 0
    assert len((await retinue("quotas", "ls")).out.splitlines()) == 1


async def test_audit(retinue: Program, owner: str, owner_name: str) -> None:
    assert (await retinue("quotas", "set", "user", owner_name, "--sessions", "7")).code == 0
    assert (await retinue("quotas", "set", "user", owner_name)).code == 0
    since = ("audit", "ls", "--method", "SetQuota", "--object", owner_name, "--limit", "2")
    listed = (await retinue(*since)).out.splitlines()
    assert listed[0].split() == ["TIME", "WHO", "ADDRESS", "METHOD", "OBJECT", "CODE", "COUNT"]
    assert [line.split()[4:] for line in listed[1:]] == [["127.0.0.1", "SetQuota", "quota", owner_name, "OK", "1"]] * 2
    chosen = ("--category", "administration", "--code", "ok", "--since", "1h", "--filter", 'object_kind = "quota"')
    (newest, former) = json.loads((await retinue(*since, *chosen, "-o", "json")).out)["records"]
    assert former["summary"] == "quota.kind=QUOTA_KIND_USER quota.max_sessions=7"
    assert newest["principalKind"] == "AUDIT_PRINCIPAL_KIND_USER"
    assert (await retinue(*since, "--until", "2000-01-01T00:00:00Z")).out.splitlines()[1:] == []
    assert (await retinue("audit", "ls", "--filter", 'x = "1"')).code == 1
    assert (await retinue("audit", "ls", RETINUE_TOKEN=owner)).code == 4


async def test_many_sessions_at_once(client: Client) -> None:
    specs = [session_spec(type="batch", name=f"many{number % 20}", command=["true"]) for number in range(21)]
    answer = await client.sessions.create_many(specs)
    assert [item.WhichOneof("outcome") for item in answer.results] == ["accepted"] * 20 + ["refused"]
    for item in answer.results[:20]:
        session = await client.sessions.get(item.accepted.id)
        assert (await session.wait_ended(timeout=NEVER)).result == "SUCCESS"


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        ("ls <&- >&-", 0, "", ""),
        ("exec streams -- sh -c 'echo out; exit 5' <&- 2>&-", 5, "out\n", ""),
        ("exec -i streams -- sh -c 'cat; echo out' <&-", 0, "out\n", ""),
        ("get missing 2>&-", 3, "", ""),
        ("ls >/dev/full", 1, "", "retinue: standard output: No space left on device\n"),
        ("exec streams -- echo out >/dev/full", 1, "", "retinue: standard output: No space left on device\n"),
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
    async with asyncio.timeout(NEVER):
        printed = await shell.communicate()
    assert (shell.returncode, *(text.decode() for text in printed)) == (code, out, err)


async def test_chosen_sessions_are_listed_as_asked_and_end_together(retinue: Program, client: Client) -> None:
    first = await _running(client, "one", labels={"run": "7"}, priority=10)
    second = await _running(client, "two", labels={"run": "7"}, priority=20)
    other = await _running(client, "three", labels={"run": "8"})
    columns = "custom-columns=NAME:.spec.name,RUN:.spec.labels.run"
    shown = await retinue("ls", "-l", "run=7", "--sort-by", "-.spec.priority", "-o", columns)
    assert [line.split() for line in shown.out.splitlines()] == [["NAME", "RUN"], ["two", "7"], ["one", "7"]]
    lines = (await retinue("ls", "-l", "run!=7", "-o", "jsonl")).out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [other]
    assert (await retinue("ls", "--sort-by", ".spec.nope")).code == 2
    assert (await retinue("rm")).code == 2
    watching = await retinue.start("ls", "-l", "run=7", "--watch")
    try:
        await line_with(watching.stdout, "one")
        chosen = await retinue("rm", "-l", "run=7", "--dry-run")
        assert set(chosen.out.split()) == {first, second}
        assert set((await retinue("rm", "-l", "run=7", "-f", "--wait")).out.split()) == {first, second}
        await line_with(watching.stdout, "TERMINATED")
    finally:
        watching.kill()
        await watching.wait()
    assert (await retinue("rm", "--all", "-f", "--wait")).out.split() == [other]


async def test_a_session_is_described_with_its_history_and_begins_again(retinue: Program, client: Client) -> None:
    before = await _running(client, "again", labels={"a": "b"}, environment={"X": "1"})
    described = (await retinue("describe", "again")).out
    assert "main1 RUNNING on" in described
    assert "labels:" in described
    history = (await retinue("history", "again", "-o", "jsonl")).out.splitlines()
    assert "created" in json.loads(history[0])
    assert json.loads(history[-1])["sessionId"] == before
    assert (await retinue("restart", "again", "--force")).out.strip() == before
    again = await client.sessions.get(before)
    await again.wait("RUNNING", timeout=NEVER)
    reasons = [event.session_moved.reason for event in await client.sessions.history(before)]
    assert reasons.count("RESTARTED") == 1
    await again.terminate(force=True)
    await again.wait_ended(NEVER)
    after = (await retinue("restart", "again")).out.strip()
    assert after != before
    fresh = await client.sessions.get("again")
    assert (fresh.id, dict(fresh.view.spec.labels)) == (after, {"a": "b"})
    assert dict(fresh.view.spec.kernel.environment) == {"X": "1"}
    assert (await client.sessions.get(before)).is_ended
    await fresh.terminate(force=True)
    await fresh.wait_ended(NEVER)


async def test_what_is_held_waits_until_it_is_released(retinue: Program, client: Client) -> None:
    made = await retinue("run", "-d", "--hold", "-n", "patient", "--label", "sweep=7", "--", "true")
    identity = made.out.strip()
    session = await client.sessions.get(identity)
    async for step in session.progress():
        if step.view.reason == "HELD":
            break
    shown = (await retinue("explain", "patient")).out
    assert "HELD" in shown
    assert "policy" in shown
    assert (await retinue("rename", "patient", "renamed")).out == f"{identity}\n"
    assert (await retinue("priority", "renamed", "80")).out == f"{identity}\n"
    assert [line.split()[:2] for line in (await retinue("get", "renamed")).out.splitlines() if "prior" in line] == [
        ["priority:", "80"]
    ]
    assert (await retinue("release", "-l", "sweep=8")).out == ""
    assert (await retinue("release", "-l", "sweep=7")).out == f"{identity}\n"
    await session.wait_ended(NEVER)
    assert (session.result, session.view.spec.name, session.view.spec.hold) == ("SUCCESS", "renamed", False)
    late = await retinue("hold", identity, "nobody")
    assert (late.code, late.out) == (1, "")
    assert "only a pending session" in late.err
    assert "changes it: name renamed, priority 80" in (await retinue("history", identity)).out
    assert (await retinue("hold")).code == 2


async def test_names_are_completed(
    retinue: Program,
    client: Client,
    cluster: Cluster,
    owner: str,
    owner_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = await _running(client, "completed", ports=[("web", "http", 8000), ("db", "tcp", 5432)])
    # What is tested is not how fast the machine is.
    monkeypatch.setattr(completed_names, "MAX_SECONDS", NEVER)
    for name, value in retinue.environment.items():
        if name.startswith("RETINUE_"):
            monkeypatch.setenv(name, value)

    async def completed(*words: str) -> list[str]:
        *before, incomplete = words
        completion = ShellComplete(cli, {}, "retinue", "_RETINUE_COMPLETE")
        found = await asyncio.to_thread(completion.get_completions, before, incomplete)
        return [item.value for item in found]

    assert await completed("get", "compl") == ["completed"]
    assert await completed("rm", "-f", "compl") == ["completed"]
    for command in ("ssh", "sftp", "sftp-mount", "port-forward", "open"):
        assert await completed(command, "compl") == ["completed"]
    assert await completed("port-forward", "completed", "") == ["db", "web"]
    assert await completed("open", "completed", "w") == ["web"]
    assert await completed("open", "nobody", "") == []
    assert await completed("agents", "drain", "") == [agent.id for agent in cluster.agents]
    assert await completed("groups", "get", "d") == ["default"]
    assert await completed("run", "--group", "d") == ["default"]
    assert await completed("run", "--after", "compl") == ["completed"]
    # Others' are taken with the name of their owner only.
    theirs = (await retinue("run", "-d", "--type", "interactive", "-n", "theirs", RETINUE_TOKEN=owner)).out.strip()
    assert await completed("get", "theirs") == []
    assert await completed("get", owner_name) == [f"{owner_name}/theirs"]
    assert (await retinue("get", f"{owner_name}/theirs", "-o", "name")).out.strip() == theirs
    monkeypatch.setenv("RETINUE_TOKEN", "wrong")
    assert await completed("get", "compl") == []
    assert (await retinue("rm", "-f", "--wait", session)).code == 0
