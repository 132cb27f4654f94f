"""The autoscaler under loads that jump and swing, in simulated time: what it decides, not how fast it computes.

`endpoint-scaling-burst` is how long after a load became ten times as much the first decision comes, and
`-burst-whole` until the whole need is known, the later of all phases of a tick. `-sine-turns` are turns of the target
per `hold_down` under a load that swings, and `-sine-covered` the share of ticks at which the replicas that are ready
bear it, both the worst of all periods; ticks at which the growth allowed is still on its way do not count. `-overshoot`
are replicas beyond the need after a step. What swings are requests that come whether or not others are answered, and
wait; what jumps are clients that wait for their answers.
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from retinue.manager.domain.endpoints.scaling import (
    Cause,
    Decision,
    EndpointObservation,
    Metric,
    Rate,
    Reading,
    ScalerState,
    ScalingPolicy,
    decide,
    fresh_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TICK, START, HOUR = 2_000, 10_000, 3_600_000
TARGET, PERIODS = 1_000, (60, 90, 120, 180, 300, 420, 600)
POLICY = ScalingPolicy(min=1, max=200, metrics=(Metric("c", TARGET),))
_LONG_AGO = -(10**9)


@dataclass(slots=True)
class Fleet:
    """Replicas that take a while to start, and an autoscaler that looks at them."""

    state: ScalerState
    policy: ScalingPolicy = POLICY
    ready: int = 0
    # Requests that wait, in thousandths: they count in the concurrency that routers report.
    waiting: int = 0
    # Whether more come than are answered; else as many clients each wait for their answer.
    opened: bool = False
    starting: deque[int] = field(default_factory=deque)

    @classmethod
    def settled(cls, target: int, policy: ScalingPolicy = POLICY) -> Fleet:
        state = replace(fresh_state(target, _LONG_AGO), last=_LONG_AGO, known_at=-TICK, busy_at=-TICK)
        return cls(state, policy, target)

    def tick(self, now: int, load: int) -> Decision:
        """Looks once, at a load in thousandths of requests at once."""
        while self.starting and self.starting[0] <= now:
            self.starting.popleft()
            self.ready += 1
        if self.opened:
            # A request takes a second of a replica.
            self.waiting = max(0, self.waiting + (load - self.ready * TARGET) * TICK // 1_000)
        there = load + self.waiting
        seen = EndpointObservation({"c": Reading(there)}, there, ready=self.ready, starting=len(self.starting))
        decision, self.state = decide(self.policy, self.state, seen, now)
        while self.ready + len(self.starting) < decision.target:
            self.starting.append(now + START)
        while self.ready + len(self.starting) > decision.target:
            if self.starting:
                self.starting.pop()
            else:
                self.ready -= 1
        return decision


def burst() -> tuple[float, float]:
    """Returns the seconds until the first decision and until the whole need is known, at the worst phase."""
    firsts, wholes = [], []
    policy = replace(POLICY, up=Rate(100, 400, 15_000))
    for phase in range(0, TICK, 250):
        fleet, first, whole = Fleet.settled(10, policy), 0, 0
        for now in range(-60_000 + phase, 30_000, TICK):
            decision = fleet.tick(now, 100_000 if now >= 0 else 10_000)
            first = first or (now if decision.target > 10 else 0)
            whole = whole or (now if decision.target >= 100 else 0)
        firsts.append(first / 1_000)
        wholes.append(whole / 1_000)
    return max(firsts), max(wholes)


def swing(load: Callable[[int], int], length: int) -> tuple[float, float]:
    """Returns turns per hold, and the share of ticks, in percent, at which what is ready bears the load."""
    fleet, turns, way, covered, counted = Fleet.settled(load(0) // TARGET + 1), 0, 0, 0, 0
    fleet.opened = True
    for now in range(0, length, TICK):
        demand = load(now)
        decision = fleet.tick(now, demand)
        moved = (decision.target > decision.before) - (decision.target < decision.before)
        turns += bool(moved and way and moved != way)
        way = moved or way
        # What is asked for and bounded by the rate, or starts, is as much as growth allows.
        if decision.cause is Cause.RATE_UP or fleet.starting:
            continue
        counted += 1
        covered += 11 * fleet.ready * TARGET >= 10 * demand
    return turns * fleet.policy.hold_down / length, 100 * covered / max(1, counted)


def sine(period: int) -> Callable[[int], int]:
    """Returns a load between 5 and 45 requests at once."""
    return lambda now: round(1_000 * (25 + 20 * math.sin(2 * math.pi * now / (1_000 * period))))


def overshoot() -> int:
    """Returns by how many replicas more than the need a step is answered at the most."""
    worst = 0
    for before, after in ((1, 10), (5, 50), (10, 12), (3, 100)):
        fleet = Fleet.settled(before)
        for now in range(-60_000, 300_000, TICK):
            decision = fleet.tick(now, 1_000 * (after if now >= 0 else before))
            worst = max(worst, decision.target - after)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the time")
    length = HOUR // 10 if parser.parse_args().quick else HOUR
    first, whole = burst()
    print(f"endpoint-scaling-burst {first:.2f} s - -")
    print(f"endpoint-scaling-burst-whole {whole:.2f} s - -")
    found = [swing(sine(period), length) for period in PERIODS]
    print(f"endpoint-scaling-sine-turns {max(turns for turns, _ in found):.2f} turns - -")
    print(f"endpoint-scaling-sine-covered {min(share for _, share in found):.1f} % - -")
    print(f"endpoint-scaling-overshoot {overshoot()} replicas - -")


if __name__ == "__main__":
    main()
