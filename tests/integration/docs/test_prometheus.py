"""A real Prometheus reads a real manager, agent and router, and answers every query of the rules and dashboards; and
all that the three write meanwhile, with faults on the way, is JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from docs.generator import ROOT
from docs.generator.metrics import metrics
from retinue.devtools.cluster import Cluster, ClusterOptions, free_ports
from retinue.manager.store.postgres.embedded import running_server
from tests.integration.sessions.replicas import Deployed, manifest
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

pytestmark = pytest.mark.asyncio(loop_scope="module")

RULES = ROOT / "deploy/prometheus/retinue.rules.yaml"
PAGE = ROOT / "docs/how-to/monitoring.md"
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
JOBS = ("retinue-manager", "retinue-agent", "retinue-router")
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
_NAME = re.compile(r"\b(?:retinue_|process_|python_)[a-z0-9_]+|\bup\b")
_RECORDED = re.compile(r"\bretinue:[a-z0-9_:]+")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


@dataclass(frozen=True, slots=True)
class Watched:
    """A cluster that Prometheus reads; `ports` are those of metrics, by job."""

    cluster: Cluster
    endpoint: Deployed
    ports: dict[str, int]
    prometheus: int

    def read(self, job: str, accept: str = "text/plain") -> tuple[str, str]:
        """Returns type and text of what a daemon shows. Blocks."""
        asked = urllib.request.Request(f"http://127.0.0.1:{self.ports[job]}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(asked, timeout=NEVER) as answer:  # noqa: S310  # our own
            return answer.headers["Content-Type"], answer.read().decode()

    def ask(self, path: str, **parameters: str) -> Any:
        """Returns the data of an answer of Prometheus. Blocks."""
        url = f"http://127.0.0.1:{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=NEVER) as answer:  # our own
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    manager, agent, router, prometheus = free_ports()
    ports = dict(zip(JOBS, (manager, agent, router), strict=True))

    def arguments(port: int) -> tuple[str, ...]:
        return ("--metrics", f"127.0.0.1:{port}", "--log-format", "json", "--log-level", "debug")

    options = ClusterOptions(
        agents=0,
        gateway=True,
        router=True,
        manager_arguments=arguments(manager),
        agent_arguments=arguments(agent),
        router_arguments=arguments(router),
    )
    async with Cluster(options=options) as cluster:
        directory = tmp_path_factory.mktemp("prometheus")
        async with cluster.client() as client:
            endpoint = await Deployed.create(client, manifest("watched", "a"))
            await eventually(endpoint.ask, lambda answer: answer.status == 200)
            with prometheus_running(directory, prometheus, ports):
                found = Watched(cluster, endpoint, ports, prometheus)
                await eventually(lambda: asyncio.to_thread(all_are_up, found))
                yield found


@contextlib.contextmanager
def prometheus_running(directory: Path, port: int, ports: dict[str, int]) -> Iterator[None]:
    """Runs Prometheus with the configuration of the page, and these ports in it."""
    blocks = re.findall(r"^```yaml\n(.+?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    configuration = yaml.safe_load(next(block for block in blocks if "scrape_configs" in block))
    assert [scrape["job_name"] for scrape in configuration["scrape_configs"]] == list(ports)
    for scrape in configuration["scrape_configs"]:
        scrape["static_configs"] = [{"targets": [f"127.0.0.1:{ports[scrape['job_name']]}"]}]
    configuration["rule_files"] = [str(RULES)]
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    file, log = directory / "prometheus.yaml", directory / "log"
    file.write_text(yaml.safe_dump(configuration))
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"]
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=written, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def all_are_up(watched: Watched) -> bool:
    """Whether each was read, and the rules were evaluated since."""
    try:
        found = {result["metric"]["job"]: result["value"][1] for result in watched.ask("query", query="up")["result"]}
        recorded = watched.ask("query", query="retinue:claimed:ratio")["result"]
    except OSError:
        return False
    return found == dict.fromkeys(JOBS, "1") and bool(recorded)


def queries() -> list[tuple[str, str]]:
    """Returns the queries of dashboards, and of their variables, and of rules, with where they are."""
    found = []
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        found += [(path.name, target["expr"]) for panel in board["panels"] for target in panel["targets"]]
        for variable in board["templating"]["list"]:
            if match := re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]):
                found.append((path.name, f"count by ({match[2]}) ({match[1]})"))
    groups = yaml.safe_load(RULES.read_text())["groups"]
    found += [(RULES.name, rule["expr"]) for group in groups for rule in group["rules"]]
    return [(where, re.sub(r"\$(?!\{)\w+", ".*", query)) for where, query in found]


async def test_every_query_is_answered_and_names_series_that_exist(watched: Watched) -> None:
    asked = queries()
    assert len(asked) > 60
    names = set(await asyncio.to_thread(watched.ask, "label/__name__/values"))
    documented = {family["metric"] for family in await asyncio.to_thread(watched.ask, "targets/metadata")}
    for where, query in asked:
        assert "$" not in query, (where, query)
        await asyncio.to_thread(watched.ask, "query", query=query)
        used = set(_NAME.findall(query))
        assert used or _RECORDED.search(query), (where, query)
        for name in used:
            # Some series begin with their first event: their metric is known all the same.
            assert name in names or _SUFFIX.sub("", name) in documented or name.removesuffix("_total") in documented, (
                where,
                query,
                name,
            )


async def test_what_is_at_rest_is_shown_as_zero(watched: Watched) -> None:
    for query in (
        "retinue_claimed / (retinue_capacity > 0)",
        'retinue_sessions{state="PENDING"}',
        "retinue_oldest_pending_seconds",
        'retinue_agents{state="LOST"}',
        'retinue_agent_conditions{condition="DISK_FULL"}',
    ):
        found = await asyncio.to_thread(watched.ask, "query", query=query)
        assert found["result"], query


@pytest.mark.parametrize("job", JOBS)
async def test_a_daemon_shows_what_its_reference_lists(watched: Watched, job: str) -> None:
    kind, text = await asyncio.to_thread(watched.read, job)
    assert kind.startswith("text/plain")
    types = dict(re.findall(r"^# TYPE (retinue_\w+) (\w+)$", text, re.MULTILINE))
    listed = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family, _ in metrics()[job.removeprefix("retinue-")]
    }
    # A family and its samples' times of creation.
    shown = {name: kind for name, kind in types.items() if not name.endswith("_created")}
    assert shown == listed
    for name in ("resident_memory_bytes", "open_fds", "max_fds", "cpu_seconds_total", "start_time_seconds"):
        assert f"\nprocess_{name} " in text
    assert '\nretinue_build_info{grpc="' in text
    assert f'program="{job}"' in text
    checked = subprocess.run(  # noqa: ASYNC221  # a moment
        ["promtool", "check", "metrics"],  # noqa: S607
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=NEVER,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.parametrize("job", JOBS)
async def test_a_daemon_speaks_openmetrics(watched: Watched, job: str) -> None:
    kind, text = await asyncio.to_thread(watched.read, job, OPEN_METRICS)
    assert kind.startswith("application/openmetrics-text")
    parse: Callable[[str], Iterable[Metric]] = text_string_to_metric_families
    assert {"retinue_build_info", "retinue_certificate_expire_timestamp_seconds"} <= {
        found.name for found in parse(text)
    }


async def test_latencies_of_an_endpoint_are_counted(watched: Watched) -> None:
    before = await asyncio.to_thread(latencies, watched)
    assert (await watched.endpoint.ask()).status == 200
    after = await eventually(
        lambda: asyncio.to_thread(latencies, watched), lambda found: found["count"] > before["count"]
    )
    assert after["+Inf"] == after["count"] >= after["0.005"]
    assert after["sum"] > 0


def latencies(watched: Watched) -> dict[str, float]:
    _, text = watched.read("retinue-router")
    pattern = r'retinue_endpoint_request_seconds_(\w+)\{endpoint="watched",(?:le="(.+?)",)?project="default"\} (\S+)'
    return {bound or kind: float(value) for kind, bound, value in re.findall(pattern, text)}


async def test_no_series_is_of_a_session(watched: Watched) -> None:
    async with watched.cluster.client() as client:
        sessions = [
            await client.sessions.create(
                name=f"counted-{number}", type="batch", command=["true"], slots={"cpu": "0.1", "mem": "32m"}
            )
            for number in range(5)
        ]
        for session in sessions:
            await session.wait_ended()
    _, text = await asyncio.to_thread(watched.read, "retinue-manager")
    assert "counted" not in text
    assert not any(session.id in text for session in sessions)


# The last: it ends what others look at.
async def test_every_line_is_json_through_faults_and_the_end(watched: Watched) -> None:
    cluster = watched.cluster
    postmaster = running_server(cluster.directory / "manager/postgres")
    assert postmaster is not None
    os.kill(postmaster, signal.SIGKILL)
    await eventually(lambda: running_server(cluster.directory / "manager/postgres") not in {None, postmaster})
    await cluster.agents[0].process.kill()
    await cluster.start_agent(0)
    await cluster.manager.kill()
    await cluster.start_manager()
    await cluster.wait_agent(0)
    for child in (*cluster.routers, cluster.agents[0].process, cluster.manager):
        child.signal(signal.SIGUSR1)
    await cluster.routers[0].stop()
    await cluster.agents[0].process.stop()
    await cluster.manager.stop(NEVER)
    facts = json.loads((cluster.directory / "manager/dev.json").read_text())
    secrets = [facts[name] for name in ("token", "join_token", "router_join_token")]
    secrets += [json.loads(path.read_text())["private_key"] for path in cluster.directory.rglob("identity.json")]
    secrets += [watched.endpoint.bearer.removeprefix("Bearer ")]
    assert all(len(secret) > 20 for secret in secrets)
    logs = sorted((cluster.directory / "logs").glob("*.log"))
    assert len(logs) == len(JOBS)
    for log in logs:
        lines = await asyncio.to_thread(log.read_text)
        # Whatever their level, lines name no secret, not even as an escape of JSON.
        assert not [secret[:4] for secret in secrets if secret in lines or json.dumps(secret)[1:-1] in lines]
        for line in lines.splitlines():
            found = json.loads(line)
            assert {"time", "level", "logger", "message"} <= found.keys()
        assert re.search(r'"message": "retinue-\w+ 0\S+\+source\.\S+ starts, with Python 3\S+, gRPC 1', lines)
