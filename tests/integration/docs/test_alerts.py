"""Each alert fires in its own fault, and in no other case; Prometheus's own tool says so."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from docs.generator import ROOT
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

RULES = ROOT / "deploy/prometheus/retinue.rules.yaml"
PAGE = ROOT / "docs/how-to/monitoring.md"
# A fleet without a fault: value and increase per minute.
HEALTHY = {
    'up{job="retinue-manager", instance="m1"}': "1+0",
    'up{job="retinue-router", instance="r1"}': "1+0",
    "retinue_manager_leader": "1+0",
    "retinue_manager_database_reachable": "1+0",
    "retinue_manager_database_writable": "1+0",
    "retinue_manager_database_embedded": "0+0",
    'retinue_failing{job="retinue-manager", instance="m1", part="scheduler"}': "0+0",
    'retinue_clock_timestamp_seconds{instance="m1"}': "0+60",
    'retinue_manager_calls_total{code="OK"}': "0+600",
    'retinue_manager_calls_total{code="UNAVAILABLE"}': "0+1",
    "retinue_journal_lag_seconds": "1+0",
    'retinue_agents{resource_group="g", state="ALIVE"}': "12+0",
    'retinue_agents{resource_group="g", state="SUSPECT"}': "0+0",
    'retinue_agents{resource_group="g", state="LOST"}': "0+0",
    'retinue_agent_conditions{resource_group="g", condition="STARTS_FAILING"}': "0+0",
    'retinue_agent_conditions{resource_group="g", condition="DISK_FULL"}': "0+0",
    'retinue_agent_conditions{resource_group="g", condition="LOSS_HELD"}': "0+0",
    'retinue_agent_conditions{resource_group="g", condition="DEVICE_LOST"}': "0+0",
    'retinue_agent_conditions{resource_group="g", condition="NOT_REACHED"}': "0+0",
    'retinue_agent_connections_failed_total{instance="m1"}': "0+0",
    "retinue_agent_connected": "1+0",
    "retinue_router_connected": "1+0",
    "retinue_router_engine_up": "1+0",
    'retinue_oldest_pending_seconds{resource_group="g"}': "3000+0",
    "retinue_manager_data_free_bytes": "50+0",
    "retinue_manager_data_size_bytes": "100+0",
    # Of tests, the time begins at 0.
    'retinue_certificate_expire_timestamp_seconds{certificate="authority"}': "100000000+0",
    'retinue_certificate_expire_timestamp_seconds{certificate="node"}': "86400+60",
    'retinue_certificate_expire_timestamp_seconds{certificate="clients"}': "10000000+0",
    'retinue_endpoint_requests_total{project="p", endpoint="e", revision="1"}': "0+600",
    'retinue_endpoint_errors_total{project="p", endpoint="e", revision="1"}': "0+6",
    'retinue_router_answers_total{class="2xx"}': "0+600",
    'retinue_router_answers_total{class="5xx"}': "0+6",
    'retinue_scheduling_pass_seconds_bucket{resource_group="g", le="0.5"}': "0+60",
    'retinue_scheduling_pass_seconds_bucket{resource_group="g", le="+Inf"}': "0+60",
    'retinue_claimed{resource_group="g", slot="cpu"}': "9+0",
    'retinue_capacity{resource_group="g", slot="cpu"}': "10+0",
    'retinue_capacity{resource_group="g", slot="none"}': "0+0",
    'process_open_fds{job="retinue-agent"}': "100+0",
    'process_max_fds{job="retinue-agent"}': "1000+0",
    'retinue_build_info{version="0.1.0+ga", program="retinue-manager"}': "1+0",
}
# What differs in the fault of an alert; None: the series is not there.
FAULTS: dict[str, dict[str, str | None]] = {
    "NoLeader": {"retinue_manager_leader": "0+0"},
    "SeveralLeaders": {'retinue_manager_leader{instance="other"}': "1+0"},
    "ManagerDown": {'up{job="retinue-manager", instance="m1"}': "0+0"},
    "RouterDown": {'up{job="retinue-router", instance="r1"}': "0+0"},
    "DatabaseUnreachable": {"retinue_manager_database_reachable": "0+0", "retinue_manager_database_writable": "0+0"},
    "DatabaseNotWritable": {"retinue_manager_database_writable": "0+0"},
    "PartFails": {'retinue_failing{job="retinue-manager", instance="m1", part="scheduler"}': "1+0"},
    "ClocksApart": {'retinue_clock_timestamp_seconds{instance="m1"}': "-31+60"},
    "CallsFail": {'retinue_manager_calls_total{code="UNAVAILABLE"}': "0+60"},
    "JournalLags": {"retinue_journal_lag_seconds": "31+0"},
    "AgentsLost": {'retinue_agents{resource_group="g", state="LOST"}': "1+0"},
    "ManyAgentsGone": {'retinue_agents{resource_group="g", state="SUSPECT"}': "6+0"},
    "AgentWithoutManager": {"retinue_agent_connected": "0+0"},
    "RouterWithoutManager": {"retinue_router_connected": "0+0"},
    "EngineDown": {"retinue_router_engine_up": "0+0"},
    "QueueIsOld": {'retinue_oldest_pending_seconds{resource_group="g"}': "3601+0"},
    "StartsFail": {'retinue_agent_conditions{resource_group="g", condition="STARTS_FAILING"}': "1+0"},
    "AgentDiskFull": {'retinue_agent_conditions{resource_group="g", condition="DISK_FULL"}': "1+0"},
    "AgentsNotReached": {'retinue_agent_conditions{resource_group="g", condition="NOT_REACHED"}': "1+0"},
    "LossesHeld": {'retinue_agent_conditions{resource_group="g", condition="LOSS_HELD"}': "3+0"},
    "ConnectionsFail": {'retinue_agent_connections_failed_total{instance="m1"}': "0+6"},
    "AgentConditions": {'retinue_agent_conditions{resource_group="g", condition="DEVICE_LOST"}': "1+0"},
    "ManagerDiskFull": {"retinue_manager_data_free_bytes": "9+0"},
    "AuthorityEnds": {'retinue_certificate_expire_timestamp_seconds{certificate="authority"}': "7000000+0"},
    "NodeCertificateEnds": {'retinue_certificate_expire_timestamp_seconds{certificate="node"}': "14000+0"},
    "CertificateEnds": {'retinue_certificate_expire_timestamp_seconds{certificate="clients"}': "1000000+0"},
    "EndpointErrors": {'retinue_endpoint_errors_total{project="p", endpoint="e", revision="1"}': "0+60"},
    "RouterErrors": {'retinue_router_answers_total{class="5xx"}': "0+300"},
    "SlowScheduling": {
        'retinue_scheduling_pass_seconds_bucket{resource_group="g", le="0.5"}': "0+0",
        'retinue_scheduling_pass_seconds_bucket{resource_group="g", le="2.5"}': "0+60",
    },
    "GroupFull": {'retinue_claimed{resource_group="g", slot="cpu"}': "10+0"},
    "DescriptorsRunOut": {'process_open_fds{job="retinue-agent"}': "900+0"},
    "MixedVersions": {'retinue_build_info{version="0.1.0+gb", program="retinue-agent"}': "1+0"},
    "EmbeddedDatabase": {"retinue_manager_database_embedded": "1+0"},
}
# Faults that nothing is left of to look at, or that say nothing by themselves.
OTHERS: dict[str, tuple[dict[str, str | None], list[str]]] = {
    "no manager is there, or none is scraped": (
        {name: None for name in HEALTHY if name.startswith(("retinue_manager", "retinue_agents"))},
        ["NoLeader"],
    ),
    "a new cluster, at rest": ({name: "0+0" for name in HEALTHY if "_total" in name or "bucket" in name}, []),
    "a small cluster with its own database": (
        {
            "retinue_manager_database_embedded": "1+0",
            'retinue_agents{resource_group="g", state="ALIVE"}': "3+0",
        },
        [],
    ),
    "nothing to scrape but managers": (
        {name: None for name in HEALTHY if name.startswith(("retinue_router", "retinue_endpoint", "retinue_agent_co"))},
        [],
    ),
}


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {
        rule["alert"].removeprefix("Retinue"): rule for group in groups for rule in group["rules"] if "alert" in rule
    }


def case(name: str, differences: dict[str, str | None], times: dict[str, list[str]]) -> dict[str, Any]:
    """A test for promtool: which alerts fire at these times."""
    series = {key: value for key, value in {**HEALTHY, **differences}.items() if value is not None}
    length = max(map(minutes, times))
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": f"{value}x{length}"} for key, value in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": time,
                "exp_samples": [{"labels": f'{{alertname="Retinue{alert}"}}', "value": 1} for alert in sorted(fires)],
            }
            for time, fires in times.items()
        ],
    }


def minutes(text: str) -> int:
    return int(text[:-1]) * {"m": 1, "h": 60}[text[-1]]


def promtool(*arguments: str | Path) -> str:
    ended = subprocess.run(
        ["promtool", *map(str, arguments)],  # noqa: S607
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=NEVER,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def test_the_rules_are_good() -> None:
    assert "SUCCESS" in promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


def test_each_alert_fires_in_its_own_fault_and_in_no_other(tmp_path: Path) -> None:
    alerts = rules()
    assert alerts.keys() == FAULTS.keys()
    # Rates need some minutes, and so do certificates that time catches up with.
    settling = 15
    tests = [case("a healthy fleet", {}, {f"{hours}h": [] for hours in (1, 8)})]
    for alert, differences in FAULTS.items():
        waits = minutes(alerts[alert]["for"])
        # It waits, and then it is the only one.
        times = {f"{max(0, waits - 1)}m": [], f"{waits + settling}m": [alert]}
        tests.append(case(alert, differences, times))
    tests += [case(name, differences, {"7h": fires}) for name, (differences, fires) in OTHERS.items()]
    file = tmp_path / "tests.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}, sort_keys=False)
    )
    assert "SUCCESS" in promtool("test", "rules", file)


@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_says_what_it_means_and_what_to_do(alert: str) -> None:
    rule = rules()[alert]
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/how-to/monitoring.md#retinue{alert.lower()}"
    section = re.search(rf"^### Retinue{alert}\n\n(.+?)(?=\n#|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    assert len(section[1].split()) > 8
