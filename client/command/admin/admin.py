"""`retinue admin`: what administrators look after."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.client import enum_names
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.package_files import copy_files
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash
from retinue.client.command.show.output import Column, list_output_option, print_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.v1 import fleet_service_pb2 as pb


@click.group("admin")
def admin_command() -> None:
    """Check and monitor the manager (administrators)."""


@admin_command.command("verify")
@list_output_option
@click.argument("group", default="")
@pass_connection
@asynchronous
async def verify_ledger(connection: Connection, group: str, output: str) -> int:
    """Recompute claims, shares and capacity of GROUP (default: all groups) and list what differs; exit code 1 if
    anything does.
    """
    async with connection.client() as client:
        found = await client.resource_groups.verify(group)
    columns: Sequence[Column[pb.LedgerMismatch]] = (
        Column("KIND", lambda item: enum_names.name_of(enum_names.LEDGER_KIND, item.kind).lower()),
        Column("GROUP", lambda item: safe(item.resource_group)),
        Column("OWNER", lambda item: or_dash(safe(item.owner))),
        Column("AGENT", lambda item: or_dash(safe(item.agent))),
        Column("ATTEMPT", lambda item: or_dash(safe(item.attempt_id)), wide=True),
        Column("SLOT", lambda item: or_dash(safe(item.slot))),
        Column("KEPT", lambda item: safe(item.recorded)),
        Column("DERIVED", lambda item: safe(item.derived)),
    )
    if found.mismatches or output != "table":
        print_list(output, found, found.mismatches, columns, lambda item: item.attempt_id or item.owner or item.agent)
    click.echo(
        f"{found.claims} claims, {found.shares} shares and {found.agents} agents: {len(found.mismatches)} mismatches",
        err=True,
    )
    return ExitCode.FAILURE if found.mismatches else ExitCode.OK


@admin_command.command("monitoring")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def write_monitoring(directory: Path) -> None:
    """Write rules for Prometheus and dashboards for Grafana into DIRECTORY; asks no manager."""
    source = resources.files("retinue").joinpath("deploy")
    try:
        for part, suffix in (("prometheus", ".yaml"), ("grafana", ".json")):
            for path in copy_files(source.joinpath(part), directory, suffix):
                click.echo(path)
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error
