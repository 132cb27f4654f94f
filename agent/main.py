"""The command `retinue-agent`. Every option can be given as a variable, `RETINUE_AGENT_` and its name in capitals."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import grpc

from retinue.rpc import logs, memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.agent.host.users import UserRange

_AGENT_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def _slots(_context: click.Context, _parameter: click.Parameter, value: str) -> dict[str, int]:
    from retinue.rpc.core.amounts import parse_slots  # noqa: PLC0415 - kept out of `--help`

    try:
        return parse_slots(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _uid_range(_context: click.Context, _parameter: click.Parameter, value: str) -> UserRange:
    from retinue.agent.host.users import parse_range  # noqa: PLC0415 - kept out of `--help`

    try:
        return parse_range(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _managers(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    from retinue.agent.enrollment.managers import parse_managers  # noqa: PLC0415 - kept out of `--help`

    try:
        return parse_managers(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _agent_id(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if _AGENT_ID.fullmatch(value) is None:
        raise click.BadParameter("1 to 63 characters a-z, 0-9 and -, not - at an end")
    return value


@click.group()
def main() -> None:
    """Runs beside a node and starts kernels for a manager."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    directory = click.Path(file_okay=False, path_type=Path)
    for option in reversed(
        (
            click.option("--id", "agent_id", required=True, callback=_agent_id, envvar="RETINUE_AGENT_ID"),
            click.option(
                "--data-dir",
                type=directory,
                default=Path("/var/lib/retinue-agent"),
                show_default=True,
                help="Directory of the agent's identity and its records of kernels.",
            ),
            click.option(
                "--scratch-dir", type=directory, help="For the files of kernels.  [default: DATA_DIR/scratch]"
            ),
            click.option(
                "--manager",
                required=True,
                callback=_managers,
                metavar="HOST:PORT[,HOST:PORT...]",
                help="The managers' ports for users; the next one is tried when one does not answer.",
            ),
            click.option(
                "--join-token", metavar="FILE|TOKEN", help="For the first start; a file that holds it, or it."
            ),
            click.option("--ca-fingerprint", metavar="HEX", help="SHA-256 of the manager's CA, for the first start."),
            click.option("--listen", default="0.0.0.0:7443", show_default=True, metavar="HOST:PORT"),
            click.option("--advertise", default="", metavar="HOST:PORT", help="Where the manager dials this agent."),
            click.option("--underlay-address", default="", help="Address for other nodes.  [default: found out]"),
            click.option("--slots", default="", callback=_slots, help="In place of what is found, as cpu=4,mem=8g."),
            click.option("--reserve", default="", callback=_slots, help="Not to be given to kernels, as mem=1g."),
            click.option("--hide", multiple=True, type=click.Path(path_type=Path), help="Path kernels must not see."),
            click.option(
                "--uid",
                type=click.IntRange(1),
                default=60_000,
                show_default=True,
                help="Owner of kernels' files in shared directories.",
            ),
            click.option(
                "--uid-range",
                callback=_uid_range,
                default="70000-79999",
                show_default=True,
                metavar="FIRST-LAST",
                help="Users of kernels, one for each that runs; agents of one machine need ranges of their own.",
            ),
            click.option("--gid", type=click.IntRange(1), default=60_000, show_default=True, help="Group of kernels."),
            click.option("--tasks", type=click.IntRange(16), default=4096, show_default=True, help="Per kernel."),
            click.option(
                "--work-size",
                type=click.IntRange(0),
                default=0,
                help="Bytes a kernel may have on the disk.  [default: a tenth of the file system]",
            ),
            click.option(
                "--work-files",
                type=click.IntRange(0),
                default=0,
                help="Files a kernel may have in its work directory.  [default: a tenth of what there can be]",
            ),
            click.option("--output-limit", type=click.IntRange(1 << 16), default=64 << 20, show_default=True),
            click.option(
                "--name-server",
                multiple=True,
                metavar="ADDRESS",
                help="For kernels with egress.  [default: those of /etc/resolv.conf]",
            ),
            click.option(
                "--egress-allow",
                multiple=True,
                metavar="CIDR",
                help="A network that kernels may reach although its addresses are not public.",
            ),
            click.option(
                "--docker-host",
                default="",
                metavar="unix://PATH",
                envvar=["RETINUE_AGENT_DOCKER_HOST", "DOCKER_HOST"],
                help="Engine for kernels with an image.  [default: the usual one, if it answers]",
            ),
            # Not for operators: the only use is to measure what is around kernels, or to test it.
            click.option(
                "--null-kernels", is_flag=True, hidden=True, help="Kernels do nothing: for tests and benches."
            ),
            click.option(
                "--registry-config",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                help="Credentials for image registries, in the format of Docker's config.json.",
            ),
            click.option(
                "--registry-allow",
                multiple=True,
                metavar="CIDR",
                help="A network that image registries may be in although it is this node's own, link-local, or the fleet's.",
            ),
            logs.options,
        )
    ):
        command = option(command)
    return command


@main.command(context_settings={"auto_envvar_prefix": "RETINUE_AGENT"})
@_options
def run(  # noqa: PLR0917 - one per option
    agent_id: str,
    data_dir: Path,
    scratch_dir: Path | None,
    manager: tuple[str, ...],
    join_token: str | None,
    ca_fingerprint: str | None,
    listen: str,
    advertise: str,
    underlay_address: str,
    slots: dict[str, int],
    reserve: dict[str, int],
    hide: tuple[Path, ...],
    uid: int,
    uid_range: UserRange,
    gid: int,
    tasks: int,
    output_limit: int,
    work_size: int,
    work_files: int,
    docker_host: str,
    null_kernels: bool,
    registry_config: Path | None,
    name_server: tuple[str, ...],
    egress_allow: tuple[str, ...],
    registry_allow: tuple[str, ...],
    log_format: str,
    log_level: str,
) -> None:
    """Runs the agent until it is stopped; kernels run on then."""
    from retinue.agent import daemon  # noqa: PLC0415 - takes long to import, and `--help` does not need it
    from retinue.agent.enrollment.identity import IdentityError  # noqa: PLC0415
    from retinue.agent.errors import BackendError  # noqa: PLC0415
    from retinue.agent.network.errors import NetworkError  # noqa: PLC0415
    from retinue.agent.state.exclusive import InUseError  # noqa: PLC0415

    logs.configure_logging(log_format, log_level)
    settings = daemon.Settings(
        agent_id=agent_id,
        state_dir=data_dir,
        scratch_dir=scratch_dir or data_dir / "scratch",
        managers=manager,
        listen=listen,
        join_token=_secret(join_token),
        ca_fingerprint=ca_fingerprint or "",
        advertise=advertise,
        underlay_address=underlay_address,
        slots=slots,
        reserve=reserve,
        hidden=hide,
        uid=uid,
        users=uid_range,
        gid=gid,
        tasks=tasks,
        output_limit=output_limit,
        work_size=work_size,
        work_files=work_files,
        docker_host=docker_host,
        null_kernels=null_kernels,
        registry_config=registry_config,
        name_servers=name_server,
        egress_allow=egress_allow,
        registry_allow=registry_allow,
    )
    try:
        daemon.check(settings)
        memory.prepare()
        asyncio.run(daemon.run(settings))
    except grpc.aio.AioRpcError as error:
        raise click.ClickException(f"the manager refused: {error.code().name}: {error.details()}") from error
    except (InUseError, IdentityError, BackendError, NetworkError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _secret(value: str | None) -> str:
    """Returns a secret, or the content of the file of that name."""
    if not value:
        return ""
    path = Path(value)
    try:
        return path.read_text().strip() if path.is_file() else value
    except OSError as error:
        raise click.ClickException(f"cannot read {value}: {error.strerror}") from error


if __name__ == "__main__":
    main()
