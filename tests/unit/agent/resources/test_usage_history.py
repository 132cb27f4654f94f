"""Samples of the last hour: which are kept, and which are given."""

from __future__ import annotations

import pytest

from retinue.agent.resources.core.usage import Usage
from retinue.agent.resources.sampler import Sample, Sampler
from retinue.agent.resources.usage_history import INTERVAL, KEPT_ENDED, KEPT_SAMPLES, UsageHistory

# An hour after the epoch is no time that anything counts from.
BEGIN = 1_700_000_000.0


class Node:
    """Attempts that run, their use, and the time."""

    def __init__(self) -> None:
        self.now = BEGIN
        self.running: dict[str, Usage] = {}
        self.gpus: dict[str, float] = {}
        sampler = Sampler(
            lambda key: (lambda: self.running[key]) if key in self.running else None,
            lambda _: self.gpus,
            monotonic=lambda: self.now,
            clock=lambda: self.now,
        )
        self.history = UsageHistory(sampler, lambda: list(self.running), clock=lambda: self.now)

    async def measure(self, times: int = 1) -> None:
        for _ in range(times):
            await self.history.measure()
            self.now += INTERVAL

    def times(self, attempt_id: str, since: float | None = None, interval: float = 0.0) -> list[float]:
        return [sample.time - BEGIN for sample in self.history.read(attempt_id, since, interval)]


async def test_what_is_not_measured_is_missing_and_not_zero() -> None:
    node = Node()
    node.running = {"a.1": Usage(cpu=1_500_000_000, memory=7, received=3, sent=0), "b.1": Usage(memory=0)}
    node.gpus = {"a.1": 12.5}
    await node.measure()
    assert list(node.history.read("a.1")) == [
        Sample(BEGIN, 0.0, Usage(cpu=1_500_000_000, memory=7, received=3, sent=0), 12.5)
    ]
    assert list(node.history.read("b.1")) == [Sample(BEGIN, 0.0, Usage(memory=0))]
    assert list(node.history.read("c.1")) == []


async def test_an_hour_is_kept_in_less_than_20_kb() -> None:
    node = Node()
    node.running = {"a.1": Usage(cpu=1 << 60, memory=1 << 60)}
    await node.measure(KEPT_SAMPLES + 5)
    assert node.times("a.1") == [INTERVAL * number for number in range(5, KEPT_SAMPLES + 5)]
    assert node.history.sizes["a.1"] < 20_000


@pytest.mark.parametrize(
    ("since", "interval", "expected"),
    [
        (None, 0.0, [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]),
        (BEGIN + 35, 0.0, [40.0, 50.0, 60.0]),
        (BEGIN + 40, 0.0, [40.0, 50.0, 60.0]),
        (BEGIN + 61, 0.0, []),
        # The last of each interval, whichever interval of the clock the first is in; and the newest of all.
        (None, 30.0, [0.0, 30.0, 60.0]),
        (None, 3600.0, [60.0]),
    ],
)
async def test_some_are_chosen(since: float | None, interval: float, expected: list[float]) -> None:
    node = Node()
    node.running = {"a.1": Usage()}
    await node.measure(7)
    assert node.times("a.1", since, interval) == expected


async def test_those_of_an_ended_attempt_stay_for_an_hour() -> None:
    node = Node()
    node.running = {"a.1": Usage(), "b.1": Usage()}
    await node.measure()
    del node.running["a.1"]
    await node.measure(KEPT_SAMPLES - 1)
    assert node.times("a.1") == [0.0]
    await node.measure(2)
    assert node.times("a.1") == []
    assert node.history.sizes.keys() == {"b.1"}


async def test_of_ended_attempts_the_last_stay() -> None:
    node = Node()
    number = KEPT_ENDED + 3
    node.running = {f"a{item}.1": Usage() for item in range(number)} | {"b.1": Usage()}
    await node.measure()
    assert all(node.times(f"a{item}.1") for item in range(number))
    for item in range(number):
        del node.running[f"a{item}.1"]
        await node.history.measure()
        node.now += 1
    assert [item for item in range(number) if not node.times(f"a{item}.1")] == [0, 1, 2]
    assert node.times("b.1")
