"""`retinue doctor`: what this machine lacks to be a node, and how to mend it."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.show.output import table as output_table
from retinue.client.errors import UsageError
from retinue.devtools import doctor
from retinue.rpc.daemons import missing_extras

if TYPE_CHECKING:
    from collections.abc import Sequence

_TITLES = ("WHAT", "STATE", "FOUND", "REMEDY")
_STYLES = {doctor.OK: "green", doctor.WARNING: "yellow", doctor.ERROR: "red"}


@click.command("doctor")
@click.option("--docker-host", default="", envvar="DOCKER_HOST", metavar="unix://PATH", help="The engine to ask.")
@click.option(
    "--kube-node",
    default="",
    envvar="RETINUE_AGENT_KUBE_NODE",
    metavar="NAME",
    help="Check, too, whether kernels can be pods of this node of a Kubernetes cluster.",
)
@click.option(
    "--kube-config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="RETINUE_AGENT_KUBE_CONFIG",
    metavar="FILE",
    help="Access to the cluster, as the agent has it.  [default: that of the pod that this runs in]",
)
@click.option(
    "--kube-namespace",
    default="retinue-kernels",
    show_default=True,
    envvar="RETINUE_AGENT_KUBE_NAMESPACE",
    metavar="NAME",
    help="Namespace of the pods of kernels.",
)
@click.option(
    "--kube-priority-class",
    default="",
    envvar="RETINUE_AGENT_KUBE_PRIORITY_CLASS",
    metavar="NAME",
    help="Priority class of the pods of kernels.",
)
@click.option(
    "--session-subnets",
    default=str(doctor.SESSION_SUBNETS),
    show_default=True,
    metavar="CIDR",
    help="Addresses of cluster sessions, as managers were given them.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=doctor.DATA_DIRECTORY,
    show_default=True,
    metavar="DIRECTORY",
    help="Data directory of the agent; made by it, if it is not there.",
)
@click.option(
    "--vxlan-port",
    type=click.IntRange(1, 65535),
    default=4789,
    show_default=True,
    metavar="PORT",
    help="UDP port of cluster sessions, as managers were given it.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def doctor_command(  # noqa: PLR0917  # the options of the command
    docker_host: str,
    kube_node: str,
    kube_config: Path | None,
    kube_namespace: str,
    kube_priority_class: str,
    session_subnets: str,
    data_dir: Path,
    vxlan_port: int,
    output: str,
) -> int:
    """Check whether this machine can be a node, and say what it lacks; ends with 1 if an agent would not work.

    It contacts no manager. It removes what it creates to try things, such as links, and sends no packet out of the
    machine.
    """
    if missing_extras("agent"):
        raise UsageError("only nodes can be checked, and the agent is not installed: pip install 'retinue[agent]'")
    try:
        subnets = ipaddress.IPv4Network(session_subnets)
    except ValueError as error:
        raise UsageError(f"--session-subnets: {error}") from error
    findings = doctor.evaluate(doctor.examine(docker_host, vxlan_port, data_dir), subnets)
    if kube_node:
        from retinue.devtools import pod_doctor  # noqa: PLC0415  # needs what only agents have

        findings += pod_doctor.evaluate(pod_doctor.examine(kube_config, kube_node, kube_namespace, kube_priority_class))
    if output == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console = Console()
        if not console.is_terminal:
            # Programs that read the output get unwrapped lines, and no blanks at their ends.
            rows = [[found.name, found.state, found.message, found.remedy] for found in findings]
            for line in output_table(_TITLES, rows, colour=False):
                click.echo(line)
            return _code(findings)
        table = Table(*_TITLES, box=None, pad_edge=False)
        for finding in findings:
            state = f"[{_STYLES[finding.state]}]{finding.state}[/]"
            table.add_row(finding.name, state, finding.message, finding.remedy)
        console.print(table)
    return _code(findings)


def _code(findings: Sequence[doctor.Finding]) -> int:
    failed = any(finding.state == doctor.ERROR for finding in findings)
    return ExitCode.FAILURE if failed else ExitCode.OK
