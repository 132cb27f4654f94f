"""Strategies by name, their options, and the check of a policy when it is configured.

Nothing falls back silently: a name or an option that is not known here is refused, and so is an option that the chosen
strategies do not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from retinue.manager.domain.scheduling.policy import Policy, PolicyError
from retinue.manager.scheduling.custom import (
    AGENT_ENTRY_POINTS,
    SESSION_ENTRY_POINTS,
    AgentStrategy,
    SessionStrategy,
    installed,
    load,
)
from retinue.rpc.core.amounts import AmountError, check_slot

FIFO, LIFO, DRF, FAIR_SHARE = "fifo", "lifo", "drf", "fair-share"
CONCENTRATED, DISPERSED, ROUND_ROBIN = "concentrated", "dispersed", "round-robin"
DEFAULT_SLOT_PRIORITY = ("cuda", "rocm", "tpu", "cpu", "mem")

# Head-of-line avoidance: a session tried so many times in vain goes to the end of its priority
# band and blocks no other. 0 is off.
MAX_TRIES_BEFORE_SKIP = "max-tries-before-skip"
# Comma-separated slots by which agents are compared, first one first; `cuda` also means every `cuda.…`.
SLOT_PRIORITY = "slot-priority"
# Most kernels on one agent. 0 is no limit.
MAX_KERNELS_PER_AGENT = "max-kernels-per-agent"
# Fair share: past usage counts half as much after each half-life, and not at all beyond the look-back time.
HALF_LIFE_DAYS, LOOK_BACK_DAYS = "half-life-days", "look-back-days"
# How much each slot counts in past usage, `cpu=2,mem=1`; slots not named count 0.
# Without the option all count the same, but for those that no dominant share counts.
USAGE_WEIGHTS = "usage-weights"

# A session that was tried so often in vain, or waits so long, gets a reservation,
# the first such one by priority and arrival. 0 is off.
RESERVE_AFTER_TRIES, RESERVE_AFTER_SECONDS = "reserve-after-tries", "reserve-after-seconds"
# How long a session may wait for a place, from when it could first have had one; then it is cancelled. 0 is for ever.
PENDING_TIMEOUT_SECONDS = "pending-timeout-seconds"
# What happens to preemptible sessions of lower priority that are in the way: nothing (`off`), `terminate` or `requeue`.
PREEMPTION = "preemption"
# Which of those with the lowest priority go first: the `newest`, the `oldest`, or those with the `smallest-resources`;
# or those of the agent where the `fewest-sessions` have to go.
PREEMPTION_ORDER = "preemption-order"
# How long room is kept for the winner beyond the grace of those that make way,
# and how long a session runs before it may be preempted.
PREEMPTION_HOLD_SECONDS, PREEMPTION_MIN_RUNTIME_SECONDS = "preemption-hold-seconds", "preemption-min-runtime-seconds"
OFF, TERMINATE, REQUEUE = "off", "terminate", "requeue"
NEWEST, OLDEST = "newest", "oldest"
FEWEST_SESSIONS, SMALLEST_RESOURCES = "fewest-sessions", "smallest-resources"
_PREEMPTION_ORDERS = (NEWEST, OLDEST, FEWEST_SESSIONS, SMALLEST_RESOURCES)

# Strategies of others (see `custom`): where an external one is, how long it may take, whether TLS is used (by default,
# but for addresses of this host), and what decides when it fails.
EXTERNAL = "external"
ADDRESS, DEADLINE_MS, TLS = "address", "deadline-ms", "tls"
SESSION_FALLBACK, AGENT_FALLBACK = "session-fallback", "agent-fallback"
DEFAULT_DEADLINE_MS, MAX_DEADLINE_MS = 1000, 30_000
_EXTERNAL_OPTIONS = frozenset({ADDRESS, DEADLINE_MS, TLS})

# What every group may say, whatever its strategies.
COMMON_OPTIONS = frozenset(
    {
        RESERVE_AFTER_TRIES,
        RESERVE_AFTER_SECONDS,
        PENDING_TIMEOUT_SECONDS,
        PREEMPTION,
        PREEMPTION_ORDER,
        PREEMPTION_HOLD_SECONDS,
        PREEMPTION_MIN_RUNTIME_SECONDS,
    }
)
SESSION_STRATEGIES: dict[str, frozenset[str]] = {
    FIFO: frozenset({MAX_TRIES_BEFORE_SKIP}),
    LIFO: frozenset(),
    DRF: frozenset(),
    FAIR_SHARE: frozenset({HALF_LIFE_DAYS, LOOK_BACK_DAYS, USAGE_WEIGHTS}),
    EXTERNAL: _EXTERNAL_OPTIONS | {SESSION_FALLBACK},
}
AGENT_STRATEGIES: dict[str, frozenset[str]] = {
    CONCENTRATED: frozenset({SLOT_PRIORITY, MAX_KERNELS_PER_AGENT}),
    DISPERSED: frozenset({SLOT_PRIORITY, MAX_KERNELS_PER_AGENT}),
    ROUND_ROBIN: frozenset({MAX_KERNELS_PER_AGENT}),
    EXTERNAL: _EXTERNAL_OPTIONS | {AGENT_FALLBACK, SLOT_PRIORITY, MAX_KERNELS_PER_AGENT},
}
_MAX_COUNT = 1_000_000
_MAX_DAYS = 365
_MAX_USAGE_WEIGHT = 1000
_MAX_PORT = 65535
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\]")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Settings:
    """A checked policy, its options read."""

    session_strategy: str
    agent_strategy: str
    max_tries_before_skip: int = 0
    slot_priority: tuple[str, ...] = DEFAULT_SLOT_PRIORITY
    max_kernels_per_agent: int = 0
    half_life_days: int = 7
    look_back_days: int = 28
    # None: every slot counts the same, but for those that no dominant share counts.
    usage_weights: Mapping[str, float] | None = None
    reserve_after_tries: int = 0
    reserve_after_seconds: int = 0
    # Kept by the bounds of states, not by passes.
    pending_timeout_seconds: int = 0
    preemption: str = OFF
    preemption_order: str = NEWEST
    preemption_hold_seconds: int = 60
    preemption_min_runtime_seconds: int = 0
    # Strategies of others, made with their options.
    custom_session: SessionStrategy | None = None
    custom_agent: AgentStrategy | None = None
    session_fallback: str = DRF
    agent_fallback: str = CONCENTRATED
    address: str = ""
    deadline_ms: int = DEFAULT_DEADLINE_MS
    tls: bool = True

    @property
    def reserves(self) -> bool:
        """Returns whether an aged session may get a reservation."""
        return bool(self.reserve_after_tries or self.reserve_after_seconds)

    @property
    def holds_back_others(self) -> bool:
        """Returns whether a session that finds no room holds back those that come after it, at once or in time."""
        return self.reserves or (self.session_strategy == FIFO and not self.max_tries_before_skip)


def validate_policy(policy: Policy) -> Settings:
    """Returns the policy with its options read. Raises PolicyError on unknown strategies,
    unknown or unread options, and bad values.
    """
    session_options, session_class = _known(
        "session strategy", policy.session_strategy, SESSION_STRATEGIES, SESSION_ENTRY_POINTS, {SESSION_FALLBACK}
    )
    agent_options, agent_class = _known(
        "agent strategy",
        policy.agent_strategy,
        AGENT_STRATEGIES,
        AGENT_ENTRY_POINTS,
        {AGENT_FALLBACK, SLOT_PRIORITY, MAX_KERNELS_PER_AGENT},
    )
    allowed = session_options | agent_options | COMMON_OPTIONS
    for option in sorted(policy.options):
        if option not in allowed:
            readable = ", ".join(sorted(allowed)) or "none"
            raise PolicyError(
                f"option {option[:64]!r} is not read by {policy.session_strategy} and {policy.agent_strategy}; options are: {readable}",
                option,
            )
    address = policy.options.get(ADDRESS, "")
    if EXTERNAL in (policy.session_strategy, policy.agent_strategy) and not is_address(address):
        raise PolicyError(f"option {ADDRESS}: an external strategy needs host:port or unix:/path", ADDRESS)
    return Settings(
        custom_session=_made(session_class, policy),
        custom_agent=_made(agent_class, policy),
        session_fallback=_read(policy, SESSION_FALLBACK, _one_of(DRF, FIFO, LIFO), DRF),
        agent_fallback=_read(policy, AGENT_FALLBACK, _one_of(CONCENTRATED, DISPERSED), CONCENTRATED),
        address=address,
        deadline_ms=_read(policy, DEADLINE_MS, _deadline, DEFAULT_DEADLINE_MS),
        tls=_read(policy, TLS, _one_of("on", OFF), OFF if _is_here(address) else "on") == "on",
        session_strategy=policy.session_strategy,
        agent_strategy=policy.agent_strategy,
        max_tries_before_skip=_read(policy, MAX_TRIES_BEFORE_SKIP, _count, 0),
        slot_priority=_read(policy, SLOT_PRIORITY, _slots, DEFAULT_SLOT_PRIORITY),
        max_kernels_per_agent=_read(policy, MAX_KERNELS_PER_AGENT, _count, 0),
        half_life_days=_read(policy, HALF_LIFE_DAYS, _days, 7),
        look_back_days=_read(policy, LOOK_BACK_DAYS, _days, 28),
        usage_weights=_read(policy, USAGE_WEIGHTS, _usage_weights, None),
        reserve_after_tries=_read(policy, RESERVE_AFTER_TRIES, _count, 0),
        reserve_after_seconds=_read(policy, RESERVE_AFTER_SECONDS, _count, 0),
        pending_timeout_seconds=_read(policy, PENDING_TIMEOUT_SECONDS, _count, 0),
        preemption=_read(policy, PREEMPTION, _one_of(OFF, TERMINATE, REQUEUE), OFF),
        preemption_order=_read(policy, PREEMPTION_ORDER, _one_of(*_PREEMPTION_ORDERS), NEWEST),
        preemption_hold_seconds=_read(policy, PREEMPTION_HOLD_SECONDS, _count, 60),
        preemption_min_runtime_seconds=_read(policy, PREEMPTION_MIN_RUNTIME_SECONDS, _count, 0),
    )


def slot_order(slots: Sequence[str], priority: Sequence[str]) -> list[int]:
    """Columns of `slots` in the order in which agents are compared: by `priority`, where an entry also means every slot
    that it is the first part of (`cuda` means `cuda.device`); the others by name.
    """

    def place(column: int) -> tuple[int, str]:
        slot = slots[column]
        ranks = (rank for rank, entry in enumerate(priority) if slot == entry or slot.startswith(entry + "."))
        return next(ranks, len(priority)), slot

    return sorted(range(len(slots)), key=place)


def session_strategies() -> frozenset[str]:
    """Returns the names of all session strategies that there are here."""
    return frozenset(SESSION_STRATEGIES) | frozenset(installed(SESSION_ENTRY_POINTS))


def agent_strategies() -> frozenset[str]:
    """Returns the names of all agent strategies that there are here."""
    return frozenset(AGENT_STRATEGIES) | frozenset(installed(AGENT_ENTRY_POINTS))


def _known(
    what: str, name: str, registry: Mapping[str, frozenset[str]], entry_points: str, common: Collection[str]
) -> tuple[frozenset[str], Any]:
    """Returns the options of a strategy and, when it is not one of ours, its class."""
    if name in registry:
        return registry[name], None
    if name not in installed(entry_points):
        known = sorted({*registry, *installed(entry_points)})
        raise PolicyError(f"unknown {what} {name[:64]!r}; known are: {', '.join(known)}")
    try:
        found = load(entry_points, name)
    except ValueError as error:
        raise PolicyError(str(error)) from error
    return frozenset(found.options) | frozenset(common), found


def own_options(entry_points: str, name: str) -> frozenset[str] | None:
    """Returns the options that an installed strategy reads; None when there is none of that name,
    or it cannot be loaded.
    """
    if name not in installed(entry_points):
        return None
    try:
        return frozenset(load(entry_points, name).options)
    except ValueError:
        return None


def _made(strategy: Any, policy: Policy) -> Any:
    if strategy is None:
        return None
    own = {name: value for name, value in policy.options.items() if name in strategy.options}
    try:
        return strategy(own)
    except Exception as error:
        raise PolicyError(f"options of {strategy.__name__}: {error}") from error


def is_address(text: str) -> bool:
    """Returns whether a text is `host:port` or `unix:/path`."""
    if text.startswith("unix:/"):
        return True
    host, _, port = text.rpartition(":")
    return bool(_HOST.fullmatch(host)) and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _MAX_PORT


def _is_here(address: str) -> bool:
    return address.startswith("unix:") or address.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]")


def _deadline(text: str) -> int:
    if not (
        text.isascii()
        and text.isdigit()
        and len(text) <= len(str(MAX_DEADLINE_MS))
        and 1 <= int(text) <= MAX_DEADLINE_MS
    ):
        raise ValueError(f"must be a whole number of milliseconds from 1 to {MAX_DEADLINE_MS}")
    return int(text)


def _read(policy: Policy, option: str, read: Callable[[str], Value], default: Value) -> Value:
    if option not in policy.options:
        return default
    try:
        return read(policy.options[option])
    except ValueError as error:
        raise PolicyError(f"option {option}: {error}", option) from error


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text

    return read


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_COUNT)) and int(text) <= _MAX_COUNT):
        raise ValueError(f"must be a whole number from 0 to {_MAX_COUNT}")
    return int(text)


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_DAYS)) and 1 <= int(text) <= _MAX_DAYS):
        raise ValueError(f"must be a whole number of days from 1 to {_MAX_DAYS}")
    return int(text)


def _usage_weights(text: str) -> Mapping[str, float]:
    pairs = [tuple(part.strip() for part in entry.partition("=")[::2]) for entry in text.split(",")]
    slots = _slots(",".join(slot for slot, _ in pairs))
    weights = {}
    for slot, (_, weight) in zip(slots, pairs, strict=True):
        if not (weight.isascii() and weight.isdigit() and len(weight) <= len(str(_MAX_USAGE_WEIGHT))):
            raise ValueError(f"the weight of {slot} must be a whole number from 0 to {_MAX_USAGE_WEIGHT}")
        if int(weight) > _MAX_USAGE_WEIGHT:
            raise ValueError(f"the weight of {slot} must be a whole number from 0 to {_MAX_USAGE_WEIGHT}")
        weights[slot] = float(weight)
    return weights


def _slots(text: str) -> tuple[str, ...]:
    slots = tuple(slot.strip() for slot in text.split(","))
    if len(set(slots)) != len(slots):
        raise ValueError("names a slot twice")
    for slot in slots:
        try:
            check_slot(slot)
        except AmountError as error:
            raise ValueError(f"{slot[:64]!r}: {error}") from error
    return slots
