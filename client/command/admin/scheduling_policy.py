"""The options of `retinue groups` that say how a group schedules, and policies in words."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import click

from retinue.client import enum_names
from retinue.client.admin.scheduling_policy import agent_strategy, session_strategy, strategy_name
from retinue.client.command.shell import options
from retinue.client.command.shell.text import or_dash, span
from retinue.client.errors import UsageError
from retinue.manager.v1 import scheduling_policy_pb2 as pb
from retinue.rpc.fields import is_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

_NAMES = {
    "sessions": "Order of sessions: fifo, lifo, drf, fair-share, external, or an installed one.",
    "agents": "Choice of agents: concentrated, dispersed, round-robin, external, or an installed one.",
}
_DEFAULTS = {"session_strategy": "drf", "agent_strategy": "concentrated"}
# Option, section of the policy, field of it (of the chosen strategy, where it has one), help.
_FIELDS = (
    (
        "max-tries-before-skip",
        "session_strategy",
        "max_tries_before_skip",
        "fifo: failed placements before others go ahead.",
    ),
    ("half-life", "session_strategy", "half_life", "fair-share: time until usage counts half."),
    ("look-back", "session_strategy", "look_back", "fair-share: age at which usage stops counting."),
    ("usage-weight", "session_strategy", "usage_weights", "fair-share: weights of slots; replaces all."),
    ("session-option", "session_strategy", "options", "Option of an installed strategy; replaces all."),
    ("session-fallback", "session_strategy", "fallback", "Fallback when the strategy fails: drf, fifo or lifo."),
    ("slot-priority", "agent_strategy", "slot_priority", "Slots by which agents are compared, as cuda,cpu."),
    ("max-kernels-per-agent", "", "max_kernels_per_agent", "Most kernels on one agent; 0: no limit."),
    ("agent-option", "agent_strategy", "options", "Option of an installed strategy; replaces all."),
    ("agent-fallback", "agent_strategy", "fallback", "Fallback when the strategy fails: concentrated or dispersed."),
    ("external-address", "external_server", "address", "Server of external strategies: host:port or unix:/path."),
    ("external-deadline", "external_server", "deadline", "Longest time to wait for an answer."),
    ("external-tls", "external_server", "tls", "Whether TLS is used: true or false."),
    ("reserve-after-tries", "reservation", "after_tries", "Failed placements before a session gets a reservation."),
    ("reserve-after", "reservation", "after", "Time before a session gets a reservation."),
    ("preemption", "preemption", "mode", "Preempt sessions: off, terminate or requeue."),
    (
        "preemption-order",
        "preemption",
        "order",
        "Sessions to preempt first: newest, oldest, fewest-sessions or smallest-resources.",
    ),
    ("preemption-hold", "preemption", "hold", "Time for which capacity is kept for the winner."),
    ("preemption-min-runtime", "preemption", "min_runtime", "Shortest run before a session may be preempted."),
    ("pending-timeout", "", "pending_timeout", "Longest time that a session may be pending; 0: for ever."),
)


def policy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command."""
    for name, section, field, text in reversed(_FIELDS):
        command = _option(name, _descriptor(section, field), text)(command)
    for name, text in reversed(_NAMES.items()):
        command = click.option(f"--{name}", metavar="NAME", help=text)(command)
    return command


def given_in(given: dict[str, Any]) -> bool:
    """Returns whether any of the options is given."""
    return any(given[_parameter(name)] not in (None, (), {}) for name in (*_NAMES, *(row[0] for row in _FIELDS)))


def apply(policy: pb.SchedulingPolicy, given: dict[str, Any]) -> set[str]:
    """Changes a policy by what is given, and returns the fields that are affected. Raises UsageError."""
    affected = set()
    if given["sessions"] is not None:
        affected.add("session_strategy")
        if strategy_name(policy.session_strategy) != given["sessions"]:
            policy.session_strategy.CopyFrom(session_strategy(given["sessions"]))
    if given["agents"] is not None:
        affected.add("agent_strategy")
        if strategy_name(policy.agent_strategy) != given["agents"]:
            policy.agent_strategy.CopyFrom(agent_strategy(given["agents"]))
    for name, section, field, _ in _FIELDS:
        value = given[_parameter(name)]
        if value not in (None, (), {}):
            affected.add(section or field)
            _set(_holder(policy, name, section, field), field, name, value)
    unused = "external" not in {strategy_name(policy.session_strategy), strategy_name(policy.agent_strategy)}
    if unused and affected and "external_server" not in affected and policy.HasField("external_server"):
        policy.ClearField("external_server")
        affected.add("external_server")
    return affected


def options_text(policy: pb.SchedulingPolicy) -> str:
    """Returns what is set beside the names of the strategies: `half-life=3d preemption=terminate`."""
    found = []
    for name, section, field, _ in _FIELDS:
        holder: Message | None = getattr(policy, section) if section else policy
        if holder is not None and field not in holder.DESCRIPTOR.fields_by_name:
            kind = holder.WhichOneof("strategy")
            holder = getattr(holder, kind) if kind else None
        found += [f"{name}={text}" for text in _texts(holder, field)] if holder is not None else []
    return or_dash(" ".join(found))


def _texts(holder: Message, name: str) -> Iterator[str]:
    """Returns the words of a field, several for a map; none where it is not set."""
    field: Any = holder.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        return
    value = getattr(holder, name)
    if is_map(field):
        yield from (f"{key}={value[key]}" for key in sorted(value))
    elif field.is_repeated:
        yield from [",".join(value)] if value else []
    elif field.has_presence and not holder.HasField(name):
        return
    elif field.message_type is not None:
        seconds = value.ToTimedelta().total_seconds()
        yield span(seconds) if seconds >= 1 else f"{seconds * 1000:g}ms"
    elif field.enum_type is not None:
        yield from [enum_names.name_of(field.enum_type, value).lower().replace("_", "-")] if value else []
    elif field.type == field.TYPE_BOOL:
        yield "true" if value else "false"
    elif value:
        yield str(value)


def _parameter(name: str) -> str:
    return name.replace("-", "_")


def _descriptor(section: str, field: str) -> FieldDescriptor:
    """Returns a field of a section of the policy, or of any of its strategies."""
    fields = pb.SchedulingPolicy.DESCRIPTOR.fields_by_name
    message = fields[section].message_type if section else pb.SchedulingPolicy.DESCRIPTOR
    assert message is not None  # noqa: S101  # a row of the table
    holders = (message, *(inner.message_type for inner in message.fields if inner.message_type is not None))
    return next(holder.fields_by_name[field] for holder in holders if field in holder.fields_by_name)


def _option(name: str, field: FieldDescriptor, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    if is_map(field):
        return click.option(f"--{name}", multiple=True, callback=options.pairs, metavar="NAME=VALUE", help=text)
    if field.is_repeated:
        return click.option(f"--{name}", metavar="NAME,…", help=text)
    if field.message_type is not None:
        return click.option(f"--{name}", callback=options.span, metavar="TIME", help=text)
    if field.type == field.TYPE_BOOL:
        return click.option(f"--{name}", type=bool, default=None, help=text)
    if field.type == field.TYPE_INT32:
        return click.option(f"--{name}", type=click.IntRange(0, 1_000_000), help=text)
    return click.option(f"--{name}", metavar="WORD" if field.enum_type is not None else "ADDRESS", help=text)


def _holder(policy: pb.SchedulingPolicy, name: str, section: str, field: str) -> Any:
    """Returns the message that has the field. Raises UsageError when the chosen strategy does not."""
    holder: Any = getattr(policy, section) if section else policy
    if field in holder.DESCRIPTOR.fields_by_name:
        return holder
    kind = holder.WhichOneof("strategy")
    if kind is None:
        kind = _DEFAULTS[section]
        getattr(holder, kind).SetInParent()
    chosen = getattr(holder, kind)
    if field not in chosen.DESCRIPTOR.fields_by_name:
        raise UsageError(f"--{name} is not an option of the strategy {strategy_name(holder)}")
    return chosen


def _set(holder: Any, name: str, option: str, value: Any) -> None:
    field = holder.DESCRIPTOR.fields_by_name[name]
    if is_map(field):
        holder.ClearField(name)
        try:
            getattr(holder, name).update(
                value if name == "options" else {key: int(text) for key, text in value.items()}
            )
        except ValueError as error:
            raise UsageError(f"--{option}: a weight is a whole number: {error}") from error
    elif field.is_repeated:
        holder.ClearField(name)
        getattr(holder, name).extend(part.strip() for part in value.split(",") if part.strip())
    elif field.message_type is not None:
        getattr(holder, name).FromTimedelta(dt.timedelta(seconds=value))
    elif field.enum_type is not None:
        setattr(holder, name, enum_names.number(field.enum_type, value))
    else:
        setattr(holder, name, value)
