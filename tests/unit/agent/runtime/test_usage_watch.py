"""What is known of an attempt's use once its control groups are gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from retinue.agent.resources.core.usage import FinalUsage, Usage
from retinue.agent.runtime import usage_watch
from retinue.agent.runtime.usage_watch import UsageWatch
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

GROUPS = {"": "/retinue/node/k.1"}


class Groups:
    """Control groups that have counted, until they are gone."""

    def __init__(self) -> None:
        self.usage = Usage(cpu=5, memory=2, memory_peak=7, read=0, written=3)
        self.asked: list[Mapping[str, str]] = []

    def __call__(self, groups: Mapping[str, str]) -> Usage:
        self.asked.append(groups)
        return self.usage


async def test_the_last_measurement_counts() -> None:
    groups = Groups()
    watch = UsageWatch(groups, clock=lambda: 100.0 + len(groups.asked))
    watch.begin("k.1", GROUPS)
    await watch.measure("k.1")
    groups.usage = Usage(cpu=9, memory=1, memory_peak=8, read=4, written=3)
    await watch.measure("k.1")
    assert groups.asked == [GROUPS, GROUPS]
    assert watch.take("k.1") == FinalUsage(102.0, cpu=9, memory_peak=8, read=4, written=3)
    assert watch.take("k.1") is None


async def test_groups_that_are_gone_change_nothing() -> None:
    groups = Groups()
    watch = UsageWatch(groups, clock=lambda: 100.0 + len(groups.asked))
    watch.begin("k.1", GROUPS)
    await watch.measure("k.1")
    groups.usage = Usage()
    await watch.measure("k.1")
    assert watch.take("k.1") == FinalUsage(101.0, cpu=5, memory_peak=7, read=0, written=3)
    watch.begin("k.1", GROUPS)
    await watch.measure("k.1")
    assert watch.take("k.1") is None, "what was never measured is not zero"


async def test_an_attempt_that_cannot_be_measured_stays_as_it_was() -> None:
    groups = Groups()
    failing = False

    def read(given: Mapping[str, str]) -> Usage:
        if failing:
            raise OSError(5, "Input/output error")
        return groups(given)

    watch = UsageWatch(read, clock=lambda: 100.0)
    watch.begin("k.1", GROUPS)
    await watch.measure("k.1")
    failing = True
    # What ends it would end with this.
    await watch.measure("k.1")
    assert watch.take("k.1") == FinalUsage(100.0, cpu=5, memory_peak=7, read=0, written=3)


async def test_what_is_not_counted_any_more_stays() -> None:
    groups = Groups()
    watch = UsageWatch(groups, clock=lambda: 100.0)
    watch.begin("k.1", GROUPS)
    await watch.measure("k.1")
    groups.usage = Usage(cpu=6)
    await watch.measure("k.1")
    assert watch.take("k.1") == FinalUsage(100.0, cpu=6, memory_peak=7, read=0, written=3)


async def test_an_attempt_that_is_not_known_is_not_measured() -> None:
    groups = Groups()
    watch = UsageWatch(groups)
    await watch.measure("k.1")
    assert not groups.asked
    watch.begin("k.1", GROUPS)
    watch.take("k.1")
    await watch.measure("k.1")
    assert not groups.asked


async def test_all_are_measured_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_watch, "INTERVAL", 0.0)
    groups = Groups()
    watch = UsageWatch(groups)
    watch.begin("k.1", GROUPS)
    watch.begin("k.2", {"": "/retinue/node/k.2"})
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(NEVER):
            while len(groups.asked) < 4:
                await asyncio.sleep(0)
    finally:
        task.cancel()
    assert {path for asked in groups.asked for path in asked.values()} == {"/retinue/node/k.1", "/retinue/node/k.2"}
