"""Scheduling policies of resource groups by the names of their strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.v1 import scheduling_policy_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message


def session_strategy(name: str) -> pb.SessionStrategy:
    """Returns a session strategy without options: `fifo`, `fair-share`, `external`, or one that is installed."""
    strategy = pb.SessionStrategy()
    _choose(strategy, name)
    return strategy


def agent_strategy(name: str) -> pb.AgentStrategy:
    """Returns an agent strategy without options: `concentrated`, `round-robin`, `external`,
    or one that is installed.
    """
    strategy = pb.AgentStrategy()
    _choose(strategy, name)
    return strategy


def strategy_name(strategy: pb.SessionStrategy | pb.AgentStrategy) -> str:
    """Returns the name of a strategy; empty when none is set."""
    kind = strategy.WhichOneof("strategy")
    return strategy.custom.name if kind == "custom" else (kind or "").replace("_", "-")


def _choose(strategy: Message, name: str) -> None:
    kind = name.replace("-", "_")
    kinds = {field.name for field in strategy.DESCRIPTOR.oneofs_by_name["strategy"].fields}
    if kind in kinds - {"custom"}:
        getattr(strategy, kind).SetInParent()
    else:
        strategy.custom.name = name  # type: ignore[attr-defined]  # both have it
