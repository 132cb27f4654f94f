"""Which connections of strangers are ended."""

from __future__ import annotations

from collections import Counter

import pytest

from retinue.manager.server.strangers import (
    BYTES,
    BYTES_OF_CALL,
    BYTES_OF_MORE_CALLS,
    CALLS,
    CONNECTIONS,
    EARLY_BYTES,
    EARLY_SECONDS,
    NEW_SECONDS,
    SEGMENTS,
    SILENT_SECONDS,
    STREAM_SECONDS,
    STREAMS,
    WINDOWS,
    Accounts,
    Ending,
    Reason,
    Sight,
    Strangers,
    Talk,
    Traffic,
)
from retinue.manager.server.wrong_tokens import Endpoint, network_of

ADDRESS = "192.0.2.1"


def seen(port: int, received: int = 0, segments: int = 0, *, address: str = ADDRESS, known: bool = False) -> Sight:
    traffic = None if known else Traffic(received, segments)
    return Sight((port, b"peer"), (address, port), network_of(address), traffic)


def ended(endings: list[Ending]) -> dict[int, Reason]:
    return {ending.key[0]: ending.reason for ending in endings}


def ports(strangers: Strangers, sights: list[Sight], talks: dict[Endpoint, Talk], now: float) -> set[int]:
    return set(ended(strangers.judge(sights, talks, now)))


@pytest.mark.parametrize(
    "sight",
    [seen(1, BYTES.burst + 1), seen(1, 0, SEGMENTS.burst + 1)],
    ids=["bytes", "segments"],
)
def test_what_comes_without_calls_is_a_flood(sight: Sight) -> None:
    strangers = Strangers(8, 1000)
    assert ended(strangers.judge([sight, seen(2, BYTES.burst, SEGMENTS.burst)], {}, 0.0)) == {1: Reason.FLOOD}
    # Once, however often it is seen until it is closed.
    assert strangers.judge([sight], {}, 0.1) == []


def test_calls_explain_bytes_but_are_counted_themselves() -> None:
    strangers = Strangers(8, 1000)
    talks = {
        (ADDRESS, 1): Talk(calls=3),
        (ADDRESS, 2): Talk(calls=CALLS.burst + 1),
        # A caller with hundreds of streams at once authenticates by the first of them.
        (ADDRESS, 3): Talk(calls=10 * CALLS.burst, open=10 * CALLS.burst),
    }
    sights = [seen(1, BYTES.burst + 3 * BYTES_OF_CALL), seen(2), seen(3)]
    assert ended(strangers.judge(sights, talks, 0.0)) == {2: Reason.FLOOD}


@pytest.mark.parametrize(("size", "ends"), [(BYTES_OF_MORE_CALLS, False), (4 * BYTES_OF_MORE_CALLS, True)])
def test_few_calls_do_not_explain_many_that_were_taken_back(size: int, ends: bool) -> None:
    """A busy event loop begins few of the calls of a flood; each stands for the bytes of hundreds."""
    strangers, rate = Strangers(8, 1000), int(CALLS.rate)
    endings = [
        strangers.judge([seen(1, second * rate * size)], {(ADDRESS, 1): Talk(calls=second * rate)}, float(second))
        for second in range(600)
    ]
    assert any(endings) is ends
    # What a window holds was explained at first.
    assert endings[: WINDOWS.burst // rate] == [[]] * (WINDOWS.burst // rate)


def test_the_allowance_comes_back_at_its_rate() -> None:
    strangers = Strangers(8, 1000)
    assert strangers.judge([seen(1, BYTES.burst)], {(ADDRESS, 1): Talk(calls=1)}, 0.0) == []
    assert strangers.judge([seen(1, BYTES.burst + BYTES_OF_CALL)], {(ADDRESS, 1): Talk(calls=1)}, 1.0) == []
    more = int(BYTES.burst + BYTES_OF_CALL + 2 * BYTES.rate)
    assert strangers.judge([seen(1, more)], {(ADDRESS, 1): Talk(calls=1)}, 2.0) == []
    assert ports(strangers, [seen(1, int(more + 2 * BYTES.rate))], {(ADDRESS, 1): Talk(calls=1)}, 3.0) == {1}


def test_a_slow_caller_within_its_rates_is_left_alone_for_ever() -> None:
    strangers = Strangers(8, 1000)
    for second in range(3600):
        talks = {(ADDRESS, 1): Talk(calls=1 + second * 19)}
        assert strangers.judge([seen(1, second * 15_000, second * 250)], talks, float(second)) == []


def test_the_first_call_has_to_begin_in_time() -> None:
    strangers = Strangers(8, 1000)
    talks = {(ADDRESS, 2): Talk(calls=1)}
    sights = [seen(1), seen(2)]
    assert strangers.judge(sights, talks, 0.0) == []
    assert strangers.judge(sights, talks, SILENT_SECONDS) == []
    assert ended(strangers.judge(sights, talks, SILENT_SECONDS + 0.1)) == {1: Reason.SILENT}


def test_what_comes_begins_a_call_in_a_second() -> None:
    """Frames that are no call, and slow to read, are a flood long before they use up the allowance."""
    strangers = Strangers(8, 1000)
    talks = {(ADDRESS, 2): Talk(calls=1, open=1)}
    sights = [seen(1, EARLY_BYTES + 1), seen(2, EARLY_BYTES + 1), seen(3, EARLY_BYTES)]
    assert strangers.judge(sights, talks, 0.0) == []
    assert strangers.judge(sights, talks, EARLY_SECONDS) == []
    assert ended(strangers.judge(sights, talks, EARLY_SECONDS + 0.1)) == {1: Reason.FLOOD}


def test_open_calls_are_bounded_once_there_was_time_to_authenticate() -> None:
    strangers = Strangers(8, 1000)
    talks = {(ADDRESS, 1): Talk(calls=99, open=STREAMS + 1), (ADDRESS, 2): Talk(calls=99, open=STREAMS)}
    sights = [seen(1), seen(2)]
    assert strangers.judge(sights, talks, 0.0) == []
    assert ended(strangers.judge(sights, talks, STREAM_SECONDS + 0.1)) == {1: Reason.STREAMS}


def test_nothing_ends_those_who_have_authenticated() -> None:
    strangers = Strangers(2, 1000)
    talks = {(ADDRESS, port): Talk(calls=10_000, open=500, authenticated=True) for port in range(500)}
    # Also when that was known only after it was seen.
    sights = [seen(port, 1 << 30, 1 << 20, known=port % 2 == 0) for port in range(500)]
    assert strangers.judge(sights, talks, 0.0) == []
    assert strangers.judge(sights, talks, 1000.0) == []
    assert len(strangers) == 0


def test_of_too_many_the_oldest_are_ended_and_those_without_a_call_first() -> None:
    strangers = Strangers(3, 1000)
    talks = {(ADDRESS, 1): Talk(calls=1, open=1)}
    assert strangers.judge([seen(1), seen(2)], talks, 0.0) == []
    assert strangers.judge([seen(1), seen(2), seen(3)], talks, 1.0) == []
    sights = [seen(port) for port in range(1, 6)]
    now = 1.0 + NEW_SECONDS
    assert ended(strangers.judge(sights, talks, now)) == {2: Reason.CONNECTIONS, 3: Reason.CONNECTIONS}
    # Those that were ended count no more.
    assert strangers.judge(sights, talks, now) == []


def test_one_that_has_just_come_is_not_ended_for_those_with_calls() -> None:
    strangers = Strangers(2, 1000)
    talks = {(ADDRESS, port): Talk(calls=1, open=1) for port in (1, 2)}
    assert strangers.judge([seen(1)], talks, 0.0) == []
    assert strangers.judge([seen(1), seen(2)], talks, 1.0) == []
    assert ports(strangers, [seen(1), seen(2), seen(3)], talks, 2.0) == {1}
    # It has had its time.
    assert ports(strangers, [seen(2), seen(3), seen(4)], talks, 2.0 + NEW_SECONDS) == {3}


def test_addresses_do_not_count_for_each_other_but_networks_of_ipv6_do() -> None:
    strangers = Strangers(2, 1000)
    sights = [seen(port, address=f"192.0.2.{port}") for port in range(1, 5)]
    sights += [seen(100 + port, address=f"2001:db8::{port}") for port in range(3)]
    sights += [seen(200 + port, address=f"2001:db8:0:{port + 1}::1") for port in range(1)]
    assert [key.network for key in strangers.judge(sights, {}, 0.0)] == ["2001:db8::/64"]


@pytest.mark.parametrize(("descriptors", "left"), [(65_536, 8), (16, 4)])
def test_all_together_are_bounded_by_their_number_and_by_descriptors(descriptors: int, left: int) -> None:
    strangers = Strangers(2, descriptors)
    sights = [seen(port, address=f"192.0.2.{port}") for port in range(20)]
    assert strangers.judge(sights[:10], {}, 0.0) == [
        Ending(sight.key, sight.network, Reason.CONNECTIONS) for sight in sights[: 10 - left]
    ]
    # The newest stay.
    assert ports(strangers, sights, {}, 1.0) == set(range(10 - left, 20 - left))


def test_a_port_that_is_used_again_has_its_whole_allowance() -> None:
    strangers = Strangers(8, 1000)
    assert strangers.judge([seen(1, BYTES.burst)], {}, 0.0) == []
    assert strangers.judge([], {}, 1.0) == []
    assert strangers.judge([seen(1, BYTES.burst)], {}, 2.0) == []


def test_a_flood_is_of_its_network_and_so_are_connections_one_after_the_other() -> None:
    strangers = Strangers(8, 1000)
    strangers.judge([seen(1, BYTES.burst + 1), seen(2, address="192.0.2.2")], {}, 0.0)
    assert strangers.flooding == {ADDRESS}
    # It was one flood, however long the library takes to close the connection.
    strangers.judge([seen(1, 2 * BYTES.burst)], {}, 0.1)
    assert strangers.flooding == set()
    strangers, now = Strangers(8, 1000), 0.0
    for number in range(CONNECTIONS.burst):
        strangers.judge([seen(number)], {}, now)
        assert strangers.flooding == set()
    strangers.judge([seen(5000), seen(5001, address="192.0.2.2")], {}, now)
    assert strangers.flooding == {ADDRESS}
    # Fewer than are given back are no flood.
    for number in range(100):
        now += 2 / CONNECTIONS.rate
        strangers.judge([seen(6000 + number)], {}, now)
        assert strangers.flooding == set()
    # Those who have authenticated count for nothing.
    talks = {(ADDRESS, port): Talk(calls=1, authenticated=True) for port in range(2 * CONNECTIONS.burst)}
    strangers.judge([seen(port) for port in range(2 * CONNECTIONS.burst)], talks, now)
    assert strangers.flooding == set()


def test_it_says_whether_to_look_again_soon() -> None:
    strangers = Strangers(8, 1000)
    strangers.judge([seen(1, 100)], {}, 0.0)
    assert strangers.busy
    strangers.judge([seen(1, 100)], {}, 2.0)
    assert not strangers.busy
    strangers.judge([seen(1, 101)], {}, 3.0)
    assert strangers.busy
    strangers.judge([seen(1, known=True)], {(ADDRESS, 1): Talk(1, 1, authenticated=True)}, 3.5)
    assert not strangers.busy


def test_the_log_has_a_line_a_minute_and_network() -> None:
    accounts = Accounts()
    flood, silent = (Ending((1, b""), "a", reason) for reason in (Reason.FLOOD, Reason.SILENT))
    accounts.add([flood, flood, silent])
    assert accounts.due(0.0) == {"a": Counter({Reason.FLOOD: 2, Reason.SILENT: 1})}
    accounts.add([flood, Ending((2, b""), "b", Reason.FLOOD)])
    assert accounts.due(1.0) == {"b": Counter({Reason.FLOOD: 1})}
    accounts.add([flood])
    assert accounts.due(59.0) == {}
    assert accounts.due(61.0) == {"a": Counter({Reason.FLOOD: 2})}
    assert accounts.due(1000.0) == {}
