"""Decides how many replicas an endpoint has. Integers only: times in milliseconds, amounts in thousandths.

Each metric asks for a number of replicas by its total: what one replica is meant to bear divides it, so that replicas
which were just added do not change the answer. The highest wins. A rise needs every recommendation of `hold_up`, a fall
all of `hold_down`; both are bounded per period. What is unknown or partial never lowers.
The bounds come last, and hold at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

# A sample that is older says nothing.
_FRESH_MS = 10_000
# Without any known metric for so long, the fallback holds.
_UNKNOWN_MS = 60_000
# Between two steps that pressure asks for.
_PRESSURE_MS = 60_000


class MetricKind(StrEnum):
    """How a metric becomes a number of replicas."""

    # A sum over routers.
    TOTAL = "total"
    # A sum over replicas: one that does not report counts nothing upwards and fully downwards.
    MEAN = "mean"
    # Above its target the endpoint grows step by step.
    PRESSURE = "pressure"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with the amount that one replica is meant to bear, in thousandths."""

    name: str
    target: int
    kind: MetricKind = MetricKind.TOTAL


@dataclass(frozen=True, slots=True)
class Rate:
    """A bound on a change within a period: `percent` of the target at its begin, or `step` replicas if that is more."""

    percent: int
    step: int
    period: int


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """Bounds, metrics, windows and holds."""

    min: int = 1
    max: int = 1
    metrics: tuple[Metric, ...] = (Metric("concurrency", 8_000),)
    stable: int = 60_000
    burst: int = 6_000
    hold_up: int = 0
    hold_down: int = 300_000
    idle_after: int = 300_000
    burst_percent: int = 200
    tolerance_percent: int = 10
    up: Rate = Rate(100, 4, 15_000)
    down: Rate = Rate(50, 1, 60_000)
    fallback: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric now: the sum that is known, in thousandths, and how many routers or replicas did not report."""

    known: int
    missing: int = 0


@dataclass(frozen=True, slots=True)
class EndpointObservation:
    """What is seen of an endpoint now. `in_flight` is None while a live router does not report."""

    metrics: Mapping[str, Reading | None]
    in_flight: int | None
    held: int = 0
    ready: int = 0
    starting: int = 0
    floor: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """A reading with its time."""

    at: int
    known: int
    missing: int


@dataclass(frozen=True, slots=True)
class ScalerState:
    """What the autoscaler remembers of an endpoint: it begins with `fresh_state`,
    and each decision returns the next.
    """

    target: int
    # When it began; a younger state than a hold lowers nothing.
    since: int
    last: int
    busy_at: int
    known_at: int
    pressed_at: int | None = None
    samples: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    recommendations: tuple[tuple[int, int], ...] = ()
    # Targets with the times that they hold from, in order.
    targets: tuple[tuple[int, int], ...] = ()


class Cause(StrEnum):
    """What decided a target."""

    STEADY = "as many as the load needs"
    METRIC = "the load"
    HOLD_UP = "more is needed, but not for long enough"
    HOLD_DOWN = "less is needed, but not for long enough"
    RATE_UP = "the load; growth is limited per period"
    RATE_DOWN = "the load; decline is limited per period"
    UNKNOWN = "a metric is unknown or partial, which lowers nothing"
    FALLBACK = "no metric has been known for a minute"
    HELD = "requests are held"
    IDLE = "nothing was asked for"
    ASLEEP = "asleep until something is asked for"
    LAST = "the last replica stays until nothing has been asked for long enough"
    MIN = "the least that the policy or the floor allows"
    MAX = "the most that the policy allows"


@dataclass(frozen=True, slots=True)
class Explained:
    """A metric in a decision: what was read, its means in thousandths (None: unknown), and the replicas it asks for."""

    metric: Metric
    reading: Reading | None
    stable_mean: int | None = None
    burst_mean: int | None = None
    recommendation: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """A target with all that it was made from."""

    before: int
    target: int
    cause: Cause
    recommendation: int
    metrics: tuple[Explained, ...]
    seen: EndpointObservation
    at: int


def fresh_state(target: int, now: int) -> ScalerState:
    """Returns the state of an endpoint that is looked at for the first time, or for the first time in a term."""
    return ScalerState(target, since=now, last=now, busy_at=now, known_at=now, targets=((now, target),))


def decide(
    policy: ScalingPolicy, state: ScalerState, seen: EndpointObservation, now: int
) -> tuple[Decision, ScalerState]:
    """Returns the target from now on, and the state to decide from the next time."""
    now = max(now, state.last)
    current = state.target
    state = replace(
        state,
        last=now,
        busy_at=now if seen.in_flight != 0 or seen.held > 0 or seen.starting > 0 else state.busy_at,
        samples=_with_samples(policy, state, seen, now),
    )
    recommendation, cause, hold, pressed, explained = _recommend(policy, state, seen, now)
    known = any(item.stable_mean is not None for item in explained)
    state = replace(state, known_at=now if known else state.known_at)
    if hold and recommendation < current:
        recommendation, cause = current, Cause.UNKNOWN
    if seen.held > 0 and recommendation < 1:
        recommendation, cause = 1, Cause.HELD
    if now - state.known_at >= _UNKNOWN_MS and policy.fallback > recommendation:
        recommendation, cause = policy.fallback, Cause.FALLBACK
    kept = max(policy.hold_up, policy.hold_down)
    recommendations = (*_within(state.recommendations, now, kept), (now, recommendation))
    state = replace(state, recommendations=recommendations)
    wanted, cause = _held_and_limited(policy, state, recommendation, cause, now)
    if current > 0:
        if policy.min == 0 and seen.floor == 0 and now - state.busy_at >= policy.idle_after:
            wanted, cause = 0, Cause.IDLE
        elif wanted < 1:
            wanted, cause = 1, Cause.LAST
    least = min(max(policy.min, seen.floor), policy.max)
    if wanted < least:
        wanted, cause = least, Cause.MIN
    if wanted > policy.max:
        wanted, cause = policy.max, Cause.MAX
    if wanted == current and cause is Cause.METRIC:
        cause = Cause.STEADY
    targets = _in_force(state.targets, now, max(policy.up.period, policy.down.period))
    state = replace(
        state,
        target=wanted,
        # It sleeps for want of requests: those of before, which a window may still hold, are no reason to wake.
        samples={} if wanted == 0 else state.samples,
        pressed_at=now if pressed and wanted > current else state.pressed_at,
        targets=targets if wanted == current else (*targets, (now, wanted)),
    )
    return Decision(current, wanted, cause, recommendation, explained, seen, now), state


def _recommend(
    policy: ScalingPolicy, state: ScalerState, seen: EndpointObservation, now: int
) -> tuple[int, Cause, bool, bool, tuple[Explained, ...]]:
    """Returns the number of replicas that the metrics ask for, why, whether nothing may be lowered,
    and whether pressure asks for a step.
    """
    current = state.target
    recommendation, hold, pressed = 0, False, False
    explained: list[Explained] = []
    for metric in policy.metrics:
        samples = state.samples.get(metric.name, ())
        reading = seen.metrics.get(metric.name)
        if not samples or now - samples[-1].at >= _FRESH_MS:
            hold = True
            explained.append(Explained(metric, reading))
            continue
        # The newest sample may be older than a short window.
        stable = [item for item in samples if item.at > now - policy.stable] or [samples[-1]]
        burst = [item for item in samples if item.at > now - policy.burst] or [samples[-1]]
        low = _ceil(sum(item.known for item in stable), len(stable))
        peak = _ceil(sum(item.known for item in burst), len(burst))
        if metric.kind is MetricKind.PRESSURE:
            asked = 0
            if peak > metric.target:
                rested = state.pressed_at is None or now - state.pressed_at >= _PRESSURE_MS
                step = rested and seen.starting == 0
                pressed = pressed or step
                asked = current + max(1, current // 4) if step else current
        else:
            high = low
            if metric.kind is MetricKind.MEAN:
                high = _ceil(sum(item.known + item.missing * metric.target for item in stable), len(stable))
            elif any(item.missing for item in stable):
                hold = True
            asked = _replicas(policy, metric, low, high, current)
            in_burst = _ceil(peak, metric.target)
            if 100 * in_burst >= policy.burst_percent * max(1, seen.ready):
                asked = max(asked, in_burst)
        recommendation = max(recommendation, asked)
        explained.append(Explained(metric, reading, low, peak, asked))
    return recommendation, Cause.METRIC, hold, pressed, tuple(explained)


def _replicas(policy: ScalingPolicy, metric: Metric, low: int, high: int, current: int) -> int:
    """Returns the replicas for a load: more than now only beyond the tolerance,
    fewer than now only if all that is missing were busy.
    """
    if _ceil(100 * low, (100 + policy.tolerance_percent) * metric.target) > current:
        return _ceil(low, metric.target)
    return min(current, _ceil(high, metric.target))


def _held_and_limited(
    policy: ScalingPolicy, state: ScalerState, recommendation: int, cause: Cause, now: int
) -> tuple[int, Cause]:
    """Returns what the recommendations of the holds allow, within the rates."""
    current = state.target
    if current == 0:
        wanted = recommendation
        cause = cause if wanted else Cause.ASLEEP
    else:
        least = min(_held(policy.hold_up, state, now))
        most = max(_held(policy.hold_down, state, now))
        if least > current:
            wanted = least
        elif most < current:
            wanted = most
        else:
            wanted = current
            if recommendation > current:
                cause = Cause.HOLD_UP
            elif recommendation < current:
                cause = Cause.HOLD_DOWN
    if wanted > current:
        base = min(target for _, target in _in_force(state.targets, now, policy.up.period))
        limit = max(base * (100 + policy.up.percent) // 100, base + policy.up.step)
        if wanted > limit:
            wanted, cause = max(current, limit), Cause.RATE_UP
    elif wanted < current:
        base = max(target for _, target in _in_force(state.targets, now, policy.down.period))
        limit = max(0, min(base - policy.down.step, _ceil(base * (100 - policy.down.percent), 100)))
        if wanted < limit:
            wanted, cause = min(current, limit), Cause.RATE_DOWN
    return wanted, cause


def _held(hold: int, state: ScalerState, now: int) -> list[int]:
    """Returns the recommendations of a hold, the newest one in any case;
    a younger state has held the target until now.
    """
    found = [value for at, value in state.recommendations if at > now - hold] or [state.recommendations[-1][1]]
    return [*found, state.target] if now - state.since < hold else found


def _with_samples(
    policy: ScalingPolicy, state: ScalerState, seen: EndpointObservation, now: int
) -> Mapping[str, tuple[Sample, ...]]:
    kept = max(policy.stable, policy.burst, _FRESH_MS)
    samples: dict[str, tuple[Sample, ...]] = {}
    for metric in policy.metrics:
        found = tuple(item for item in state.samples.get(metric.name, ()) if item.at > now - kept)
        reading = seen.metrics.get(metric.name)
        samples[metric.name] = found if reading is None else (*found, Sample(now, reading.known, reading.missing))
    return samples


def _in_force(targets: tuple[tuple[int, int], ...], now: int, period: int) -> tuple[tuple[int, int], ...]:
    """Returns the targets of a period, that which held at its begin included."""
    begin = now - period
    first = 0
    for number, (at, _) in enumerate(targets):
        if at <= begin:
            first = number
    return targets[first:]


def _within(values: tuple[tuple[int, int], ...], now: int, period: int) -> tuple[tuple[int, int], ...]:
    return tuple(item for item in values if item[0] > now - period)


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
