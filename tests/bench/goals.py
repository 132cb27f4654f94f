"""What each figure is to be, by the beginning of its name; figures without a goal are for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.floods import FLOODS

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a measurement; without a peer there is no ratio either."""

    name: str
    value: float
    unit: str
    peer: float | None
    ratio: float | None
    # Smallest and largest of what the value is the median of.
    spread: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal in words, and whether a figure meets it."""

    words: str
    met: Callable[[Figure], bool]


def _value_at_most(most: float) -> Callable[[Figure], bool]:
    return lambda figure: figure.value <= most


def _value_at_least(least: float) -> Callable[[Figure], bool]:
    return lambda figure: figure.value >= least


def _ratio_at_most(most: float) -> Callable[[Figure], bool]:
    return lambda figure: figure.ratio is not None and figure.ratio <= most


def _ratio_at_least(least: float) -> Callable[[Figure], bool]:
    return lambda figure: figure.ratio is not None and figure.ratio >= least


def _both(least_ratio: float, least_value: float) -> Callable[[Figure], bool]:
    return lambda figure: figure.value >= least_value and _ratio_at_least(least_ratio)(figure)


GOALS: dict[str, Goal] = {
    "console-bytes-all": Goal("at most 600 kB", _value_at_most(600)),
    "console-bytes-first-route": Goal("at most 220 kB", _value_at_most(220)),
    "console-event": Goal("ratio at most 1.5", _ratio_at_most(1.5)),
    "console-frame-p95": Goal("ratio at most 2.0", _ratio_at_most(2.0)),
    "console-heap-growth": Goal("at most 5 %", _value_at_most(5)),
    "console-key": Goal("ratio at most 1.5", _ratio_at_most(1.5)),
    "console-viewers-100-cores": Goal("at most 1 processor", _value_at_most(1)),
    "fleet-1000-manager-cpu": Goal("at most 50 %", _value_at_most(50)),
    "fleet-1000-rows-written": Goal("none", _value_at_most(0)),
    "idle-manager-and-database-cpu": Goal("at most 0.5 %", _value_at_most(0.5)),
    "idle-agent-cpu": Goal("at most 0.5 %", _value_at_most(0.5)),
    "idle-manager-memory": Goal("at most 150 MB", _value_at_most(150)),
    "idle-agent-memory": Goal("at most 60 MB", _value_at_most(60)),
    "endpoint-load-p50": Goal("ratio at most 1.2", _ratio_at_most(1.2)),
    "endpoint-held-lost": Goal("none", _value_at_most(0)),
    "endpoint-token-revoked": Goal("at most 1,000 ms", _value_at_most(1000)),
    "endpoint-wake": Goal("ratio at most 1.15", _ratio_at_most(1.15)),
    "endpoint-wake-beyond": Goal("at most 150 ms", _value_at_most(150)),
    "endpoint-scaling-burst-whole": Goal("at most 8 s", _value_at_most(8)),
    "endpoint-scaling-burst": Goal("at most 4 s", _value_at_most(4)),
    "endpoint-scaling-sine-turns": Goal("at most 2 per hold", _value_at_most(2)),
    "endpoint-scaling-sine-covered": Goal("at least 95 %", _value_at_least(95)),
    "endpoint-scaling-overshoot": Goal("none", _value_at_most(0)),
    "endpoint-look-1000": Goal("at most 100 ms", _value_at_most(100.0)),
    "scheduling-10k-agents-100k-pending-pass": Goal("at most 1.0 s", _value_at_most(1.0)),
    "scheduling-10k-agents-100k-pending-all-shapes-distinct-rate": Goal(
        "at least 8,000 decisions/s", _value_at_least(8000)
    ),
    "scheduling-decisions-drf-dispersed-backend.ai": Goal("ratio at least 1,000", _ratio_at_least(1000)),
    "scheduling-impossible-gang-at-the-head": Goal("ratio at most 1.02", _ratio_at_most(1.02)),
    "scheduling-10k-agents-to-1k-agents": Goal("ratio at most 3.0", _ratio_at_most(3.0)),
    "sftp-up": Goal("ratio at least 0.95", _ratio_at_least(0.95)),
    "sftp-down": Goal("ratio at least 0.95", _ratio_at_least(0.95)),
    "sftp-first-byte": Goal("ratio at most 2.0", _ratio_at_most(2.0)),
    "sftp-parallel": Goal("ratio at least 0.8", _ratio_at_least(0.8)),
    "sftp-list": Goal("ratio at most 2.0", _ratio_at_most(2.0)),
    "sftp-relay-up": Goal("ratio at least 0.8", _ratio_at_least(0.8)),
    "sftp-relay-down": Goal("ratio at least 0.8", _ratio_at_least(0.8)),
    "sftp-relay-first-byte": Goal("ratio at most 2.0", _ratio_at_most(2.0)),
    "sftp-stream-up": Goal("ratio at least 0.4", _ratio_at_least(0.4)),
    "sftp-stream-down": Goal("ratio at least 0.4", _ratio_at_least(0.4)),
    "sftp-stream-first-byte": Goal("ratio at most 2.0", _ratio_at_most(2.0)),
    "files-down-scp": Goal("ratio at least 0.9", _ratio_at_least(0.9)),
    "files-up-scp": Goal("ratio at least 0.9", _ratio_at_least(0.9)),
    "command-line-help": Goal("at most 120 ms", _value_at_most(120)),
    "command-line-ls": Goal("at most 200 ms", _value_at_most(200)),
    "tunnel": Goal("ratio at least 1.0", _ratio_at_least(1.0)),
    "tunnel_down_relayed": Goal("ratio at least 0.7", _ratio_at_least(0.7)),
    "tunnel_up_relayed": Goal("ratio at least 0.7", _ratio_at_least(0.7)),
    "tunnel_down_to_node": Goal("ratio at least 0.7", _ratio_at_least(0.7)),
    "tunnel_up_to_node": Goal("ratio at least 0.7", _ratio_at_least(0.7)),
    "tunnel_down_streamed": Goal("ratio at least 0.25", _ratio_at_least(0.25)),
    "tunnel_up_streamed": Goal("ratio at least 0.25", _ratio_at_least(0.25)),
    "process_kernel_start": Goal("ratio at most 1.2", _ratio_at_most(1.2)),
    "shell-durable-decisions": Goal("ratio at least 0.5", _ratio_at_least(0.5)),
    "shell-pass-with-history": Goal("ratio at most 1.05", _ratio_at_most(1.05)),
    "shell-pass-10k-agents-to-1k-agents": Goal("ratio at most 3.0", _ratio_at_most(3.0)),
    "memory-per-pending": Goal("at most 1,536 bytes", _value_at_most(1536)),
    "memory-10000-agents-100000-pending-100000-running": Goal("at most 600 MB", _value_at_most(600)),
    "wake-up-p50": Goal("at most 10 ms", _value_at_most(10)),
    "wake-up-p99": Goal("at most 30 ms", _value_at_most(30)),
    "neighbour-get-p99": Goal("ratio at most 2", _ratio_at_most(2)),
    "neighbour-new-session-p50": Goal("ratio at most 2", _ratio_at_most(2)),
    **{f"strangers-{kind}-get-p99": Goal("ratio at most 2", _ratio_at_most(2)) for kind in FLOODS},
    **{f"strangers-{kind}-cores": Goal("at most 0.1 of a core", _value_at_most(0.1)) for kind in FLOODS},
    **{f"strangers-{kind}-memory": Goal("at most 50 MB", _value_at_most(50)) for kind in FLOODS},
    "write-cpu": Goal("at most 5 ms", _value_at_most(5)),
    "submit-bulk": Goal("ratio at least 0.35", _ratio_at_least(0.35)),
    "submit-single-p50": Goal("ratio at most 2.5", _ratio_at_most(2.5)),
    "code-round-trip": Goal("ratio at most 1.3", _ratio_at_most(1.3)),
    "docker-start-20-parallel": Goal("ratio at most 1.05", _ratio_at_most(1.05)),
    "docker-cluster-4-nodes-all-pairs": Goal("ratio at most 0.5", _ratio_at_most(0.5)),
    "vxlan_tcp_throughput_by_hand": Goal("ratio at least 0.98", _ratio_at_least(0.98)),
    "vxlan_tcp_throughput_docker_overlay": Goal("ratio at least 0.97", _ratio_at_least(0.97)),
    "docker-start": Goal("ratio at most 1.10", _ratio_at_most(1.10)),
    "http-down": Goal("ratio at least 0.9", _ratio_at_least(0.9)),
    "http-request": Goal("ratio at most 1.3", _ratio_at_most(1.3)),
    "inference-canary": Goal("9 to 11 %", lambda figure: 9 <= figure.value <= 11),
    "inference-limit": Goal("ratio at most 1.1", _ratio_at_most(1.1)),
    "inference-limit-most": Goal("at most 4 requests", _value_at_most(4)),
    "inference-request": Goal("ratio at most 1.10", _ratio_at_most(1.10)),
    "inference-request-logged": Goal("ratio at most 1.15", _ratio_at_most(1.15)),
    "inference-cpu-logged": Goal("ratio at most 1.25", _ratio_at_most(1.25)),
    "inference-slow-replica": Goal("ratio at most 0.7", _ratio_at_most(0.7)),
    "inference-10-endpoints-engine-back": Goal("at most 1 s", _value_at_most(1)),
    "inference-cpu": Goal("ratio at most 1.15", _ratio_at_most(1.15)),
    "inference-down": Goal("ratio at least 0.95", _ratio_at_least(0.95)),
    "inference-1000-endpoints-memory": Goal("at most 200 MB", _value_at_most(200)),
    "inference-1000-endpoints-one-host": Goal("at most 100 ms", _value_at_most(100)),
    "inference-1000-endpoints-one-route": Goal("at most 300 ms", _value_at_most(300)),
    "inference-1000-endpoints-engine-back": Goal("at most 4 s", _value_at_most(4)),
    "pod-held": Goal("ratio at most 1.15", _ratio_at_most(1.15)),
    "pod-release-to-output": Goal("at most 50 ms", _value_at_most(50)),
    "vm-held": Goal("ratio at most 1.3", _ratio_at_most(1.3)),
    "vm-held-10-at-once": Goal("ratio at most 1.05", _ratio_at_most(1.05)),
    "vm-release-to-output": Goal("at most 300 ms", _value_at_most(300)),
    "vm-memory-overhead": Goal("at most 96 MiB", _value_at_most(96)),
    "vm-tcp": Goal("ratio at least 0.5", _ratio_at_least(0.5)),
    "noop-sessions": Goal("ratio at least 4 and 2,000 sessions/s", _both(4, 2000)),
}


def goal_of(name: str) -> Goal | None:
    """The goal whose name begins a figure's name, the longest one if there are several."""
    found = [beginning for beginning in GOALS if name.startswith(beginning)]
    return GOALS[max(found, key=len)] if found else None
