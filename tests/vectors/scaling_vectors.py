"""Vectors of the autoscaler: runs of ticks with what is seen at each,
and every change of the target that is expected.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from retinue.manager.domain.endpoints.scaling import (
    EndpointObservation,
    Metric,
    MetricKind,
    Reading,
    ScalerState,
    ScalingPolicy,
    decide,
    fresh_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Vector = dict[str, Any]

_TICK = 2_000
_LONG_AGO = -(10**12)
_METRICS = [["c", 1, "total"]]
# Keys of a policy in seconds, by field: as vectors have them, and as the fields are called.
_TIMES = {
    **{field: field for field in ("stable", "burst", "hold_up", "hold_down", "idle_after")},
    "stable_window": "stable",
    "burst_window": "burst",
    "up_hold": "hold_up",
    "down_hold": "hold_down",
    "idle": "idle_after",
}
_NUMBERS = {
    "min": "min",
    "max": "max",
    "fallback": "fallback",
    "fallback_replicas": "fallback",
    "burst_percent": "burst_percent",
    "tolerance": "tolerance_percent",
    "tolerance_percent": "tolerance_percent",
}


def run(vector: Vector) -> None:
    """Runs all ticks and compares every change of the target."""
    policy = _changed(ScalingPolicy(max=10, metrics=_metrics(_METRICS)), vector.get("policy", {}))
    state = _first_state(vector)
    changes: list[list[float]] = []
    for begin, end, values, *rest in vector["runs"]:
        options: Mapping[str, Any] = rest[0] if rest else {}
        policy = _changed(policy, options.get("set", {}))
        for tick in range(_thousandths(begin), _thousandths(end) + 1, _TICK):
            now = _thousandths(options["now"]) if "now" in options else tick
            decision, state = decide(policy, state, _seen(values, options, state.target), now)
            if decision.target != decision.before:
                changes.append([tick / 1000, decision.target])
    assert changes == vector["expect"]


def _first_state(vector: Vector) -> ScalerState:
    start = vector["start"]
    if "since" in vector:
        return fresh_state(start, _thousandths(vector["since"]))
    before = _thousandths(vector["runs"][0][0]) - _TICK
    return ScalerState(
        start,
        since=_LONG_AGO,
        last=before,
        busy_at=before,
        known_at=before,
        recommendations=((before, start),),
        targets=((_LONG_AGO, start),),
    )


def _changed(policy: ScalingPolicy, given: Mapping[str, Any]) -> ScalingPolicy:
    """Returns a policy with the parts that are given; keys that are not known stay unread, which fails the vector."""
    fields: dict[str, Any] = {field: given[name] for name, field in _NUMBERS.items() if name in given}
    fields |= {field: _thousandths(given[name]) for name, field in _TIMES.items() if name in given}
    if "metrics" in given:
        fields["metrics"] = _metrics(given["metrics"])
    for way in ("up", "down"):
        rate: dict[str, int] = {
            part: given[f"{way}_{part}"] for part in ("percent", "step") if f"{way}_{part}" in given
        }
        if f"{way}_period" in given:
            rate["period"] = _thousandths(given[f"{way}_period"])
        fields[way] = replace(getattr(policy, way), **rate)
    return replace(policy, **fields)


def _metrics(given: list[list[Any]]) -> tuple[Metric, ...]:
    return tuple(Metric(name, _thousandths(target), MetricKind(kind)) for name, target, kind in given)


def _seen(values: Mapping[str, Any], options: Mapping[str, Any], target: int) -> EndpointObservation:
    readings = {name: _reading(value) for name, value in values.items()}
    concurrency = readings.get("c") or Reading(0)
    in_flight = None if concurrency.missing else concurrency.known
    if "inflight" in options:
        given = options["inflight"]
        in_flight = None if given is None else _thousandths(given)
    return EndpointObservation(
        readings,
        in_flight,
        held=options.get("held", 0),
        ready=options.get("ready", target),
        starting=options.get("starting", 0),
        floor=options.get("floor", 0),
    )


def _reading(value: Any) -> Reading | None:
    if value is None:
        return None
    if isinstance(value, list):
        return Reading(_thousandths(value[0]), value[1])
    return Reading(_thousandths(value))


def _thousandths(number: float) -> int:
    return int((Decimal(str(number)) * 1000).to_integral_value())


RUNNERS: dict[str, Callable[[Vector], None]] = {"scaling": run}
