"""Policies: what is refused when a group is configured."""

from __future__ import annotations

import pytest

from retinue.manager.domain.scheduling.policy import Policy, PolicyError
from retinue.manager.scheduling.strategies import Settings, slot_order, validate_policy


def test_reads_options() -> None:
    policy = Policy(
        "fifo", "dispersed", {"max-tries-before-skip": "5", "slot-priority": "mem, cpu", "max-kernels-per-agent": "8"}
    )
    assert validate_policy(policy) == Settings("fifo", "dispersed", 5, ("mem", "cpu"), 8)
    assert validate_policy(Policy()) == Settings("drf", "concentrated", 0, ("cuda", "rocm", "tpu", "cpu", "mem"), 0)


def test_reads_options_of_fair_share() -> None:
    options = {"half-life-days": "3", "look-back-days": "365", "usage-weights": "cpu=2, cuda.device = 10"}
    settings = validate_policy(Policy("fair-share", "concentrated", options))
    assert (settings.half_life_days, settings.look_back_days) == (3, 365)
    assert settings.usage_weights == {"cpu": 2.0, "cuda.device": 10.0}
    defaults = validate_policy(Policy("fair-share", "concentrated"))
    assert (defaults.half_life_days, defaults.look_back_days, defaults.usage_weights) == (7, 28, None)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            Policy("DRF", "concentrated"),
            "unknown session strategy 'DRF'; known are: drf, external, fair-share, fifo, lifo",
        ),
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
        (Policy("drf", "dispersed", {"half-life-days": "7"}), "is not read by drf and dispersed"),
        (Policy("fair-share", "dispersed", {"half-life-days": "0"}), "from 1 to 365"),
        (Policy("fair-share", "dispersed", {"half-life-days": "1.5"}), "from 1 to 365"),
        (Policy("fair-share", "dispersed", {"look-back-days": "366"}), "from 1 to 365"),
        (Policy("fair-share", "dispersed", {"usage-weights": "cpu"}), "the weight of cpu must be"),
        (Policy("fair-share", "dispersed", {"usage-weights": "cpu=1001"}), "from 0 to 1000"),
        (Policy("fair-share", "dispersed", {"usage-weights": "cpu=1,cpu=2"}), "names a slot twice"),
        (Policy("fair-share", "dispersed", {"usage-weights": ""}), "slot name"),
    ],
)
def test_refuses(policy: Policy, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        validate_policy(policy)


def test_slots_are_compared_by_priority_then_by_name() -> None:
    slots = ("disk", "mem", "cuda.shares", "cpu", "cudart", "cuda.device", "tpu", "cuda")
    ordered = [slots[column] for column in slot_order(slots, ("cuda", "tpu", "cpu", "mem"))]
    assert ordered == ["cuda", "cuda.device", "cuda.shares", "tpu", "cpu", "mem", "cudart", "disk"]
