"""Options and arguments that several commands have, and how their values are read."""

from __future__ import annotations

import datetime as dt
import re
import shlex
from typing import TYPE_CHECKING, Any

import click

from retinue.client import app_catalogue
from retinue.client.command.shell.docker_syntax import Mount, Port, is_port, parse_mount, parse_port
from retinue.client.errors import UsageError
from retinue.client.overriding import remove_field, set_field
from retinue.client.time_spans import EXAMPLES, MOMENT_EXAMPLES, parse_moment, parse_span
from retinue.manager.v1 import fleet_service_pb2, session_pb2
from retinue.rpc.core.amounts import MEMORY, AmountError, parse_amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


STARTED = "started"
"""Before a signal that is for what a command has started."""


def span(_context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Returns the seconds of a length of time; usage errors for anything else."""
    if value is None:
        return None
    if (seconds := parse_span(value)) is None:
        raise click.BadParameter(f"{value!r} is not a time: write {EXAMPLES}", param=parameter)
    return seconds


def time_warning(
    _context: click.Context, parameter: click.Parameter, value: str | None
) -> session_pb2.TimeWarning | None:
    """Returns the signal and the time written `USR1@60s`, `B:USR1@60s` as Slurm has it, which is the same, or
    `started:USR1@2m`; usage errors for anything else.
    """
    if value is None:
        return None
    whom, colon, rest = value.rpartition(":")
    name, _, before = rest.partition("@")
    seconds = parse_span(before)
    if not name or seconds is None or (colon and whom not in (STARTED, "B")):
        raise click.BadParameter(f"{value!r} is not a signal and a time: write USR1@60s", param=parameter)
    warning = session_pb2.TimeWarning(signal=name, started_only=whom == STARTED)
    warning.before.FromNanoseconds(round(seconds * 1e9))
    return warning


def positive_span(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Returns the seconds of a length of time as `span` does; usage errors for none, too."""
    seconds = span(context, parameter, value)
    if seconds == 0:
        raise click.BadParameter("must be above 0", param=parameter)
    return seconds


def size(_context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Returns the bytes of a size written `4096`, `512m` or `20g`; usage errors for anything else."""
    if value is None:
        return None
    try:
        return parse_amount(MEMORY, value)
    except AmountError as error:
        raise click.BadParameter(str(error), param=parameter) from error


def moment(context: click.Context, parameter: click.Parameter, value: str | None) -> dt.datetime | None:
    """Returns a moment, of which a length of time has passed since; usage errors for anything else."""
    return _moment(context, parameter, value, -1)


def future(context: click.Context, parameter: click.Parameter, value: str | None) -> dt.datetime | None:
    """Returns a moment, of which a length of time is that until then; usage errors for anything else."""
    return _moment(context, parameter, value, 1)


def _moment(
    _context: click.Context, parameter: click.Parameter, value: str | None, direction: int
) -> dt.datetime | None:
    if value is None:
        return None
    if (parsed := parse_moment(value, dt.datetime.now(dt.UTC), direction)) is None:
        raise click.BadParameter(f"{value!r} is not a time: write {MOMENT_EXAMPLES}", param=parameter)
    return parsed


def pairs(_context: click.Context, parameter: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Returns `NAME=VALUE` options as a mapping; usage errors for anything else."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, content = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", param=parameter)
        found[name] = content
    return found


set_option = click.option(
    "--set",
    "assignments",
    multiple=True,
    callback=pairs,
    metavar="PATH=VALUE",
    help="Set one field, as slots.cpu=2, roles.worker.count=3 or time_limit=1h.",
)
unset_option = click.option("--unset", multiple=True, metavar="PATH", help="Leave out one field of the template.")


def chosen_word(word: str | None) -> Any:
    """Returns one of the words of an option's choice, and for none what leaves the choice to the server."""
    return word or ""


ISOLATIONS = click.Choice(["process", "container", "vm"])
PULL_POLICIES = click.Choice(["always", "missing", "never"])


def override(spec: session_pb2.SessionSpec, assignments: Mapping[str, str], unset: Iterable[str]) -> None:
    """Does to a request what `--set` and `--unset` say. Raises UsageError."""
    for path in unset:
        if not spec.HasField("template"):
            raise UsageError("--unset needs a template")
        remove_field(spec, path)
    for path, text in assignments.items():
        set_field(spec, path, text)


def template_version(text: str) -> tuple[str, int]:
    """Returns the name and version of `NAME[@VERSION]`; 0 is the newest. Raises UsageError."""
    name, at, number = text.partition("@")
    if at and not (number.isascii() and number.isdigit() and 0 < int(number) < 2**31):
        raise UsageError(f"{text!r} is not NAME[@VERSION]")
    return name, int(number) if at else 0


def slots(context: click.Context, parameter: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Returns `cpu=2,mem=1g` options as a mapping; usage errors for anything else."""
    return pairs(context, parameter, (part for value in values for part in value.split(",") if part))


def words(_context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """Returns a command line as a list of arguments, split as a shell would."""
    if value is None:
        return None
    try:
        return shlex.split(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}", param=parameter) from error


def listed(_context: click.Context, _parameter: click.Parameter, values: Iterable[str]) -> tuple[str, ...]:
    """Returns what is separated by commas, or given again."""
    return tuple(part for value in values for part in map(str.strip, value.split(",")) if part)


def labels(_context: click.Context, parameter: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Returns `NAME[=VALUE]` options as a mapping, as Docker takes labels; usage errors for no name."""
    found: dict[str, str] = {}
    for value in values:
        name, _, content = value.partition("=")
        if not name:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", param=parameter)
        found[name] = content
    return found


def mounts(_context: click.Context, parameter: click.Parameter, values: Iterable[str]) -> list[Mount]:
    """Returns `SRC:DST[:rw]` options, or those of `docker run --mount`; usage errors for anything else."""
    try:
        return [parse_mount(value) for value in values]
    except UsageError as error:
        raise click.BadParameter(str(error), param=parameter) from error


def ports(_context: click.Context, parameter: click.Parameter, values: Iterable[str]) -> list[Port]:
    """Returns `NAME:[PROTOCOL:]NUMBER[:host=localhost]` options as name, protocol, number and host;
    usage errors for anything else.
    """
    try:
        return [parse_port(value) for value in values]
    except UsageError as error:
        raise click.BadParameter(str(error), param=parameter) from error


def port_ranges(_context: click.Context, parameter: click.Parameter, values: Iterable[str]) -> list[tuple[int, int]]:
    """Returns `FIRST[-LAST]` options as first and last number; usage errors for anything else."""
    found = []
    for value in values:
        first, _, last = value.partition("-")
        if not is_port(first) or not is_port(last or first):
            raise click.BadParameter(f"{value!r} is not FIRST[-LAST]", param=parameter)
        found.append((int(first), int(last or first)))
    return found


def apps(context: click.Context, parameter: click.Parameter, values: Iterable[str]) -> list[session_pb2.AppDefinition]:
    """Returns `NAME=COMMAND` options as definitions of apps, split as a shell would, and those of the catalogue by
    their names; usage errors for anything else.
    """
    found: dict[str, session_pb2.AppDefinition] = {}
    for value in values:
        name, equals, command = value.partition("=")
        if equals:
            name = next(iter(pairs(context, parameter, [value])))
            found[name] = session_pb2.AppDefinition(name=name, command=words(context, parameter, command))
            continue
        try:
            found[name] = app_catalogue.named(name)
        except UsageError as error:
            raise click.BadParameter(f"{value!r} is not NAME=COMMAND, and {error}", param=parameter) from error
    return list(found.values())


MOUNT_ROOT = "PATH[:rw][,uid=N|account,gid=N][@PROJECT,…]"
"""The form of a mount root."""
_NUMBER = re.compile(r"[0-9]{1,10}")
ACCOUNT = "account"
"""In place of a number: that of the session owner's account."""
_NUMBERS = 1 << 31


def mount_roots(
    _context: click.Context, parameter: click.Parameter, values: Iterable[str]
) -> list[fleet_service_pb2.MountRoot] | None:
    """Returns options as roots of a resource group: None without any, and no roots for an empty one;
    usage errors for anything else.
    """
    given = list(values)
    if not given:
        return None
    found = []
    for value in filter(None, given):
        mount, _, projects = value.partition("@")
        path, _, how = mount.partition(":")
        words = [word for word in how.split(",") if word]
        access = [word for word in words if word in {"ro", "rw"}]
        owner = _mount_owner([word for word in words if word not in access])
        if not path or len(access) > 1 or owner is None:
            raise click.BadParameter(f"{value!r} is not {MOUNT_ROOT}", param=parameter)
        found.append(
            fleet_service_pb2.MountRoot(
                path=path,
                writable=access == ["rw"],
                projects=[name for name in projects.split(",") if name],
                owner=owner if words != access else None,
            )
        )
    return found


def _mount_owner(words: Iterable[str]) -> fleet_service_pb2.MountOwner | None:
    """Reads `uid=N`, `uid=account` and `gid=N`; None for anything else, as for root."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    if given.keys() - {"uid", "gid"} or len(given) != len(list(words)):
        return None
    account = given.get("uid") == ACCOUNT
    if account:
        del given["uid"]
        if given.get("gid") == ACCOUNT:
            del given["gid"]
    if not all(_NUMBER.fullmatch(number) and 0 < int(number) < _NUMBERS for number in given.values()):
        return None
    if not account and given and given.keys() != {"uid", "gid"}:
        return None
    return fleet_service_pb2.MountOwner(account=account, **{name: int(number) for name, number in given.items()})
