"""Policies: what is refused when a group is configured."""

from __future__ import annotations

import pytest

from manager.scheduling.columns import Policy
from manager.scheduling.strategies import PolicyError, Settings, slot_order, validate_policy


def test_reads_options() -> None:
    policy = Policy(
        "fifo", "dispersed", {"max-tries-before-skip": "5", "slot-priority": "mem, cpu", "max-kernels-per-agent": "8"}
    )
    assert validate_policy(policy) == Settings("fifo", "dispersed", 5, ("mem", "cpu"), 8)
    assert validate_policy(Policy()) == Settings("drf", "concentrated", 0, ("cuda", "rocm", "tpu", "cpu", "mem"), 0)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy("DRF", "concentrated"), "unknown session strategy 'DRF'; known are: drf, fair-share, fifo, lifo"),
        (Policy("", "concentrated"), "unknown session strategy"),
        (Policy("drf", "roundrobin"), "unknown agent strategy 'roundrobin'"),
        (Policy("drf", "concentrated", {"max-tries": "1"}), "option 'max-tries' is not read"),
        (Policy("drf", "concentrated", {"max-tries-before-skip": "1"}), "is not read by drf and concentrated"),
        (Policy("drf", "round-robin", {"slot-priority": "cpu"}), "is not read by drf and round-robin"),
        (Policy("fifo", "dispersed", {"max-tries-before-skip": "-1"}), "whole number"),
        (Policy("fifo", "dispersed", {"max-tries-before-skip": ""}), "whole number"),
        (Policy("fifo", "dispersed", {"max-tries-before-skip": "1e3"}), "whole number"),
        (Policy("fifo", "dispersed", {"max-kernels-per-agent": "1000001"}), "whole number"),
        (Policy("drf", "dispersed", {"slot-priority": "cpu,cpu"}), "names a slot twice"),
        (Policy("drf", "dispersed", {"slot-priority": "cpu,,mem"}), "slot name"),
        (Policy("drf", "dispersed", {"slot-priority": "CPU"}), "slot name"),
    ],
)
def test_refuses(policy: Policy, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        validate_policy(policy)


def test_slots_are_compared_by_priority_then_by_name() -> None:
    slots = ("disk", "mem", "cuda.shares", "cpu", "cudart", "cuda.device", "tpu", "cuda")
    ordered = [slots[column] for column in slot_order(slots, ("cuda", "tpu", "cpu", "mem"))]
    assert ordered == ["cuda", "cuda.device", "cuda.shares", "tpu", "cpu", "mem", "cudart", "disk"]
