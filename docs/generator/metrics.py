"""Makes the page of metrics from those that the daemons register."""

from __future__ import annotations

from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric

import retinue.agent.daemon
import retinue.manager.daemon
import retinue.manager.gateway.leased_ports
import retinue.router.daemon
from docs.generator.markdown import line, table
from retinue.router.metrics import Families

# Importing them registers their metrics.
_IMPORTED = (retinue.agent.daemon, retinue.manager.daemon, retinue.manager.gateway.leased_ports, retinue.router.daemon)
_MANAGER, _AGENT, _ROUTER = "manager", "agent", "router"
# The daemons that serve a metric; others are a manager's.
_OF = {
    "retinue_agent_attempts": (_AGENT,),
    "retinue_agent_broken_paths": (_AGENT,),
    "retinue_agent_connected": (_AGENT,),
    "retinue_build_info": (_MANAGER, _AGENT, _ROUTER),
    "retinue_certificate_expire_timestamp_seconds": (_MANAGER, _AGENT, _ROUTER),
    "retinue_clock_timestamp_seconds": (_MANAGER, _AGENT, _ROUTER),
    "retinue_failing": (_MANAGER, _AGENT, _ROUTER),
    "retinue_router_connected": (_ROUTER,),
}


def metrics() -> dict[str, list[tuple[Metric, tuple[str, ...]]]]:
    """Returns the metrics of each daemon, with their labels, by name."""
    found: dict[str, list[tuple[Metric, tuple[str, ...]]]] = {_MANAGER: [], _AGENT: [], _ROUTER: []}
    for family in REGISTRY.collect():
        if family.name.startswith("retinue_"):
            collector = REGISTRY._names_to_collectors[family.name]  # noqa: SLF001  # labels of a metric without values
            for daemon in _OF.get(family.name, (_MANAGER,)):
                found[daemon].append((family, getattr(collector, "_labelnames", ())))
    found[_ROUTER] += [(family, family._labelnames) for family in Families().all()]  # type: ignore[attr-defined]  # noqa: SLF001
    return {daemon: sorted(families, key=lambda one: one[0].name) for daemon, families in found.items()}


def page() -> str:
    """Returns the whole page."""
    sections = ""
    for daemon, families in metrics().items():
        rows = [
            (
                f"`{family.name}{'_total' if family.type == 'counter' else ''}`",
                family.type,
                ", ".join(f"`{label}`" for label in labels) or "none",
                line(family.documentation),
            )
            for family, labels in families
        ]
        sections += f"\n## {daemon.capitalize()}\n\n{table(['metric', 'type', 'labels', 'meaning'], rows)}"
    return f"""# Metrics

`retinue-manager serve --metrics HOST:PORT`, `retinue-agent run` and `retinue-router run` with the same option serve
these to Prometheus at `/metrics`, in its text format or as OpenMetrics, beside those of the process itself:
`process_resident_memory_bytes`, `process_open_fds`, `process_max_fds`, `process_cpu_seconds_total`,
`process_start_time_seconds`, `python_info` and `python_gc_*`. [Monitoring](../how-to/monitoring.md) says what to watch.

How many series there are follows from resource groups, slots, methods of the contract and endpoints, and not from
sessions, users or agents.
{sections}"""
