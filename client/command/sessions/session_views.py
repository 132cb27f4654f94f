"""Sessions as tables and lists of facts: the columns of lists, and what `retinue get` shows."""

from __future__ import annotations

import datetime as dt
import shlex
import time
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import amounts, or_dash, short_id, since, size, span
from retinue.client.command.show.output import (
    Column,
    print_one,
    table,
)
from retinue.client.command.show.session_texts import kernel_counts, outcome, pull_text, reason_text
from retinue.client.command.slurm_scripts.job_start import SCRIPT_VARIABLE
from retinue.manager.v1 import session_pb2
from retinue.rpc.core.amounts import BYTE_SLOTS, MEMORY, AmountError, format_amount, parse_amount

if TYPE_CHECKING:
    from collections.abc import Sequence


_NANOSECONDS, _THOUSANDTHS = 1_000_000_000, 1_000


def session_columns(now: float) -> Sequence[Column[session_pb2.Session]]:
    """Returns the columns of lists of sessions, at `now` in seconds since 1970."""
    return (
        Column("ID", lambda session: short_id(session.id)),
        Column("NUMBER", lambda session: _number(session) or "-", drop=2),
        Column("NAME", lambda session: safe(session.spec.name)),
        Column("TYPE", lambda session: enum_names.name_of(enum_names.SESSION_TYPE, session.spec.type).lower(), drop=2),
        Column("STATE", enum_names.state_of),
        Column("RESULT", _result, drop=1),
        Column("KERNELS", _ready, drop=1),
        Column("AGENTS", _agents, drop=3),
        Column("OWNER", lambda session: or_dash(session.owner), drop=4),
        Column("PROJECT", lambda session: or_dash(session.spec.project), wide=True),
        Column("GROUP", lambda session: or_dash(session.spec.resource_group), wide=True),
        Column(
            "MODE",
            lambda session: (
                enum_names.name_of(enum_names.CLUSTER_MODE, session.spec.cluster_mode).lower().replace("_", "-")
            ),
            wide=True,
        ),
        Column("ISOLATION", _isolations, wide=True),
        Column("NETWORK", _network, wide=True),
        Column("PRIORITY", lambda session: str(session.spec.priority), wide=True),
        Column("AGE", lambda session: since(session, "create_time", now)),
        Column("REASON", lambda session: or_dash(session.reason)),
        Column("MESSAGE", lambda session: or_dash(session.message), wide=True),
    )


def _number(session: session_pb2.Session) -> str:
    # A manager of an earlier version gives none.
    return str(session.number) if session.number else ""


def _result(session: session_pb2.Session) -> str:
    if session.HasField("exit_code") and session.result <= session_pb2.SESSION_RESULT_UNDEFINED:
        # Nothing has judged it: it was stopped, or its type has no result.
        return f"ENDED ({session.exit_code})"
    if session.HasField("exit_code"):
        return f"{enum_names.name_of(enum_names.SESSION_RESULT, session.result)} ({session.exit_code})"
    return (
        "-"
        if session.result <= session_pb2.SESSION_RESULT_UNDEFINED
        else enum_names.name_of(enum_names.SESSION_RESULT, session.result)
    )


def _ready(session: session_pb2.Session) -> str:
    running = sum(kernel.state == session_pb2.KERNEL_STATE_RUNNING for kernel in session.kernels)
    return f"{running}/{len(session.kernels)}"


def _agents(session: session_pb2.Session) -> str:
    return or_dash(",".join(sorted({kernel.agent for kernel in session.kernels if kernel.agent})))


def _isolations(session: session_pb2.Session) -> str:
    """Returns the isolations of its kernels, each once."""
    return or_dash(",".join(dict.fromkeys(map(_isolation, session.kernels))))


def _isolation(kernel: session_pb2.Kernel) -> str:
    return enum_names.name_of(enum_names.ISOLATION, kernel.isolation).lower() if kernel.isolation else "-"


def _network(session: session_pb2.Session) -> str:
    kind = enum_names.name_of(enum_names.NETWORK_KIND, session.network)
    return "-" if kind == "UNSPECIFIED" else kind.lower()


def print_session(output: str, view: session_pb2.Session) -> None:
    """Prints a session; for people also its kernels."""
    print_one(output, view, session_facts(view), view.id)
    if output in ("table", "wide"):
        titles = ["KERNEL", "STATE", "ISOLATION", "AGENT", "ADDRESS", "SLOTS", "EXIT", "REASON"]
        measured = any(kernel.HasField("usage") for kernel in view.kernels)
        if measured:
            titles += ["CPU TIME", "PEAK MEMORY"]
        rows = [
            [
                safe(kernel.hostname),
                " ".join(filter(None, (enum_names.name_of(enum_names.KERNEL_STATE, kernel.state), pull_text(kernel)))),
                _isolation(kernel),
                or_dash(kernel.agent),
                or_dash(kernel.address),
                amounts(kernel.slots),
                str(kernel.exit_code) if kernel.HasField("exit_code") else "-",
                or_dash(kernel.reason),
                *((cpu_used(view, kernel), memory_used(kernel)) if measured else ()),
            ]
            for kernel in view.kernels
        ]
        click.echo()
        for line in table(titles, rows, colour=False):
            click.echo(line)


def cpu_used(session: session_pb2.Session, kernel: session_pb2.Kernel) -> str:
    """Returns the processor time of a kernel, and which part it is of its processors over its life: `1m40s (83%)`."""
    if not kernel.usage.HasField("cpu_time"):
        return "-"
    used = kernel.usage.cpu_time.ToNanoseconds() / _NANOSECONDS
    shown = f"{used:.1f}s" if used < 10 else span(used)  # noqa: PLR2004  # a second is much of it
    start, end = enum_names.time_of(session, "start_time"), enum_names.time_of(kernel, "end_time")
    life = 0.0 if start is None or end is None else end - start
    return shown + _part(used, _asked(kernel, "cpu") / _THOUSANDTHS * life)


def memory_used(kernel: session_pb2.Kernel) -> str:
    """Returns the most memory that a kernel had in use, and which part of its own that is: `1.2g (60%)`."""
    if not kernel.usage.HasField("memory_peak_bytes"):
        return "-"
    peak = kernel.usage.memory_peak_bytes
    return size(float(peak)) + _part(peak, _asked(kernel, MEMORY))


def _asked(kernel: session_pb2.Kernel, slot: str) -> int:
    try:
        return parse_amount(slot, kernel.slots[slot]) if slot in kernel.slots else 0
    except AmountError:
        # Of a manager whose amounts this version does not know.
        return 0


def _part(used: float, asked: float) -> str:
    return f" ({100 * used / asked:.0f}%)" if asked > 0 else ""


def _template(spec: session_pb2.SessionSpec) -> str:
    return safe(f"{spec.template.name}@{spec.template.version}") if spec.HasField("template") else ""


def session_facts(session: session_pb2.Session) -> list[tuple[str, str]]:
    """Titles and values, safe, of one session."""
    now = time.time()
    created = enum_names.time_of(session, "create_time")
    started, ended = enum_names.time_of(session, "start_time"), enum_names.time_of(session, "end_time")
    return [
        ("id", safe(session.id)),
        ("number", _number(session)),
        ("name", safe(session.spec.name)),
        ("description", safe(session.spec.description)),
        ("type", enum_names.name_of(enum_names.SESSION_TYPE, session.spec.type).lower()),
        ("state", outcome(session) if enum_names.is_ended(session) else enum_names.state_of(session)),
        ("reason", "" if enum_names.is_ended(session) else reason_text(session)),
        ("owner", safe(session.owner)),
        ("project", safe(session.spec.project)),
        ("group", safe(session.spec.resource_group)),
        ("priority", str(session.spec.priority)),
        ("hold", "until it is released" if session.spec.hold else ""),
        ("cluster", _cluster(session.spec)),
        ("kernels", kernel_counts(session)),
        ("network", "" if _network(session) == "-" else _network(session)),
        ("image", safe(_image(session))),
        ("command", safe(_command(session.spec.kernel.command))),
        ("directory", safe(session.spec.kernel.working_directory)),
        ("ports", _ports(session)),
        ("apps", ", ".join(safe(app.name) for app in session.spec.apps)),
        ("template", _template(session.spec)),
        ("after", ", ".join(safe(parent.name or short_id(parent.session_id)) for parent in session.dependencies)),
        ("retries", str(session.retries) if session.retries else ""),
        ("labels", safe(" ".join(f"{key}={value}" for key, value in sorted(session.spec.labels.items())))),
        ("age", since(session, "create_time", now) if session.HasField("create_time") else ""),
        ("waited", "" if started is None or created is None else span(started - created)),
        ("ran", "" if started is None else span((ended or now) - started)),
        ("slot hours", "" if started is None else slot_hours(session, (ended or now) - started)),
        *((safe(condition.type), safe(condition.message)) for condition in session.conditions),
        *check_facts(session),
    ]


def slot_hours(session: session_pb2.Session, seconds: float) -> str:
    """Returns what its kernels hold together, times the hours that it has run: what accounts are charged by."""
    held: dict[str, int] = {}
    for kernel in session.kernels:
        for slot, amount in kernel.slots.items():
            try:
                held[slot] = held.get(slot, 0) + parse_amount(slot, amount)
            except AmountError:
                # As a later version of the server writes it.
                return ""
    hours = {slot: round(amount * max(0.0, seconds) / 3600) for slot, amount in held.items()}
    return safe(
        " ".join(
            f"{slot}={size(amount, exact=1) if slot in BYTE_SLOTS else format_amount(slot, amount)}"
            for slot, amount in sorted(hours.items())
        )
    )


def _image(session: session_pb2.Session) -> str:
    """Returns the image, and what it was found to be: `busybox:1 (sha256:…)`, all where roles have others."""
    digests = dict.fromkeys(kernel.image_digest for kernel in session.kernels if kernel.image_digest)
    images = [session.spec.kernel.image, *(role.kernel.image for role in session.spec.roles)]
    names = ", ".join(dict.fromkeys(filter(None, images)))
    return f"{names} ({', '.join(digests)})" if digests else names


def _command(words: Sequence[str]) -> str:
    """Returns a command as a shell takes it; of a submitted script its name, in place of what starts it."""
    start = 3
    if tuple(words[:2]) == ("/bin/sh", "-c") and len(words) > start and SCRIPT_VARIABLE in words[2]:
        words = words[start:]
    return shlex.join(words)


def _cluster(spec: session_pb2.SessionSpec) -> str:
    if spec.cluster_size == 1:
        return "1 kernel"
    return f"{spec.cluster_size} kernels, {enum_names.name_of(enum_names.CLUSTER_MODE, spec.cluster_mode).lower().replace('_', '-')}"


def _ports(session: session_pb2.Session) -> str:
    """Returns the ports that clients reach; for a started kernel also those that its image declares."""
    main = session.kernels[0].service_ports if session.kernels else ()
    named = {
        port.name: f"{safe(port.name)} {safe(port.protocol) or 'tcp'} {','.join(map(str, port.ports))}"
        + (f" host={safe(port.host)}" if port.host else "")
        for port in (*main, *session.spec.service_ports)
    }
    ranges = [
        str(ports.first) if ports.first == ports.last else f"{ports.first}-{ports.last}"
        for ports in session.spec.preopen_ports
    ]
    return "; ".join([*named.values(), *ranges])


def check_facts(session: session_pb2.Session) -> list[tuple[str, str]]:
    """Titles and values, safe, of what the idle policy makes of a session."""
    facts = []
    for check in session.idle_checks:
        status = enum_names.name_of(enum_names.IDLE_STATUS, check.status)
        left = f"{span(check.remaining.ToNanoseconds() / 1e9)} left" if check.HasField("remaining") else "-"
        note = {"GRACE": ", in its grace period", "NO_DATA": ", stands still: not known now", "WARNED": ", warned"}
        title = f"idle {enum_names.name_of(enum_names.IDLE_CHECKER, check.checker).lower()}"
        facts.append((title, f"{left}{note.get(status, '')}: {safe(check.measured)}"))
    if session.HasField("extension_end_time"):
        until = dt.datetime.fromtimestamp(session.extension_end_time.seconds, dt.UTC)
        facts.append(("extended until", f"{until:%Y-%m-%d %H:%M:%S} UTC"))
    return facts
