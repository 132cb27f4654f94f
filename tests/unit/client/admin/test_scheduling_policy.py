"""A scheduling policy from the options of a command, and in words."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from retinue.client.admin.scheduling_policy import agent_strategy, session_strategy, strategy_name
from retinue.client.command.admin.scheduling_policy import apply, options_text, policy_options
from retinue.client.errors import UsageError
from retinue.manager.v1 import scheduling_policy_pb2 as pb


def changed(policy: pb.SchedulingPolicy, *arguments: str) -> set[str]:
    """Applies options as they are typed."""
    found: list[dict[str, Any]] = []

    @click.command()
    @policy_options
    def command(**given: Any) -> None:
        found.append(given)

    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return apply(policy, found[0])


def test_options_become_fields() -> None:
    policy = pb.SchedulingPolicy()
    assert changed(
        policy,
        *("--sessions", "fair-share", "--half-life", "3d", "--usage-weight", "cpu=2", "--usage-weight", "mem=1"),
        *("--agents", "dispersed", "--slot-priority", "cuda,cpu", "--max-kernels-per-agent", "4"),
        *("--preemption", "terminate", "--preemption-order", "smallest-resources", "--reserve-after", "90s"),
        *("--pending-timeout", "1h"),
    ) == {"session_strategy", "agent_strategy", "preemption", "reservation", "pending_timeout", "max_kernels_per_agent"}
    assert policy.session_strategy.fair_share.half_life.seconds == 3 * 86_400
    assert policy.preemption.mode == pb.PREEMPTION_MODE_TERMINATE
    assert options_text(policy) == (
        "half-life=3d usage-weight=cpu=2 usage-weight=mem=1 slot-priority=cuda,cpu max-kernels-per-agent=4 "
        "reserve-after=1m30s preemption=terminate preemption-order=smallest-resources pending-timeout=1h0m"
    )


def test_another_strategy_drops_the_options_of_the_old_one() -> None:
    policy = pb.SchedulingPolicy()
    arguments = ("--sessions", "external", "--external-address", "127.0.0.1:1", "--external-tls", "false")
    assert changed(policy, *arguments) == {"session_strategy", "external_server"}
    assert options_text(policy) == "external-address=127.0.0.1:1 external-tls=false"
    assert changed(policy, "--sessions", "fifo", "--max-tries-before-skip", "3") == {
        "session_strategy",
        "external_server",
    }
    assert not policy.HasField("external_server")
    assert changed(policy, "--sessions", "fifo") == {"session_strategy"}
    assert policy.session_strategy.fifo.max_tries_before_skip == 3


def test_an_option_of_another_strategy_is_refused() -> None:
    with pytest.raises(UsageError, match="--half-life is not an option of the strategy drf"):
        changed(pb.SchedulingPolicy(), "--half-life", "3d")


def test_nothing_given_changes_nothing() -> None:
    policy = pb.SchedulingPolicy()
    assert changed(policy) == set()
    assert policy == pb.SchedulingPolicy()


@pytest.mark.parametrize("name", ["fifo", "fair-share", "external", "smallest-first", "custom", "strategy"])
def test_names_of_session_strategies(name: str) -> None:
    assert strategy_name(session_strategy(name)) == name
    assert (session_strategy(name).WhichOneof("strategy") == "custom") is (
        name in {"smallest-first", "custom", "strategy"}
    )


def test_names_of_agent_strategies() -> None:
    assert agent_strategy("round-robin") == pb.AgentStrategy(round_robin=pb.RoundRobinStrategy())
    assert strategy_name(pb.AgentStrategy()) == ""
