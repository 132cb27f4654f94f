"""`retinue doctor`: what this machine lacks to be a node, and how to mend it."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from retinue.client.command.exit_codes import ExitCode
from retinue.devtools import doctor

_STYLES = {doctor.OK: "green", doctor.WARNING: "yellow", doctor.ERROR: "red"}


@click.command("doctor")
@click.option("--docker-host", default="", envvar="DOCKER_HOST", metavar="unix://PATH", help="The engine to ask.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def doctor_command(docker_host: str, output: str) -> int:
    """Check whether this machine can be a node, and say what it lacks; ends with 1 if an agent would not work.

    Nothing is changed. It asks no manager.
    """
    findings = doctor.evaluate(doctor.examine(docker_host))
    if output == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table = Table("WHAT", "STATE", "FOUND", "REMEDY", box=None, pad_edge=False)
        for finding in findings:
            state = f"[{_STYLES[finding.state]}]{finding.state}[/]"
            table.add_row(finding.name, state, finding.message, finding.remedy)
        console = Console()
        # Programs that read the output get unwrapped lines.
        console.width = console.width if console.is_terminal else 240
        console.print(table)
    failed = any(finding.state == doctor.ERROR for finding in findings)
    return ExitCode.FAILURE if failed else ExitCode.OK
