"""`retinue extend` and `idle-overrides`, and how idle policies are written: `interaction=1h,warning=10m,cpu=5`."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command.sessions.session_views import check_facts
from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash
from retinue.client.command.show.output import Column, list_output_option, output_option, print_list, print_one
from retinue.manager.v1 import account_service_pb2, idle_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.duration_pb2 import Duration

    from retinue.client.words import IdleChecker

FORM = "NAME=VALUE,…"
HELP = (
    "interaction, lifetime and window are times after which sessions end; grace, warning and extension are times; cpu and mem are "
    "percentages of a session's slots, which count for the window; operator is all or any of these; checkers is all, if interaction "
    "and window end a session together, or any, if each does by itself."
)
_SPANS = {
    "grace": "grace_period",
    "warning": "warning",
    "extension": "max_extension",
    "interaction": "interaction_timeout",
    "lifetime": "max_lifetime",
}
_OPERATORS = {"all": idle_pb2.UTILIZATION_OPERATOR_ALL, "any": idle_pb2.UTILIZATION_OPERATOR_ANY}
_JOINS = {"all": idle_pb2.IDLE_JOIN_ALL, "any": idle_pb2.IDLE_JOIN_ANY}
_EXEMPT = {"interaction": "interaction", "lifetime": "lifetime", "window": "utilization"}
NONE = "none"


def policy(
    context: click.Context, parameter: click.Parameter, values: Iterable[str]
) -> tuple[idle_pb2.IdlePolicy, list[str]] | None:
    """A policy, and the checkers that are `none`; None when nothing is given, usage errors for what is wrong.
    `none` alone is no policy at all.
    """
    if not values:
        return None
    found, exempt = idle_pb2.IdlePolicy(), list[str]()
    if list(values) == [NONE]:
        return found, exempt
    for name, text in options.slots(context, parameter, values).items():
        if text == NONE and name in _EXEMPT:
            exempt.append(_EXEMPT[name])
        elif name in _SPANS:
            getattr(found, _SPANS[name]).CopyFrom(_duration(context, parameter, text))
        elif name == "window":
            found.utilization.window.CopyFrom(_duration(context, parameter, text))
        elif name == "operator":
            if text not in _OPERATORS:
                raise click.BadParameter(f"operator={text}: write all or any", param=parameter)
            found.utilization.operator = _OPERATORS[text]
        elif name == "checkers":
            if text not in _JOINS:
                raise click.BadParameter(f"checkers={text}: write all or any", param=parameter)
            found.join = _JOINS[text]
        else:
            try:
                found.utilization.thresholds[name] = float(text.removesuffix("%"))
            except ValueError:
                raise click.BadParameter(f"{name}={text}: write a percentage", param=parameter) from None
    return found, exempt


def _duration(context: click.Context, parameter: click.Parameter, text: str) -> Duration:
    seconds = options.span(context, parameter, text)
    message = idle_pb2.IdlePolicy()
    message.warning.FromNanoseconds(round((seconds or 0.0) * 1e9))
    return message.warning


def policy_text(message: idle_pb2.IdlePolicy, exempt: Iterable[int] = ()) -> str:
    """Returns a policy as it is written, safe; `-` for none."""
    parts = [
        f"{name}={_span(getattr(message, field))}"
        for name, field in _SPANS.items()
        if message.HasField(field)  # type: ignore[arg-type]  # one of the names above
    ]
    if message.HasField("utilization"):
        use = message.utilization
        if use.HasField("window"):
            parts.append(f"window={_span(use.window)}")
        parts += [f"{slot}={use.thresholds[slot]:g}" for slot in sorted(use.thresholds)]
        if use.operator == idle_pb2.UTILIZATION_OPERATOR_ANY:
            parts.append("operator=any")
    if message.join:
        parts.append(f"checkers={enum_names.name_of(enum_names.IDLE_JOIN, message.join).lower()}")
    names = {checker: name for name, checker in _EXEMPT.items()}
    for number in exempt:
        checker = enum_names.name_of(enum_names.IDLE_CHECKER, number).lower()
        parts.append(f"{names.get(checker, checker)}={NONE}")
    return or_dash(",".join(parts))


def _span(duration: Duration) -> str:
    """Returns a time that `options.span` reads back as the same."""
    seconds = duration.ToNanoseconds() / 1e9
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


@click.command("extend")
@click.argument("session", shell_complete=completed_names.sessions)
@click.argument("duration", required=False, callback=options.span)
@pass_connection
@asynchronous
async def extend_command(connection: Connection, session: str, duration: float | None) -> None:
    """Keep a session that the idle policy would end.

    The policy ends the session no earlier than DURATION from now, as 30m or 2h, within its limits. Without DURATION,
    the session counts as used now.
    """
    async with connection.client() as client:
        extended = await client.sessions.extend(session, None if duration is None else dt.timedelta(seconds=duration))
        view = extended.view
    for title, value in check_facts(view):
        click.echo(f"{title}: {value}")


@click.group("idle-overrides")
def idle_overrides_command() -> None:
    """List and set how the idle policies of resource groups differ for users."""


def _columns() -> Sequence[Column[idle_pb2.IdleOverride]]:
    return (
        Column("USER", lambda override: safe(override.user)),
        Column("IDLE", lambda override: policy_text(override.policy, override.exempt)),
    )


@idle_overrides_command.command("ls")
@list_output_option
@pass_connection
@asynchronous
async def list_overrides(connection: Connection, output: str) -> None:
    """List overrides by user."""
    async with connection.client() as client:
        overrides = [override async for override in client.idle_overrides.list()]
    message = account_service_pb2.ListIdleOverridesResponse(overrides=overrides)
    print_list(output, message, overrides, _columns(), lambda override: override.user)


@idle_overrides_command.command("set")
@output_option
@click.argument("user")
@click.argument("idle", nargs=-1, callback=policy, metavar=FORM)
@pass_connection
@asynchronous
async def set_override(
    connection: Connection, *, user: str, idle: tuple[idle_pb2.IdlePolicy, list[IdleChecker]] | None, output: str
) -> None:
    """Set the whole override of a user, as `interaction=8h,lifetime=none`.

    Values replace those of the groups; interaction, lifetime or window `none` never ends a session. Without values, the
    override is removed.
    """
    wanted, exempt = idle or (None, [])
    async with connection.client() as client:
        override = await client.idle_overrides.set(user, wanted, exempt=exempt)
    print_one(
        output, override, [(column.title.lower(), column.value(override)) for column in _columns()], override.user
    )


def exempt_refused(parameter: str, given: tuple[idle_pb2.IdlePolicy, Sequence[str]]) -> idle_pb2.IdlePolicy:
    """Returns the policy of a group, which has no checkers that are `none`: what is not given ends nothing.
    Usage errors for those.
    """
    wanted, exempt = given
    if exempt:
        raise click.UsageError(
            f"{parameter}: leave out a limit that is to end nothing; `none` is for overrides of users"
        )
    return wanted
