"""The command `retinue-agent`. Every option can be given as a variable, `RETINUE_AGENT_` and its name in capitals."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.rpc import config_file, failpoints, logs, memory, options
from retinue.rpc.bound_options import bound, declared, setting

if TYPE_CHECKING:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What the command is given."""

    agent_id: str = setting("--id", required=True, callback=options.name, envvar="RETINUE_AGENT_ID")
    data_dir: Path = setting(
        type=_DIRECTORY, default=_DATA_DIRECTORY, help="Directory of the agent's identity and its records of kernels."
    )
    scratch_dir: Path | None = setting(type=_DIRECTORY, help="For the files of kernels.  [default: DATA_DIR/scratch]")
    manager: tuple[str, ...] = declared(_manager)
    join_token: str | None = setting(metavar="FILE|TOKEN", help="For the first start; a file that holds it, or it.")
    ca_fingerprint: str | None = setting(metavar="HEX", help="SHA-256 of the manager's CA, for the first start.")
    listen: str = setting(default="0.0.0.0:7443", metavar="HOST:PORT")
    direct_listen: str = setting(
        default="",
        metavar="HOST:PORT|none",
        help="Where SSH connections of clients come directly.  [default: the host of --listen, any free port]",
    )
    advertise: str = setting(default="", metavar="HOST:PORT", help="Where the manager dials this agent.")
    underlay_address: str = setting(default="", help="Address for other nodes.  [default: found out]")
    underlay_mtu: int | None = setting(
        type=click.IntRange(646, 65535),
        metavar="BYTES",
        help="Largest packets between nodes, where that is less than the interface says.  [default: as it says]",
    )
    slots: dict[str, int] = setting(
        default="", callback=_slots, help="In place of what is found, as cpu=4,mem=8g,disk=100g."
    )
    reserve: dict[str, int] = setting(
        default="", callback=_slots, help="Not to be given to kernels, as mem=1g.  [default: a tenth of the disk]"
    )
    show: tuple[Path, ...] = setting(
        multiple=True,
        type=click.Path(path_type=Path),
        help="Path of the node that kernels without an image see beside programs and libraries.",
    )
    hide: tuple[Path, ...] = setting(
        multiple=True, type=click.Path(path_type=Path), help="Path that no kernel sees, nor as a mount."
    )
    uid: int = setting(
        type=click.IntRange(1), default=60_000, help="Owner of files in mounts whose root names no other."
    )
    uid_range: UserRange = setting(
        callback=_uid_range,
        default="70000-79999",
        metavar="FIRST-LAST",
        help="Users of kernels, one for each that runs; agents of one machine need ranges of their own.",
    )
    gid: int = setting(type=click.IntRange(1), default=60_000, help="Group of kernels and of these files.")
    tasks: int = setting(type=click.IntRange(16), default=4096, help="Per kernel.")
    work_size: int = setting(
        type=click.IntRange(0),
        default=0,
        help="Bytes on the disk of a kernel without the slot disk.  [default: a tenth of the file system]",
    )
    work_files: int = setting(
        type=click.IntRange(0),
        default=0,
        help="Files a kernel may have in its work directory.  [default: one for each 8 KiB of its slot disk]",
    )
    output_limit: int = setting(type=click.IntRange(1 << 16), default=64 << 20)
    name_server: tuple[str, ...] = setting(
        multiple=True, metavar="ADDRESS", help="For kernels with egress.  [default: those of /etc/resolv.conf]"
    )
    egress_allow: tuple[str, ...] = setting(
        multiple=True,
        metavar="CIDR",
        help="A network that kernels may reach although it is the node's own, or its addresses are not public.",
    )
    docker_host: str = setting(
        default="",
        metavar="unix://PATH",
        envvar=["RETINUE_AGENT_DOCKER_HOST", "DOCKER_HOST"],
        help="Engine for kernels with an image.  [default: the usual one, if it answers]",
    )
    containers: str = setting(
        type=click.Choice(("docker", "kubernetes")), default="docker", help="What runs kernels with an image."
    )
    kube_config: Path | None = setting(
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Access to the cluster, as kubectl has it.  [default: that of the pod that the agent runs in]",
    )
    kube_node: str = setting(default="", metavar="NAME", help="Name of this node in the cluster.")
    kube_namespace: str = setting(
        default="retinue-kernels", metavar="NAME", help="Where kernels are pods, and nothing else is."
    )
    kube_priority_class: str = setting(default="", metavar="NAME", help="Priority class of pods of kernels.")
    kube_pull_secret: tuple[str, ...] = setting(
        multiple=True, metavar="NAME", help="A secret that images are fetched with."
    )
    kube_runtime: Path | None = setting(
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="SOCKET",
        help="The node's container runtime (CRI), asked for the users and labels of images.",
    )
    # Not for operators: the only use is to measure what is around kernels, or to test it.
    null_kernels: bool = setting(is_flag=True, hidden=True, help="Kernels do nothing: for tests and benches.")
    registry_config: Path | None = setting(
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Credentials for image registries, in the format of Docker's config.json.",
    )
    unused_image_days: int = setting(
        type=click.IntRange(0),
        default=3,
        help="Remove images that the agent fetched and no kernel used for so many days, while little of the engine's disk is free; 0: never.",
    )
    image_free_percent: int = setting(
        type=click.IntRange(0, 100),
        default=20,
        help="The part of the engine's disk that unused images are removed to keep free.",
    )
    registry_allow: tuple[str, ...] = setting(
        multiple=True,
        metavar="CIDR",
        help="A network that image registries may be in although it is this node's own, link-local, or the fleet's.",
    )
    builds: bool = setting(
        "--build/--no-build",
        default=True,
        help="Build what kernels need and is not there yet, in the background (see `build`).",
    )
    development: bool = setting("--dev", is_flag=True, hidden=True, help="Development mode, for --failpoints.")
    failpoints: Path | None = declared(options.failpoints)
    metrics: str = declared(options.metrics)


@main.command(context_settings={"auto_envvar_prefix": "RETINUE_AGENT"})
@config_file.option("RETINUE_AGENT_CONFIG")
@bound(_Options)
@logs.options
def run(given: _Options, log_format: str, log_level: str) -> None:
    """Runs the agent until it is stopped; kernels run on then."""
    memory.load()
    import grpc.aio  # noqa: PLC0415  # takes long to import, and `--help` does not need it

    from retinue.agent import daemon  # noqa: PLC0415
    from retinue.agent.errors import KernelRuntimeError  # noqa: PLC0415
    from retinue.agent.network.errors import NetworkError  # noqa: PLC0415
    from retinue.agent.state.exclusive import InUseError  # noqa: PLC0415
    from retinue.rpc.enrollment.identity import IdentityError  # noqa: PLC0415

    logs.configure_logging(log_format, log_level)
    logs.log_start("retinue-agent", "grpcio")
    settings = _settings(given)
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
@config_file.option("RETINUE_AGENT_CONFIG")
@bound(_Options)
@logs.options
@click.pass_context
def _check_config(context: click.Context, /, given: _Options, log_format: str, log_level: str) -> None:
    """Prints what `run` would be given by a file and variables, and from where;
    ends with 1 or 2 if it would refuse it.
    """
    _settings(given)
    config_file.check(context)


def _settings(given: _Options) -> Settings:
    """Returns the settings that options mean. Raises ClickException."""
    from retinue.agent.docker.core.image_removal import RemovalPolicy  # noqa: PLC0415  # kept out of `--help`
    from retinue.agent.settings import KubernetesSettings, Settings, check  # noqa: PLC0415

    options.check_failpoints(given.failpoints, development=given.development)
    settings = Settings(
        agent_id=given.agent_id,
        state_dir=given.data_dir,
        scratch_dir=given.scratch_dir or given.data_dir / "scratch",
        managers=given.manager,
        listen=given.listen,
        direct_listen=given.direct_listen,
        join_token=options.secret(given.join_token),
        ca_fingerprint=given.ca_fingerprint or "",
        advertise=given.advertise,
        underlay_address=given.underlay_address,
        underlay_mtu=given.underlay_mtu or 0,
        slots=given.slots,
        reserve=given.reserve,
        hidden=given.hide,
        shown=given.show,
        uid=given.uid,
        users=given.uid_range,
        gid=given.gid,
        tasks=given.tasks,
        output_limit=given.output_limit,
        work_size=given.work_size,
        work_files=given.work_files,
        docker_host=given.docker_host,
        kubernetes=KubernetesSettings(
            given.kube_node,
            given.kube_namespace,
            given.kube_config,
            given.kube_priority_class,
            given.kube_pull_secret,
            given.kube_runtime,
        )
        if given.containers == "kubernetes"
        else None,
        null_kernels=given.null_kernels,
        registry_config=given.registry_config,
        image_removal=RemovalPolicy(given.unused_image_days, given.image_free_percent),
        name_servers=given.name_server,
        egress_allow=given.egress_allow,
        registry_allow=given.registry_allow,
        builds=given.builds,
        failpoints=given.failpoints,
        metrics=given.metrics,
    )
    try:
        check(settings)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    return settings


if __name__ == "__main__":
    main()
