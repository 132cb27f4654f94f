"""Makes the page of metrics from those that the daemons register."""

from __future__ import annotations

from prometheus_client import REGISTRY

from docs.generator.markdown import line, table

# Importing them registers their metrics.
from retinue.agent.api import sync  # noqa: F401
from retinue.agent.reconcile import loop  # noqa: F401
from retinue.manager.controllers import fleet_gauges  # noqa: F401
from retinue.manager.gateway import leased_ports  # noqa: F401
from retinue.manager.scheduler import group_loop  # noqa: F401
from retinue.manager.server import interceptors  # noqa: F401
from retinue.router.metrics import METRICS


def page() -> str:
    """Returns the whole page."""
    rows = []
    for family in sorted(REGISTRY.collect(), key=lambda family: family.name):
        if not family.name.startswith("retinue_"):
            continue
        collector = REGISTRY._names_to_collectors[family.name]  # noqa: SLF001  # labels of a metric without values
        labels = ", ".join(f"`{label}`" for label in getattr(collector, "_labelnames", ())) or "none"
        name = family.name + ("_total" if family.type == "counter" else "")
        rows.append((f"`{name}`", family.type, labels, line(family.documentation)))
    of_routers = [
        (f"`{metric.name}`", metric.type, ", ".join(f"`{label}`" for label in metric.labels) or "none", metric.text)
        for metric in METRICS
    ]
    return f"""# Metrics

`retinue-manager serve --metrics HOST:PORT` and `retinue-agent run --metrics HOST:PORT` serve these to Prometheus at
`/metrics`, beside those of the process itself (`process_resident_memory_bytes`, `process_open_fds`,
`process_cpu_seconds_total`). [Monitoring](../how-to/monitoring.md) says what to watch.

{table(["metric", "type", "labels", "meaning"], rows)}
`retinue-router run --metrics HOST:PORT` serves these, each router those of the requests that it got:

{table(["metric", "type", "labels", "meaning"], of_routers)}"""
