"""A session in words: its state, how it ended, its kernels, and what changed with an event. Pure."""

from __future__ import annotations

from rich.filesize import decimal

from retinue.client import enum_names
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash, span
from retinue.manager.v1 import session_pb2

SHOWN_KERNELS = 24
"""Beyond this, kernels are counted by state and not shown one by one."""

_QUEUED, _COMMAND_ENDED, _COMMAND_FAILED = "QUEUED", "COMMAND_ENDED", "COMMAND_FAILED"
_MINUTE = 60


def brief_changes(before: session_pb2.Session | None, after: session_pb2.Session, *, quiet: bool = False) -> list[str]:
    """Returns the lines, safe, on a session's start and end and on what is wrong; with `quiet` only the last. Pure."""
    state = after.state
    moved = before is None or before.state != state
    if state == session_pb2.SESSION_STATE_PENDING:
        # The first reason says only that it was asked for.
        waits = after.reason not in ("", _QUEUED) and (before is None or before.reason != after.reason)
        shown = not quiet and (waits or (moved and before is not None))
    elif enum_names.is_ended(after) or state == session_pb2.SESSION_STATE_TERMINATING:
        # The command of main1 says itself what is wrong, and its exit code is that of `retinue run`.
        by_itself = after.reason == _COMMAND_ENDED or (after.reason == _COMMAND_FAILED and after.HasField("exit_code"))
        unusual = not by_itself
        shown = moved and (unusual or (enum_names.is_ended(after) and not quiet))
    elif state == session_pb2.SESSION_STATE_RUNNING:
        shown = moved and not quiet
    else:
        # Placed, and its agents cannot create it yet.
        shown = bool(after.message) and (before is None or before.message != after.message) and not quiet
    return [*([_state_line(after)] if shown else []), *_condition_lines(before, after)]


def reason_text(session: session_pb2.Session) -> str:
    """Returns why the session is in its state, safe to print; empty when no reason is given."""
    return ": ".join(safe(part) for part in (session.reason, session.message) if part)


def elapsed(session: session_pb2.Session, now: float) -> float:
    """Returns the seconds since a session was requested, to its end if it has ended; `now` in seconds since 1970.
    Never negative.
    """
    end = enum_names.time_of(session, "end_time")
    return max(0.0, (now if end is None else end) - (enum_names.time_of(session, "create_time") or now))


def summary(session: session_pb2.Session, seconds: float) -> str:
    """Returns one line on a session, `seconds` after it was asked for."""
    agents = sorted({kernel.agent for kernel in session.kernels if kernel.agent})
    parts = [f"{safe(session.spec.name)}: {enum_names.state_of(session)}"]
    if enum_names.is_ended(session):
        parts = [f"{safe(session.spec.name)}: {outcome(session)}"]
    elif agents:
        parts.append(f"on {safe(', '.join(agents))}")
    parts.append(f"after {seconds:.1f} s" if seconds < _MINUTE else f"after {span(seconds)}")
    return " ".join(parts)


def outcome(session: session_pb2.Session) -> str:
    """Returns how a session ended, safe to print:
    `TERMINATED SUCCESS, exit code 0 (COMMAND_ENDED: main1 exited with 0)`.
    """
    text = enum_names.state_of(session)
    result = enum_names.name_of(enum_names.SESSION_RESULT, session.result)
    if result not in ("UNDEFINED", "UNSPECIFIED"):
        text += f" {result}"
    if session.HasField("exit_code"):
        text += f", exit code {session.exit_code}"
    reason = reason_text(session)
    return f"{text} ({reason})" if reason else text


def pull_text(kernel: session_pb2.Kernel) -> str:
    """Returns the progress of a kernel's image pull: `43 % of 2.8 GB`; empty when it is unknown."""
    pull = kernel.pull
    if not pull.total_bytes:
        return ""
    return f"{100 * pull.bytes // pull.total_bytes} % of {decimal(pull.total_bytes)}"


def kernel_counts(session: session_pb2.Session) -> str:
    """Returns the number of kernels in each state: `3 RUNNING, 1 CREATING`."""
    counts: dict[str, int] = {}
    for kernel in sorted(session.kernels, key=lambda kernel: -kernel.state):
        state = enum_names.name_of(enum_names.KERNEL_STATE, kernel.state)
        counts[state] = counts.get(state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def changes(before: session_pb2.Session | None, after: session_pb2.Session) -> list[str]:
    """Returns the lines, safe, on what is different after an event; pure. The session's own line comes first."""
    name = safe(after.spec.name)
    lines = []
    if before is None or (before.state, before.reason, before.message) != (after.state, after.reason, after.message):
        lines.append(_state_line(after))
    lines += _condition_lines(before, after)
    if before is None:
        return lines
    moved = [
        kernel
        for kernel, earlier in zip(after.kernels, before.kernels, strict=False)
        if (kernel.state, kernel.agent, kernel.pull) != (earlier.state, earlier.agent, earlier.pull)
        and not (kernel.state == earlier.state and not kernel.pull.total_bytes)
    ]
    if len(after.kernels) > SHOWN_KERNELS:
        return [*lines, f"{name}: {kernel_counts(after)}"] if moved else lines
    for kernel in moved:
        state = enum_names.name_of(enum_names.KERNEL_STATE, kernel.state)
        location = f" on {or_dash(kernel.agent)}" if kernel.agent else ""
        if fetched := pull_text(kernel):
            location += f", {fetched}"
        code = f", exit code {kernel.exit_code}" if kernel.HasField("exit_code") else ""
        lines.append(f"{name}: {safe(kernel.hostname)} {state}{location}{code}")
    return lines


def _state_line(session: session_pb2.Session) -> str:
    if enum_names.is_ended(session):
        return f"{safe(session.spec.name)}: {outcome(session)}"
    reason = reason_text(session)
    return f"{safe(session.spec.name)}: {enum_names.state_of(session)}" + (f" ({reason})" if reason else "")


def _condition_lines(before: session_pb2.Session | None, after: session_pb2.Session) -> list[str]:
    known = {condition.type for condition in before.conditions} if before is not None else set()
    return [
        f"{safe(after.spec.name)}: {safe(condition.type)}: {safe(condition.message)}"
        for condition in after.conditions
        if condition.type not in known
    ]
