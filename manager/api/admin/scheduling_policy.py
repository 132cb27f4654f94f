"""Scheduling policies of resource groups, between messages and what is stored:
names of strategies and options by name.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from google.protobuf.field_mask_pb2 import FieldMask

from retinue.manager.domain.scheduling.policy import Policy, PolicyError
from retinue.manager.scheduling import strategies as known
from retinue.manager.scheduling.custom import AGENT_ENTRY_POINTS, SESSION_ENTRY_POINTS
from retinue.manager.server.fields import Violations
from retinue.manager.v1 import scheduling_policy_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor
    from google.protobuf.duration_pb2 import Duration

DEFAULT_SESSION_STRATEGY, DEFAULT_AGENT_STRATEGY = known.DRF, known.CONCENTRATED
FIELDS = tuple(field.name for field in pb.SchedulingPolicy.DESCRIPTOR.fields)
MAX_OPTIONS = 32
_PATH = "resource_group.scheduling_policy"
_MAX_COUNT = 1_000_000
_SECOND, _MILLISECOND, _DAY = dt.timedelta(seconds=1), dt.timedelta(milliseconds=1), dt.timedelta(days=1)
_MAX_SPAN, _MAX_DAYS, _MAX_DEADLINE = _MAX_COUNT * _SECOND, 365 * _DAY, known.MAX_DEADLINE_MS * _MILLISECOND
_UNITS = MappingProxyType({_SECOND: "seconds", _MILLISECOND: "milliseconds", _DAY: "days"})
# Options that are fields of messages, with the field of the policy: no strategy of others has one of that name.
_FIELD_OF = MappingProxyType(
    {
        known.MAX_TRIES_BEFORE_SKIP: "session_strategy",
        known.HALF_LIFE_DAYS: "session_strategy",
        known.LOOK_BACK_DAYS: "session_strategy",
        known.USAGE_WEIGHTS: "session_strategy",
        known.SESSION_FALLBACK: "session_strategy",
        known.SLOT_PRIORITY: "agent_strategy",
        known.AGENT_FALLBACK: "agent_strategy",
        known.ADDRESS: "external_server",
        known.DEADLINE_MS: "external_server",
        known.TLS: "external_server",
        known.RESERVE_AFTER_TRIES: "reservation",
        known.RESERVE_AFTER_SECONDS: "reservation",
        known.PREEMPTION: "preemption",
        known.PREEMPTION_ORDER: "preemption",
        known.PREEMPTION_HOLD_SECONDS: "preemption",
        known.PREEMPTION_MIN_RUNTIME_SECONDS: "preemption",
        known.PENDING_TIMEOUT_SECONDS: "pending_timeout",
        known.MAX_KERNELS_PER_AGENT: "max_kernels_per_agent",
    }
)
_SESSION_KINDS = MappingProxyType(
    {
        known.FIFO: "fifo",
        known.LIFO: "lifo",
        known.DRF: "drf",
        known.FAIR_SHARE: "fair_share",
        known.EXTERNAL: "external",
    }
)
_AGENT_KINDS = MappingProxyType(
    {
        known.CONCENTRATED: "concentrated",
        known.DISPERSED: "dispersed",
        known.ROUND_ROBIN: "round_robin",
        known.EXTERNAL: "external",
    }
)


def to_policy(message: pb.SchedulingPolicy, violations: Violations) -> Policy:
    """Returns the policy with its defaults; what is wrong with it goes to `violations`."""
    options = _Options(violations)
    session, agent = _session(message.session_strategy, options), _agent(message.agent_strategy, options)
    if message.HasField("external_server"):
        if known.EXTERNAL not in (session, agent):
            violations.add(f"{_PATH}.external_server", "is for an external strategy, and none is chosen")
        else:
            _server(message.external_server, options)
    reservation, preemption = message.reservation, message.preemption
    options.count(known.RESERVE_AFTER_TRIES, "reservation.after_tries", reservation.after_tries)
    if reservation.HasField("after"):
        options.span(known.RESERVE_AFTER_SECONDS, "reservation.after", reservation.after)
    options.choice(known.PREEMPTION, "preemption.mode", preemption.mode, pb.PreemptionMode.DESCRIPTOR)
    options.choice(known.PREEMPTION_ORDER, "preemption.order", preemption.order, pb.PreemptionOrder.DESCRIPTOR)
    if preemption.HasField("hold"):
        options.span(known.PREEMPTION_HOLD_SECONDS, "preemption.hold", preemption.hold)
    if preemption.HasField("min_runtime"):
        options.span(known.PREEMPTION_MIN_RUNTIME_SECONDS, "preemption.min_runtime", preemption.min_runtime)
    options.count(known.MAX_KERNELS_PER_AGENT, "max_kernels_per_agent", message.max_kernels_per_agent)
    if message.HasField("pending_timeout"):
        options.span(known.PENDING_TIMEOUT_SECONDS, "pending_timeout", message.pending_timeout)
    policy = Policy(session, agent, options.values)
    violations.one_of(f"{_PATH}.session_strategy", session, known.session_strategies())
    violations.one_of(f"{_PATH}.agent_strategy", agent, known.agent_strategies())
    if options.sound and session in known.session_strategies() and agent in known.agent_strategies():
        try:
            known.validate_policy(policy)
        except PolicyError as error:
            violations.add(options.path_of(error.option), str(error))
    return policy


class _Options:
    """Options as they are stored, with the path of the field that each comes from. Defaults are not stored."""

    def __init__(self, violations: Violations) -> None:
        self._violations = violations
        self._paths = {known.ADDRESS: f"{_PATH}.external_server.address"}
        self.values: dict[str, str] = {}
        self.sound = True

    def path_of(self, option: str) -> str:
        """Returns the path of the field that an option comes from."""
        return self._paths.get(option, _PATH)

    def put(self, option: str, path: str, value: str) -> None:
        """Stores a value; both strategies may give an option, but only the same."""
        path = f"{_PATH}.{path}"
        self._paths.setdefault(option, path)
        if self.values.setdefault(option, value) != value:
            self.wrong(path, f"{option[:64]!r} has another value for the other strategy")

    def wrong(self, path: str, description: str) -> None:
        """Notes what is wrong with the field at a whole path."""
        self.sound = False
        self._violations.add(path, description)

    def count(self, option: str, path: str, value: int) -> None:
        """Stores a number; 0 is the default of all."""
        if not 0 <= value <= _MAX_COUNT:
            self.wrong(f"{_PATH}.{path}", f"must be from 0 to {_MAX_COUNT}")
        elif value:
            self.put(option, path, str(value))

    def span(  # noqa: PLR0917  # a row of a table
        self,
        option: str,
        path: str,
        value: Duration,
        unit: dt.timedelta = _SECOND,
        lowest: dt.timedelta = dt.timedelta(),
        highest: dt.timedelta = _MAX_SPAN,
    ) -> None:
        """Stores a duration as a number of units."""
        full, before = f"{_PATH}.{path}", self._violations.count
        parsed = self._violations.duration(full, value, lowest, highest)
        if self._violations.count != before:
            self.sound = False
        elif parsed % unit or value.nanos % 1000:
            self.wrong(full, f"must be whole {_UNITS[unit]}")
        else:
            self.put(option, path, str(parsed // unit))

    def choice(self, option: str, path: str, value: int, enum: EnumDescriptor) -> None:
        """Stores the word of an enum's value; the first one after the zero value is the default."""
        if value not in enum.values_by_number:
            self.wrong(f"{_PATH}.{path}", "is no value that is known here")
        elif value > 1:
            self.put(option, path, _word(enum, value))

    def own(self, path: str, values: Mapping[str, str]) -> None:
        """Stores the options of a strategy of others."""
        if len(values) > MAX_OPTIONS:
            self.wrong(f"{_PATH}.{path}", f"must be at most {MAX_OPTIONS} entries")
            return
        for option, value in values.items():
            if option in _FIELD_OF:
                self.wrong(f"{_PATH}.{path}", f"{option!r} is a field of the policy")
            else:
                self.put(option, path, value)


def _session(message: pb.SessionStrategy, options: _Options) -> str:
    kind = message.WhichOneof("strategy")
    path = f"session_strategy.{kind}"
    match kind:
        case "fifo":
            tries = message.fifo.max_tries_before_skip
            options.count(known.MAX_TRIES_BEFORE_SKIP, f"{path}.max_tries_before_skip", tries)
        case "fair_share":
            _fair_share(message.fair_share, path, options)
        case "external":
            fallback = message.external.fallback
            options.choice(known.SESSION_FALLBACK, f"{path}.fallback", fallback, pb.SessionFallback.DESCRIPTOR)
        case "custom":
            fallback = message.custom.fallback
            options.choice(known.SESSION_FALLBACK, f"{path}.fallback", fallback, pb.SessionFallback.DESCRIPTOR)
            options.own(f"{path}.options", message.custom.options)
            if message.custom.name in known.SESSION_STRATEGIES:
                options.wrong(f"{_PATH}.{path}.name", "is not the name of an installed strategy")
            return message.custom.name
        case None:
            return DEFAULT_SESSION_STRATEGY
    return kind.replace("_", "-")


def _fair_share(message: pb.FairShareStrategy, path: str, options: _Options) -> None:
    if message.HasField("half_life"):
        options.span(known.HALF_LIFE_DAYS, f"{path}.half_life", message.half_life, _DAY, _DAY, _MAX_DAYS)
    if message.HasField("look_back"):
        options.span(known.LOOK_BACK_DAYS, f"{path}.look_back", message.look_back, _DAY, _DAY, _MAX_DAYS)
    if message.usage_weights:
        weights = ",".join(f"{slot}={weight}" for slot, weight in sorted(message.usage_weights.items()))
        options.put(known.USAGE_WEIGHTS, f"{path}.usage_weights", weights)


def _agent(message: pb.AgentStrategy, options: _Options) -> str:
    kind = message.WhichOneof("strategy")
    if kind is None:
        return DEFAULT_AGENT_STRATEGY
    path = f"agent_strategy.{kind}"
    chosen = getattr(message, kind)
    if slots := getattr(chosen, "slot_priority", ()):
        options.put(known.SLOT_PRIORITY, f"{path}.slot_priority", ",".join(slots))
    if kind in {"external", "custom"}:
        options.choice(known.AGENT_FALLBACK, f"{path}.fallback", chosen.fallback, pb.AgentFallback.DESCRIPTOR)
    if kind == "custom":
        options.own(f"{path}.options", message.custom.options)
        if message.custom.name in known.AGENT_STRATEGIES:
            options.wrong(f"{_PATH}.{path}.name", "is not the name of an installed strategy")
        return message.custom.name
    return kind.replace("_", "-")


def _server(message: pb.ExternalServer, options: _Options) -> None:
    if message.address:
        options.put(known.ADDRESS, "external_server.address", message.address)
    if message.HasField("deadline"):
        path = "external_server.deadline"
        options.span(known.DEADLINE_MS, path, message.deadline, _MILLISECOND, _MILLISECOND, _MAX_DEADLINE)
    if message.HasField("tls"):
        options.put(known.TLS, "external_server.tls", "on" if message.tls else known.OFF)


def merge(current: pb.SchedulingPolicy, wanted: pb.SchedulingPolicy, fields: Collection[str]) -> pb.SchedulingPolicy:
    """Returns a policy with some fields of another one; a field that is empty there goes back to its default."""
    merged = pb.SchedulingPolicy()
    merged.CopyFrom(current)
    FieldMask(paths=fields).MergeMessage(wanted, merged, replace_message_field=True, replace_repeated_field=True)
    return merged


def unread_options(stored: Policy, changed: Policy, fields: Collection[str]) -> dict[str, Any]:
    """Returns the options that `to_message` leaves out of what is stored, as a newer version may have written them, and
    that stay when `changed` has other values in some fields.

    What is not known here at all may belong to a strategy, and goes with it.
    """
    found = stored.options if isinstance(stored.options, Mapping) else {}
    read = to_policy(to_message(stored), Violations()).options
    same = (stored.session_strategy, stored.agent_strategy) == (changed.session_strategy, changed.agent_strategy)
    return {
        option: value
        for option, value in found.items()
        if option not in read and (_FIELD_OF[option] not in fields if option in _FIELD_OF else same)
    }


def to_message(policy: Policy) -> pb.SchedulingPolicy:
    """Returns the message of what is stored. Total: what this version cannot read is left out."""
    found = policy.options if isinstance(policy.options, Mapping) else {}
    options = {name: value for name, value in found.items() if isinstance(value, str)}
    message = pb.SchedulingPolicy(
        session_strategy=_session_message(policy, options), agent_strategy=_agent_message(policy, options)
    )
    if address := options.get(known.ADDRESS):
        message.external_server.address = address
        _set_span(message.external_server.deadline, options, known.DEADLINE_MS, _MILLISECOND)
        if known.TLS in options:
            message.external_server.tls = options[known.TLS] == "on"
    reservation, preemption = message.reservation, message.preemption
    if tries := _number(options, known.RESERVE_AFTER_TRIES):
        reservation.after_tries = tries
    _set_span(reservation.after, options, known.RESERVE_AFTER_SECONDS)
    if mode := _value(options, known.PREEMPTION, pb.PreemptionMode.DESCRIPTOR):
        preemption.mode = pb.PreemptionMode.ValueType(mode)
    if order := _value(options, known.PREEMPTION_ORDER, pb.PreemptionOrder.DESCRIPTOR):
        preemption.order = pb.PreemptionOrder.ValueType(order)
    _set_span(preemption.hold, options, known.PREEMPTION_HOLD_SECONDS)
    _set_span(preemption.min_runtime, options, known.PREEMPTION_MIN_RUNTIME_SECONDS)
    _set_span(message.pending_timeout, options, known.PENDING_TIMEOUT_SECONDS)
    message.max_kernels_per_agent = _number(options, known.MAX_KERNELS_PER_AGENT) or 0
    return message


def _session_message(policy: Policy, options: Mapping[str, str]) -> pb.SessionStrategy:
    message = pb.SessionStrategy()
    fallback = pb.SessionFallback.ValueType(_value(options, known.SESSION_FALLBACK, pb.SessionFallback.DESCRIPTOR))
    kind = _SESSION_KINDS.get(policy.session_strategy, "custom")
    getattr(message, kind).SetInParent()
    match kind:
        case "fifo":
            message.fifo.max_tries_before_skip = _number(options, known.MAX_TRIES_BEFORE_SKIP) or 0
        case "fair_share":
            _set_span(message.fair_share.half_life, options, known.HALF_LIFE_DAYS, _DAY)
            _set_span(message.fair_share.look_back, options, known.LOOK_BACK_DAYS, _DAY)
            for entry in filter(None, options.get(known.USAGE_WEIGHTS, "").split(",")):
                slot, _, weight = (part.strip() for part in entry.partition("="))
                if slot and (value := _natural(weight)) is not None:
                    message.fair_share.usage_weights[slot] = value
        case "external":
            message.external.fallback = fallback
        case "custom":
            message.custom.name = policy.session_strategy
            message.custom.fallback = fallback
            message.custom.options.update(_own_of(options, SESSION_ENTRY_POINTS, policy.session_strategy))
    return message


def _agent_message(policy: Policy, options: Mapping[str, str]) -> pb.AgentStrategy:
    message = pb.AgentStrategy()
    kind = _AGENT_KINDS.get(policy.agent_strategy, "custom")
    chosen = getattr(message, kind)
    chosen.SetInParent()
    if kind != "round_robin":
        slots = options.get(known.SLOT_PRIORITY, "").split(",")
        chosen.slot_priority.extend(slot.strip() for slot in slots if slot.strip())
    if kind in {"external", "custom"}:
        chosen.fallback = _value(options, known.AGENT_FALLBACK, pb.AgentFallback.DESCRIPTOR)
    if kind == "custom":
        message.custom.name = policy.agent_strategy
        message.custom.options.update(_own_of(options, AGENT_ENTRY_POINTS, policy.agent_strategy))
    return message


def _own_of(options: Mapping[str, str], entry_points: str, name: str) -> dict[str, str]:
    """Returns the options that a strategy of others reads; all that are no fields, where it is not installed here."""
    read = known.own_options(entry_points, name)
    return {
        option: value
        for option, value in options.items()
        if option not in _FIELD_OF and (read is None or option in read)
    }


def _natural(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_COUNT)) else None


def _number(options: Mapping[str, str], option: str) -> int | None:
    return _natural(options.get(option, ""))


def _set_span(field: Duration, options: Mapping[str, str], option: str, unit: dt.timedelta = _SECOND) -> None:
    if (number := _number(options, option)) is not None:
        field.SetInParent()
        field.FromTimedelta(number * unit)


def _word(enum: EnumDescriptor, value: int) -> str:
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return enum.values_by_number[value].name.removeprefix(prefix).lower().replace("_", "-")


def _value(options: Mapping[str, str], option: str, enum: EnumDescriptor) -> int:
    """Returns the value of an option that is the word of one; 0 without it."""
    word = options.get(option, "")
    return next((value for value in enum.values_by_number if value and _word(enum, value) == word), 0)
