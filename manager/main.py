"""The command `retinue-manager`: serve, and what is done on the manager's machine only."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import re
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import click

from manager import options
from manager.fleet.supervisor import Timers
from manager.gateway.rules import parse_domain
from manager.gateway.serving import GatewaySettings
from manager.health import health
from manager.identity.tokens import TOKEN_PREFIX, hash_secret, new_secret
from manager.logs import configure_logging
from manager.server import BusyError, Ready, embedded_server, prepare_directory, serve
from manager.settings import Settings
from manager.store import accounts, agents
from manager.store.database import Database, StoreUnavailable
from manager.store.embedded import EmbeddedServerError
from manager.store.migrations import SchemaTooNewError, WrongEncodingError, migrate
from manager.webhooks.rules import AddressPolicy, Network

_TIMERS = Timers()
_EXPECTED = (
    BusyError,
    EmbeddedServerError,
    SchemaTooNewError,
    WrongEncodingError,
    StoreUnavailable,
    OSError,
    ValueError,
)

_database_url = click.option(
    "--database-url",
    envvar="RETINUE_DATABASE_URL",
    default="",
    help="PostgreSQL to use instead of the embedded one: postgresql://…",
)


@click.group()
def main() -> None:
    """Manager of compute sessions."""


main.add_command(health)


@main.command("serve")
@options.data_directory
@_database_url
@options.listen
@click.option(
    "--agent-listen",
    envvar="RETINUE_AGENT_LISTEN",
    default=options.DEFAULT_AGENT_LISTEN,
    show_default=True,
    help="Port for agents.",
)
@click.option(
    "--advertise",
    envvar="RETINUE_ADVERTISE",
    default="",
    metavar="HOST[,HOST…]",
    help="Names and addresses under which this manager is reached.",
)
@click.option(
    "--dev", "development", envvar="RETINUE_DEV", is_flag=True, help="Make accounts and tokens: DIR/dev.json."
)
@click.option("--heartbeat", envvar="RETINUE_HEARTBEAT", default=_TIMERS.heartbeat, show_default=True, help="Seconds.")
@click.option(
    "--suspect-after",
    envvar="RETINUE_SUSPECT_AFTER",
    default=_TIMERS.suspect_after,
    show_default=True,
    help="Seconds of silence.",
)
@click.option(
    "--lost-after",
    envvar="RETINUE_LOST_AFTER",
    default=_TIMERS.lost_after,
    show_default=True,
    help="Seconds of silence.",
)
@click.option(
    "--webhook-allow",
    envvar="RETINUE_WEBHOOK_ALLOW",
    default="",
    metavar="CIDR[,CIDR…]",
    help="Addresses besides the public internet that webhooks may go to.",
)
@click.option(
    "--webhook-deny",
    envvar="RETINUE_WEBHOOK_DENY",
    default="",
    metavar="CIDR[,CIDR…]",
    help="Addresses that webhooks may not go to, whatever is allowed.",
)
@click.option(
    "--http-listen",
    envvar="RETINUE_HTTP_LISTEN",
    default="",
    metavar="HOST:PORT",
    help="Port for browsers; without it there is no HTTP to ports of sessions.",
)
@click.option(
    "--http-domain",
    envvar="RETINUE_HTTP_DOMAIN",
    default="localhost",
    show_default=True,
    metavar="NAME[:PORT]",
    help="Domain whose hosts, *.NAME, lead to that port; PORT is the one that browsers see, if it is another.",
)
@click.option(
    "--http-certificate",
    envvar="RETINUE_HTTP_CERTIFICATE",
    default=None,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Certificate for *.NAME with its chain, PEM; by default the manager's own authority issues one.",
)
@click.option(
    "--http-key",
    envvar="RETINUE_HTTP_KEY",
    default=None,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Key of that certificate, PEM.",
)
@click.option("--log-json", envvar="RETINUE_LOG_JSON", is_flag=True, help="Log lines as JSON.")
@click.option(
    "--log-level",
    envvar="RETINUE_LOG_LEVEL",
    default="INFO",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
)
def _serve(  # noqa: PLR0917  # called by the parser, by name
    data_dir: Path,
    database_url: str,
    listen: str,
    agent_listen: str,
    advertise: str,
    development: bool,
    heartbeat: float,
    suspect_after: float,
    lost_after: float,
    webhook_allow: str,
    webhook_deny: str,
    http_listen: str,
    http_domain: str,
    http_certificate: Path | None,
    http_key: Path | None,
    log_json: bool,
    log_level: str,
) -> None:
    """Serve until SIGTERM or SIGINT."""
    if not 0 < heartbeat < suspect_after < lost_after:
        raise click.UsageError("heartbeat, suspect-after and lost-after must be positive and grow in this order")
    configure_logging(as_json=log_json, level=log_level)
    settings = Settings(
        data_directory=data_dir,
        listen=listen,
        agent_listen=agent_listen,
        advertise=tuple(host.strip() for host in advertise.split(",") if host.strip()),
        database_url=database_url,
        development=development,
        timers=Timers(heartbeat, suspect_after, lost_after),
        webhook_addresses=AddressPolicy(
            _networks("--webhook-allow", webhook_allow), _networks("--webhook-deny", webhook_deny)
        ),
        gateway=_gateway(http_listen, http_domain, http_certificate, http_key),
    )
    # What was loaded stays to the end: looking through it again and again would hold up everything for tenths of a second.
    gc.collect()
    gc.freeze()
    try:
        asyncio.run(_until_signalled(settings))
    except _EXPECTED as error:
        raise click.ClickException(str(error)) from error


def _gateway(listen: str, domain: str, certificate: Path | None, key: Path | None) -> GatewaySettings | None:
    if (certificate is None) != (key is None):
        raise click.UsageError("--http-certificate and --http-key go together")
    try:
        name, number = parse_domain(domain)
    except ValueError as error:
        raise click.UsageError(f"--http-domain: {error}") from error
    if not listen:
        return None
    pair = None if certificate is None or key is None else (certificate, key)
    return GatewaySettings(listen, name, number, pair)


def _networks(option: str, text: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error


async def _until_signalled(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def ready(at: Ready) -> None:
        click.echo(f"ready: users at {at.endpoint}, agents at {at.agent_endpoint}", err=True)
        if at.credentials is not None:
            click.echo(f"credentials for development: {settings.data_directory / 'dev.json'}", err=True)

    await serve(settings, stop, ready)


@main.command("create-admin")
@click.argument("name")
@options.data_directory
@_database_url
def _create_admin(name: str, data_dir: Path, database_url: str) -> None:
    """Make the administrator NAME, if there is none of that name, and print a new token once."""
    secret = new_secret(TOKEN_PREFIX)

    async def create() -> None:
        async with _database(data_dir, database_url) as database, database.transaction() as tx:
            user = await accounts.get_user(tx, name)
            if user is None:
                await accounts.create_user(tx, name, "ADMIN", {})
            elif user.role != "ADMIN":
                raise click.ClickException(f"{name} is a user without administration")
            await accounts.create_token(tx, name, hash_secret(secret), description="made by create-admin", ttl=None)

    if not _is_name(name):
        raise click.UsageError("NAME must be 1-63 characters a-z, 0-9 and -, with no dash first or last")
    _run(create())
    click.echo(secret)


@main.command("revoke-agent")
@click.argument("agent_id")
@options.data_directory
@_database_url
def _revoke_agent(agent_id: str, data_dir: Path, database_url: str) -> None:
    """Make the certificate of agent AGENT_ID worthless, within seconds."""

    async def revoke() -> None:
        async with _database(data_dir, database_url) as database, database.transaction() as tx:
            if not await agents.revoke(tx, agent_id):
                raise click.ClickException(f"no agent {agent_id} is enrolled")

    _run(revoke())


def _run(work: Coroutine[Any, Any, None]) -> None:
    configure_logging(as_json=False, level="WARNING")
    try:
        asyncio.run(work)
    except _EXPECTED as error:
        raise click.ClickException(str(error)) from error


@contextlib.asynccontextmanager
async def _database(data_dir: Path, url: str) -> AsyncIterator[Database]:
    """The database, also while a manager runs: its embedded server is used and left running."""
    server = None
    if not url:
        prepare_directory(data_dir)
        server = embedded_server(Settings(data_directory=data_dir))
        url = await server.start()
    try:
        await migrate(url)
        database = Database(url)
        try:
            yield database
        finally:
            await database.dispose()
    finally:
        if server is not None and server.started_here:
            await server.stop()


def _is_name(name: str) -> bool:
    return re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", name) is not None


if __name__ == "__main__":
    main()
