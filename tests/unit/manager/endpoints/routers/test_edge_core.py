"""The table's revisions, and sums of what routers measure."""

from __future__ import annotations

import uuid
from dataclasses import replace

from retinue.manager.domain.endpoints.model import RevisionTraffic, RoutedEndpoint, RoutingPolicy
from retinue.manager.endpoints.routers.core.table import EdgeTable, difference
from retinue.manager.endpoints.routers.core.traffic import LIVE_SECONDS, STALE_SECONDS, Reading, rising, summed

ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)


def endpoint(endpoint_id: uuid.UUID, name: str = "toy") -> RoutedEndpoint:
    return RoutedEndpoint(endpoint_id, "p", name, name)


def test_a_revision_rises_with_a_difference_only() -> None:
    first = EdgeTable().after([], {}, 1)
    assert first.revision == 1
    second = first.after([endpoint(ONE)], {}, 1)
    assert second.after([endpoint(ONE)], {}, 1) is second
    assert second.revision == 2
    assert second.after([endpoint(ONE)], {ONE: ("t",)}, 1).revision == 3
    assert second.after([endpoint(ONE)], {}, 2).revision == 3


def test_a_difference_names_what_changed_and_what_is_gone() -> None:
    before = EdgeTable().after([endpoint(ONE), endpoint(TWO)], {}, 1)
    after = before.after([endpoint(TWO, "other")], {}, 1)
    change = difference(before, after)
    assert [endpoint.name for endpoint in change.changed] == ["other"]
    assert change.removed == (ONE,)


def test_a_host_of_a_deleted_endpoint_is_that_of_the_one_that_has_it_now() -> None:
    """Two virtual hosts of one name are refused by the engine."""
    hosts = RoutingPolicy(hosts=("a.test", "b.test"))
    gone = replace(endpoint(ONE), routing=hosts, deleted=True)
    alone = EdgeTable().after([gone], {}, 1)
    assert alone.endpoints[ONE].routing == hosts
    now = replace(endpoint(TWO), routing=RoutingPolicy(hosts=("b.test", "c.test")))
    table = alone.after([gone, now], {}, 1)
    assert table.endpoints[ONE].routing.hosts == ("a.test",)
    assert table.endpoints[TWO].routing.hosts == ("b.test", "c.test")


def reading(heard: float, measured: float | None, requests: int, acknowledged: int = 5) -> Reading:
    return Reading(
        heard, measured, acknowledged, {(ONE, 1): RevisionTraffic(1, 2, requests, 0, ((5, 3),))}, {ONE: 4}, {TWO: 1}
    )


def test_counts_of_live_routers_are_added() -> None:
    found = summed([reading(10, 10, 7), reading(10, 10, 8, 4)], newest=5, now=10)
    assert (found.live, found.missing, found.acknowledged, found.current) == (2, 0, 4, 1)
    assert found.endpoints[ONE].held == 8
    assert found.endpoints[ONE].revisions[1] == RevisionTraffic(2, 4, 15, 0, ((5, 6),))
    assert found.draining == {TWO: 2}


def test_a_router_that_does_not_measure_is_missing_and_a_silent_one_does_not_count() -> None:
    now = 10 + STALE_SECONDS + 1
    partial = summed([reading(now, 10, 7), reading(now, now, 8)], newest=5, now=now)
    assert (partial.live, partial.missing, partial.draining) == (2, 1, {})
    assert partial.endpoints[ONE].revisions[1].requests == 8
    later = 10 + LIVE_SECONDS + 1
    alone = summed([reading(10, 10, 7, 1), reading(later, later, 8)], newest=5, now=later)
    assert (alone.live, alone.silent, alone.missing, alone.acknowledged) == (1, 1, 0, 5)


def test_without_routers_everything_is_acknowledged() -> None:
    found = summed([], newest=5, now=0)
    assert (found.live, found.silent, found.missing, found.acknowledged) == (0, 0, 0, 5)


def test_counts_do_not_fall_when_the_engine_starts_again() -> None:
    before = RevisionTraffic(3, 0, 100, 2, ((5, 90),))
    after = rising(before, RevisionTraffic(1, 0, 4, 0, ((5, 4),)), before)
    assert after == RevisionTraffic(1, 0, 104, 2, ((5, 94),))
