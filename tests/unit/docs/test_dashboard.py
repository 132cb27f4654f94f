"""The dashboards and the page on monitoring ask for metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_NAME = re.compile(r"\bretinue_[a-z_]+")


def _known() -> set[str]:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    names = set(re.findall(r"^\| `(retinue_[a-z_]+)`", page, re.MULTILINE))
    return names | {f"{name}_{part}" for name in names for part in ("bucket", "sum", "count")}


def _queries() -> list[str]:
    dashboards = [json.loads(path.read_text()) for path in sorted((ROOT / "deploy/grafana").glob("*.json"))]
    return [target["expr"] for board in dashboards for panel in board["panels"] for target in panel["targets"]]


def test_the_page_names_metrics_with_their_labels() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    assert re.search(r"`retinue_sessions` *\| gauge *\| `resource_group`, `state`", page)


@pytest.mark.parametrize("query", _queries())
def test_a_dashboard_asks_for_metrics_that_exist(query: str) -> None:
    assert set(_NAME.findall(query)) <= _known()


def test_the_page_on_monitoring_asks_for_metrics_that_exist() -> None:
    queries = re.findall(r"`([^`]*retinue_[^`]*)`", (ROOT / "docs/how-to/monitoring.md").read_text())
    assert queries
    assert set(_NAME.findall(" ".join(queries))) <= _known()
