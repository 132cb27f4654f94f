"""The command `retinue-agent`. Every option can be given as a variable, `RETINUE_AGENT_` and its name in capitals."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.rpc import config_file, failpoints, logs, memory, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.agent.host.users import UserRange
    from retinue.agent.settings import Settings


def _slots(_context: click.Context, _parameter: click.Parameter, value: str) -> dict[str, int]:
    from retinue.rpc.core.amounts import parse_slots  # noqa: PLC0415  # kept out of `--help`

    try:
        return parse_slots(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _uid_range(_context: click.Context, _parameter: click.Parameter, value: str) -> UserRange:
    from retinue.agent.host.users import parse_range  # noqa: PLC0415  # kept out of `--help`

    try:
        return parse_range(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_DIRECTORY = click.Path(file_okay=False, path_type=Path)
_DATA_DIRECTORY = Path("/var/lib/retinue-agent")
_manager = click.option(
    "--manager",
    required=True,
    callback=options.managers,
    metavar="HOST:PORT[,HOST:PORT...]",
    help="The managers' ports for users; the next one is tried when one does not answer.",
)


@options.daemon("retinue-agent")
def main() -> None:
    """Runs beside a node and starts kernels for a manager."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            config_file.option("RETINUE_AGENT_CONFIG"),
            click.option("--id", "agent_id", required=True, callback=options.name, envvar="RETINUE_AGENT_ID"),
            click.option(
                "--data-dir",
                type=_DIRECTORY,
                default=_DATA_DIRECTORY,
                show_default=True,
                help="Directory of the agent's identity and its records of kernels.",
            ),
            click.option(
                "--scratch-dir", type=_DIRECTORY, help="For the files of kernels.  [default: DATA_DIR/scratch]"
            ),
            _manager,
            click.option(
                "--join-token", metavar="FILE|TOKEN", help="For the first start; a file that holds it, or it."
            ),
            click.option("--ca-fingerprint", metavar="HEX", help="SHA-256 of the manager's CA, for the first start."),
            click.option("--listen", default="0.0.0.0:7443", show_default=True, metavar="HOST:PORT"),
            click.option(
                "--direct-listen",
                default="",
                metavar="HOST:PORT|none",
                help="Where SSH connections of clients come directly.  [default: the host of --listen, any free port]",
            ),
            click.option("--advertise", default="", metavar="HOST:PORT", help="Where the manager dials this agent."),
            click.option("--underlay-address", default="", help="Address for other nodes.  [default: found out]"),
            click.option(
                "--underlay-mtu",
                type=click.IntRange(646, 65535),
                metavar="BYTES",
                help="Largest packets between nodes, where that is less than the interface says.  [default: as it says]",
            ),
            click.option(
                "--slots", default="", callback=_slots, help="In place of what is found, as cpu=4,mem=8g,disk=100g."
            ),
            click.option(
                "--reserve",
                default="",
                callback=_slots,
                help="Not to be given to kernels, as mem=1g.  [default: a tenth of the disk]",
            ),
            click.option(
                "--show",
                multiple=True,
                type=click.Path(path_type=Path),
                help="Path of the node that kernels without an image see beside programs and libraries.",
            ),
            click.option(
                "--hide",
                multiple=True,
                type=click.Path(path_type=Path),
                help="Path that no kernel sees, nor as a mount.",
            ),
            click.option(
                "--uid",
                type=click.IntRange(1),
                default=60_000,
                show_default=True,
                help="Owner of files in mounts whose root names no other.",
            ),
            click.option(
                "--uid-range",
                callback=_uid_range,
                default="70000-79999",
                show_default=True,
                metavar="FIRST-LAST",
                help="Users of kernels, one for each that runs; agents of one machine need ranges of their own.",
            ),
            click.option(
                "--gid",
                type=click.IntRange(1),
                default=60_000,
                show_default=True,
                help="Group of kernels and of these files.",
            ),
            click.option("--tasks", type=click.IntRange(16), default=4096, show_default=True, help="Per kernel."),
            click.option(
                "--work-size",
                type=click.IntRange(0),
                default=0,
                help="Bytes on the disk of a kernel without the slot disk.  [default: a tenth of the file system]",
            ),
            click.option(
                "--work-files",
                type=click.IntRange(0),
                default=0,
                help="Files a kernel may have in its work directory.  [default: one for each 8 KiB of its slot disk]",
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
                help="A network that kernels may reach although it is the node's own, or its addresses are not public.",
            ),
            click.option(
                "--docker-host",
                default="",
                metavar="unix://PATH",
                envvar=["RETINUE_AGENT_DOCKER_HOST", "DOCKER_HOST"],
                help="Engine for kernels with an image.  [default: the usual one, if it answers]",
            ),
            click.option(
                "--containers",
                type=click.Choice(("docker", "kubernetes")),
                default="docker",
                show_default=True,
                help="What runs kernels with an image.",
            ),
            click.option(
                "--kube-config",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                help="Access to the cluster, as kubectl has it.  [default: that of the pod that the agent runs in]",
            ),
            click.option("--kube-node", default="", metavar="NAME", help="Name of this node in the cluster."),
            click.option(
                "--kube-namespace",
                default="retinue-kernels",
                show_default=True,
                metavar="NAME",
                help="Where kernels are pods, and nothing else is.",
            ),
            click.option(
                "--kube-priority-class", default="", metavar="NAME", help="Priority class of pods of kernels."
            ),
            click.option(
                "--kube-pull-secret", multiple=True, metavar="NAME", help="A secret that images are fetched with."
            ),
            click.option(
                "--kube-runtime",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="SOCKET",
                help="The node's container runtime (CRI), asked for the users and labels of images.",
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
                "--unused-image-days",
                type=click.IntRange(0),
                default=3,
                show_default=True,
                help="Remove images that the agent fetched and no kernel used for so many days, while little of the engine's disk is free; 0: never.",
            ),
            click.option(
                "--image-free-percent",
                type=click.IntRange(0, 100),
                default=20,
                show_default=True,
                help="The part of the engine's disk that unused images are removed to keep free.",
            ),
            click.option(
                "--registry-allow",
                multiple=True,
                metavar="CIDR",
                help="A network that image registries may be in although it is this node's own, link-local, or the fleet's.",
            ),
            click.option(
                "--build/--no-build",
                "builds",
                default=True,
                show_default=True,
                help="Build what kernels need and is not there yet, in the background (see `build`).",
            ),
            click.option("--dev", "development", is_flag=True, hidden=True, help="Development mode, for --failpoints."),
            options.failpoints,
            options.metrics,
            logs.options,
        )
    ):
        command = option(command)
    return command


@main.command(context_settings={"auto_envvar_prefix": "RETINUE_AGENT"})
@_options
def run(log_format: str, log_level: str, **values: Any) -> None:
    """Runs the agent until it is stopped; kernels run on then."""
    import grpc.aio  # noqa: PLC0415  # takes long to import, and `--help` does not need it

    from retinue.agent import daemon  # noqa: PLC0415
    from retinue.agent.errors import KernelRuntimeError  # noqa: PLC0415
    from retinue.agent.network.errors import NetworkError  # noqa: PLC0415
    from retinue.agent.state.exclusive import InUseError  # noqa: PLC0415
    from retinue.rpc.enrollment.identity import IdentityError  # noqa: PLC0415

    logs.configure_logging(log_format, log_level)
    logs.log_start("retinue-agent", "grpcio")
    settings = _settings(**values)
    try:
        failpoints.switch_on(settings.failpoints)
        memory.prepare()
        asyncio.run(daemon.run(settings))
    except grpc.aio.AioRpcError as error:
        raise logs.DaemonError(f"the manager refused: {error.code().name}: {error.details()}") from error
    except (InUseError, IdentityError, KernelRuntimeError, NetworkError, OSError, ValueError) as error:
        raise logs.DaemonError(str(error)) from error


@main.command("join")
@click.option("--id", "agent_id", required=True, callback=options.name, help="The agent's id.")
@_manager
@click.option("--join-token", required=True, metavar="FILE|TOKEN", help="A file that holds it, or it.")
@click.option("--ca-fingerprint", required=True, metavar="HEX", help="SHA-256 of the manager's CA.")
@click.option("--data-dir", type=_DIRECTORY, default=_DATA_DIRECTORY, show_default=True)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("/etc/retinue/agent.toml"),
    show_default=True,
    help="File that is written for `run`, unless it exists.",
)
def _join(  # noqa: PLR0917  # one per option
    agent_id: str, manager: tuple[str, ...], join_token: str, ca_fingerprint: str, data_dir: Path, config: Path
) -> None:
    """Enrols this node and writes the agent's configuration file;
    `retinue agents join-token` prints the whole command.
    """
    import grpc.aio  # noqa: PLC0415  # kept out of `--help`

    from retinue.agent.joining import join, write_configuration  # noqa: PLC0415
    from retinue.agent.state.exclusive import InUseError  # noqa: PLC0415
    from retinue.rpc.enrollment.identity import IdentityError  # noqa: PLC0415

    try:
        asyncio.run(join(agent_id, data_dir, manager, options.secret(join_token), ca_fingerprint))
        click.echo(f"{agent_id} is enrolled; its certificate is in {data_dir}")
        write_configuration(config, agent_id, manager, None if data_dir == _DATA_DIRECTORY else data_dir)
        click.echo(f"wrote {config}")
    except FileExistsError:
        click.echo(f"{config} exists and was left as it is: it needs the same id and managers", err=True)
    except grpc.aio.AioRpcError as error:
        raise click.ClickException(f"the manager refused: {error.code().name}: {error.details()}") from error
    except (InUseError, IdentityError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error


@main.command("build")
@click.argument("parts", nargs=-1, metavar="[PART]...")
@click.option(
    "--directory",
    type=_DIRECTORY,
    default=Path("/var/cache/retinue"),
    show_default=True,
    help="Where it goes; agents look in the default, and in /usr/lib/retinue.",
)
@click.option("--locked", is_flag=True, hidden=True, help="An agent waits for this, and keeps others from building.")
def _build(parts: tuple[str, ...], directory: Path, *, locked: bool) -> None:
    """Builds what kernels need, once, unless it is there: an agent does so by itself, in the background.

    PART is `programs` (the first processes of kernels), `ssh` (ssh between kernels, from Debian's sources), `python`
    (Python for code, from the package index of pip) or `linux` (Debian's Linux for virtual machines); without one, all
    that this node has a use for.
    """
    from retinue.agent.builds import PARTS, make  # noqa: PLC0415  # kept out of `--help`
    from retinue.agent.kernel.build import PROGRAMS, BuildError, build  # noqa: PLC0415

    known = {part.name: part for part in PARTS}
    if unknown := set(parts) - {"programs", *known}:
        raise click.UsageError(f"{unknown.pop()} is no part: there is programs, {', '.join(known)}")
    # A build that is ended leaves nothing half done.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = [part for part in PARTS if (part.name in parts if parts else part.is_needed())]
    try:
        if not parts or "programs" in parts:
            for name in PROGRAMS:
                click.echo(build(directory, name))
        for part in chosen:
            if part.find(directory) is None:
                click.echo(f"building {part.title} …", err=True)
            click.echo(make(part, directory, is_locked=locked))
    except BuildError as error:
        raise click.ClickException(str(error)) from error


@main.group("config")
def _config() -> None:
    """Checks the configuration."""


@_config.command("check", cls=config_file.CheckCommand, context_settings={"auto_envvar_prefix": "RETINUE_AGENT"})
@_options
@click.pass_context
def _check_config(context: click.Context, /, log_format: str, log_level: str, **values: Any) -> None:
    """Prints what `run` would be given by a file and variables, and from where;
    ends with 1 or 2 if it would refuse it.
    """
    _settings(**values)
    config_file.check(context)


def _settings(  # noqa: PLR0917  # one per option
    agent_id: str,
    data_dir: Path,
    scratch_dir: Path | None,
    manager: tuple[str, ...],
    join_token: str | None,
    ca_fingerprint: str | None,
    listen: str,
    direct_listen: str,
    advertise: str,
    underlay_address: str,
    underlay_mtu: int | None,
    slots: dict[str, int],
    reserve: dict[str, int],
    hide: tuple[Path, ...],
    show: tuple[Path, ...],
    uid: int,
    uid_range: UserRange,
    gid: int,
    tasks: int,
    output_limit: int,
    work_size: int,
    work_files: int,
    docker_host: str,
    containers: str,
    kube_config: Path | None,
    kube_node: str,
    kube_namespace: str,
    kube_priority_class: str,
    kube_pull_secret: tuple[str, ...],
    kube_runtime: Path | None,
    null_kernels: bool,
    registry_config: Path | None,
    unused_image_days: int,
    image_free_percent: int,
    name_server: tuple[str, ...],
    egress_allow: tuple[str, ...],
    registry_allow: tuple[str, ...],
    builds: bool,
    development: bool,
    failpoints: Path | None,
    metrics: str,
) -> Settings:
    """Returns the settings that options mean. Raises ClickException."""
    from retinue.agent.docker.core.image_removal import RemovalPolicy  # noqa: PLC0415  # kept out of `--help`
    from retinue.agent.settings import KubernetesSettings, Settings, check  # noqa: PLC0415

    options.check_failpoints(failpoints, development=development)
    settings = Settings(
        agent_id=agent_id,
        state_dir=data_dir,
        scratch_dir=scratch_dir or data_dir / "scratch",
        managers=manager,
        listen=listen,
        direct_listen=direct_listen,
        join_token=options.secret(join_token),
        ca_fingerprint=ca_fingerprint or "",
        advertise=advertise,
        underlay_address=underlay_address,
        underlay_mtu=underlay_mtu or 0,
        slots=slots,
        reserve=reserve,
        hidden=hide,
        shown=show,
        uid=uid,
        users=uid_range,
        gid=gid,
        tasks=tasks,
        output_limit=output_limit,
        work_size=work_size,
        work_files=work_files,
        docker_host=docker_host,
        kubernetes=KubernetesSettings(
            kube_node, kube_namespace, kube_config, kube_priority_class, kube_pull_secret, kube_runtime
        )
        if containers == "kubernetes"
        else None,
        null_kernels=null_kernels,
        registry_config=registry_config,
        image_removal=RemovalPolicy(unused_image_days, image_free_percent),
        name_servers=name_server,
        egress_allow=egress_allow,
        registry_allow=registry_allow,
        builds=builds,
        failpoints=failpoints,
        metrics=metrics,
    )
    try:
        check(settings)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    return settings


if __name__ == "__main__":
    main()
