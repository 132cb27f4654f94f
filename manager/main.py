"""Defines the command `retinue-manager`: serve, and administration on the manager's machine only.

Every option of `serve` can be given as a variable, `RETINUE_MANAGER_` and its name in capitals.
"""

from __future__ import annotations

import asyncio
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from retinue.manager import options
from retinue.manager.admin_commands import admin
from retinue.manager.domain.agents.timers import Timers
from retinue.manager.domain.session.pending_limit import DEFAULT_MAX_PENDING
from retinue.manager.gateway.core.rules import parse_domain
from retinue.manager.gateway.settings import GatewaySettings
from retinue.manager.health import health
from retinue.rpc import config_file, descriptors, failpoints, logs, memory
from retinue.rpc.bound_options import bound, declared, setting
from retinue.rpc.core.names import NAME_RULE, is_name
from retinue.rpc.options import check_failpoints, daemon, networks
from retinue.rpc.options import failpoints as failpoints_option
from retinue.rpc.options import metrics as metrics_option
from retinue.rpc.service_manager import notify_ready

if TYPE_CHECKING:
    import ipaddress

    from retinue.manager.settings import Settings

_TIMERS = Timers()
_CONNECT = "retinue.manager.main.connect"
_DOMAIN = re.compile(r"(?=.{1,190}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


@daemon("retinue-manager")
def main() -> None:
    """Manager of compute sessions."""


main.add_command(health)
main.add_command(admin)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What the command is given."""

    data_dir: Path = declared(options.data_directory)
    database_url: str = declared(options.database_url)
    listen: str = declared(options.listen)
    ca_seal_key_file: Path | None = setting(
        type=click.Path(path_type=Path, dir_okay=False),
        help="Key that the certificate authority is sealed with in the database, for further managers to take it from there.",
    )
    agent_listen: str = setting(
        default=options.DEFAULT_AGENT_LISTEN, metavar="HOST:PORT[,HOST:PORT…]", help="Port for agents."
    )
    direct_listen: str = setting(
        default="",
        metavar="HOST:PORT|none",
        help="Where SSH connections to sessions come whose clients do not reach the node.  [default: the host of --listen, any free port]",
    )
    advertise: str = setting(
        default="", metavar="HOST[,HOST…]", help="Names and addresses under which this manager is reached."
    )
    development: bool = setting(
        "--dev", envvar="RETINUE_MANAGER_DEV", is_flag=True, help="Make accounts and tokens: DIR/dev.json."
    )
    heartbeat: float = setting(default=_TIMERS.heartbeat, help="Seconds.")
    suspect_after: float = setting(default=_TIMERS.suspect_after, help="Seconds of silence.")
    lost_after: float = setting(default=_TIMERS.lost_after, help="Seconds of silence.")
    webhook_allow: str = setting(
        default="", metavar="CIDR[,CIDR…]", help="Addresses besides the public internet that webhooks may go to."
    )
    webhook_deny: str = setting(
        default="", metavar="CIDR[,CIDR…]", help="Addresses that webhooks may not go to, whatever is allowed."
    )
    session_subnets: str = setting(
        default="10.128.0.0/9",
        metavar="CIDR",
        help="Private addresses of cluster sessions: a network that kernels reach nothing else in. "
        "A session leaves out the networks of --egress-allow and the name servers of its agents.",
    )
    vxlan_port: int = setting(
        default=4789,
        type=click.IntRange(1, 65535),
        help="UDP port between nodes of cluster sessions, for nodes where another program has the usual one. Networks that there are keep theirs.",
    )
    keep_sessions: int = setting(
        default=options.DEFAULT_KEPT_DAYS,
        type=click.IntRange(0, 36_500),
        metavar="DAYS",
        help="Days after which sessions that ended are removed, with their output; 0: never.",
    )
    keep_audit: int = setting(
        default=options.DEFAULT_AUDIT_DAYS,
        type=click.IntRange(0, 36_500),
        metavar="DAYS",
        help="Days after which audit records are removed; 0: never. Of each category at most 250,000 are kept.",
    )
    keep_shares: int = setting(
        default=options.DEFAULT_SHARES_DAYS,
        type=click.IntRange(0, 36_500),
        metavar="DAYS",
        help="Days after which the hourly shares of users and projects are removed; 0: never.",
    )
    max_pending_sessions: int = setting(
        default=DEFAULT_MAX_PENDING,
        type=click.IntRange(0),
        help="How many sessions of a user may wait, unless a quota of the user says so.",
    )
    max_strangers: int = setting(
        default=options.DEFAULT_MAX_STRANGERS,
        type=click.IntRange(1, 65535),
        help="Connections of an address, or of an IPv6 network of 64 bits, whose callers have not authenticated; "
        "beyond it, the oldest of them are ended. All addresses may have four times as many.",
    )
    endpoint_domain: str = setting(
        default="localhost", metavar="DOMAIN", help="Domain of the host names of endpoints; it leads to the routers."
    )
    prometheus_url: str = setting(
        envvar="RETINUE_MANAGER_PROMETHEUS_URL",
        default="",
        metavar="URL",
        help="Prometheus server that endpoints may scale by queries of; a user who may make an endpoint may ask any query.",
    )
    http_listen: str = setting(
        default="", metavar="HOST:PORT", help="Port for browsers; without it there is no HTTP to ports of sessions."
    )
    http_domain: str = setting(
        default="localhost",
        metavar="NAME[:PORT]",
        help="Domain whose hosts, *.NAME, lead to that port; PORT is the one that browsers see, if it is another.",
    )
    http_certificate: Path | None = setting(
        type=click.Path(path_type=Path, dir_okay=False),
        help="Certificate for *.NAME with its chain, PEM; by default the manager's own authority issues one.",
    )
    http_key: Path | None = setting(
        type=click.Path(path_type=Path, dir_okay=False), help="Key of that certificate, PEM."
    )
    http_direct: bool = setting(
        "--http-direct/--no-http-direct",
        default=True,
        help="Whether browsers' bytes go to nodes unencrypted, past manager and agent, where that is possible.",
    )
    console: bool = setting(
        "--console/--no-console", default=True, help="Whether there is a web console at that port, at console.NAME."
    )
    failpoints: Path | None = declared(failpoints_option)
    metrics: str = declared(metrics_option)


@main.command("serve", context_settings={"auto_envvar_prefix": options.ENVIRONMENT_PREFIX})
@options.config
@bound(_Options)
@logs.options
def _serve(given: _Options, log_format: str, log_level: str) -> None:
    """Serve until SIGTERM or SIGINT."""
    logs.configure_logging(log_format, log_level)
    logs.log_start("retinue-manager", "grpcio", "psycopg")
    memory.load()
    settings = _settings(given)
    from retinue.manager.administration import EXPECTED  # noqa: PLC0415  # takes long, and `--help` does not need it

    descriptors.raise_limit()
    try:
        failpoints.switch_on(settings.failpoints)
        asyncio.run(_until_signalled(settings))
    except EXPECTED as error:
        raise logs.DaemonError(str(error)) from error


@main.group("config")
def _config() -> None:
    """Check the configuration."""


@_config.command(
    "check", cls=config_file.CheckCommand, context_settings={"auto_envvar_prefix": options.ENVIRONMENT_PREFIX}
)
@options.config
@bound(_Options)
@logs.options
@click.option(
    "--connect",
    is_flag=True,
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({_CONNECT: value}),
    help="Say what a start would find in the database, too; nothing is changed.",
)
@click.pass_context
def _check_config(context: click.Context, /, given: _Options, log_format: str, log_level: str) -> None:
    """Print what `serve` would be given by a file and variables, and from where;
    end with 1 or 2 if it would refuse it. The output is a file in TOML, but that secrets are hidden.
    """
    settings = _settings(given)
    config_file.check(context)
    if context.meta[_CONNECT]:
        from retinue.manager import administration  # noqa: PLC0415

        administration.run(administration.look_at_database(settings.data_directory, settings.database_url))
    from retinue.manager.installation import read_seal_key  # noqa: PLC0415  # kept out of `--help`

    try:
        read_seal_key(settings.ca_seal_key_file)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _settings(given: _Options) -> Settings:
    """Returns the settings that options mean. Raises UsageError."""
    from retinue.manager.settings import Settings  # noqa: PLC0415  # kept out of `--help`
    from retinue.rpc.core.addresses import AddressPolicy  # noqa: PLC0415

    if not 0 < given.heartbeat < given.suspect_after < given.lost_after:
        raise click.UsageError("heartbeat, suspect-after and lost-after must be positive and grow in this order")
    check_failpoints(given.failpoints, development=given.development)
    _ports("--listen", given.listen)
    if len(_ports("--agent-listen", given.agent_listen)) > 1:
        raise click.UsageError("--agent-listen: the port must be the same at all addresses: agents are told one")
    return Settings(
        data_directory=given.data_dir,
        listen=given.listen,
        agent_listen=given.agent_listen,
        direct_listen=given.direct_listen,
        advertise=tuple(host.strip() for host in given.advertise.split(",") if host.strip()),
        database_url=given.database_url,
        ca_seal_key_file=given.ca_seal_key_file,
        development=given.development,
        timers=Timers(given.heartbeat, given.suspect_after, given.lost_after),
        webhook_addresses=AddressPolicy(
            networks("--webhook-allow", given.webhook_allow), networks("--webhook-deny", given.webhook_deny)
        ),
        session_subnets=_pool(given.session_subnets),
        vxlan_port=given.vxlan_port,
        keep_sessions_days=given.keep_sessions,
        keep_audit_days=given.keep_audit,
        keep_shares_days=given.keep_shares,
        max_pending_sessions=given.max_pending_sessions,
        max_strangers=given.max_strangers,
        endpoint_domain=_domain(given.endpoint_domain),
        prometheus_url=_server_url(given.prometheus_url),
        gateway=_gateway(
            given.http_listen,
            given.http_domain,
            given.http_certificate,
            given.http_key,
            direct=given.http_direct,
            console=given.console,
        ),
        failpoints=given.failpoints,
        metrics=given.metrics,
    )


def _ports(option: str, text: str) -> set[int]:
    from retinue.rpc.enrollment.managers import split_address  # noqa: PLC0415  # kept out of `--help`

    try:
        return {split_address(address)[1] for address in options.listen_addresses(text)}
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error


def _server_url(url: str) -> str:
    found = urlsplit(url)
    if url and (found.scheme not in {"http", "https"} or not found.hostname or found.query or found.fragment):
        raise click.UsageError("--prometheus-url must be like http://HOST:PORT")
    return url


def _gateway(
    listen: str, domain: str, certificate: Path | None, key: Path | None, *, direct: bool, console: bool
) -> GatewaySettings | None:
    if (certificate is None) != (key is None):
        raise click.UsageError("--http-certificate and --http-key go together")
    try:
        name, number = parse_domain(domain)
    except ValueError as error:
        raise click.UsageError(f"--http-domain: {error}") from error
    if not listen:
        return None
    pair = None if certificate is None or key is None else (certificate, key)
    return GatewaySettings(listen, name, number, pair, direct, console)


def _domain(text: str) -> str:
    if _DOMAIN.fullmatch(text) is None:
        raise click.UsageError(f"--endpoint-domain: {text!r} is no domain in small letters")
    return text


def _pool(text: str) -> ipaddress.IPv4Network:
    from retinue.manager.domain.session.ipam import parse_pool  # noqa: PLC0415  # kept out of `--help`

    try:
        return parse_pool(text)
    except ValueError as error:
        raise click.UsageError(f"--session-subnets: {error}") from error


async def _until_signalled(settings: Settings) -> None:
    from retinue.manager.daemon import Ready, serve  # noqa: PLC0415  # kept out of `--help`

    memory.prepare()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, logs.log_tasks)

    def ready(at: Ready) -> None:
        memory.keep_what_is_there()
        logs.say(f"ready: users at {at.endpoint}, agents at {at.agent_endpoint}")
        if at.credentials is not None:
            logs.say(f"credentials for development: {settings.data_directory / 'dev.json'}")
        notify_ready()

    await serve(settings, stop, ready)


@main.command("create-admin")
@click.argument("name")
@options.some_config
@options.data_directory
@options.database_url
def _create_admin(name: str, data_dir: Path, database_url: str) -> None:
    """Make the administrator NAME, if there is none of that name, a member of project `default`,
    and print a new token once.
    """
    if not is_name(name):
        raise click.UsageError(f"NAME must be {NAME_RULE}")
    from retinue.manager import administration  # noqa: PLC0415  # kept out of `--help`

    administration.run(administration.create_admin(name, data_dir, database_url))


@main.command("revoke-agent")
@click.argument("agent_id")
@options.some_config
@options.data_directory
@options.database_url
def _revoke_agent(agent_id: str, data_dir: Path, database_url: str) -> None:
    """Make the certificate of agent AGENT_ID worthless, within seconds.

    Its sessions end, or are run again on other agents if they may be, after the time in which an agent is lost: by then
    it has stopped by itself what may be run again. Whatever else still runs on the node is
    left to the node's administrator.
    """
    from retinue.manager import administration  # noqa: PLC0415  # kept out of `--help`

    administration.run(administration.revoke_agent(agent_id, data_dir, database_url))


@main.command("renew-ca")
@options.some_config
@options.data_directory
@options.database_url
def _renew_ca(data_dir: Path, database_url: str) -> None:
    """Give the certificate authority a new certificate, for ten years.

    Its key stays, and the former certificate is good beside it until it ends: what agents, routers and clients trust
    now, they trust until then. Managers take the new one up within a minute, agents and routers with their next
    certificate, within a day. Copy ca.pem to clients before the former one ends.
    """
    from retinue.manager import administration  # noqa: PLC0415  # kept out of `--help`

    administration.run(administration.renew_ca(data_dir, database_url))


if __name__ == "__main__":
    main()
