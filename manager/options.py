"""Options that commands share, and their defaults. Little is imported here:
health checks are made every few seconds.
"""

from __future__ import annotations

from pathlib import Path

import click

from retinue.rpc import config_file

ENVIRONMENT_PREFIX = "RETINUE_MANAGER"
DEFAULT_DATA_DIRECTORY = Path("/var/lib/retinue/manager")
DEFAULT_LISTEN, DEFAULT_AGENT_LISTEN = "0.0.0.0:7440", "0.0.0.0:7441"
DEFAULT_KEPT_DAYS = 30
DEFAULT_AUDIT_DAYS = 365
DEFAULT_SHARES_DAYS = 35
DEFAULT_MAX_STRANGERS = 256
"""Of an address, or of an IPv6 network: an office or a load balancer is one, and each connection is a stranger for
milliseconds, until its caller has authenticated. They hold 12 MB at 46 KB each.
"""
LOCAL_HOSTS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}  # noqa: S104  # compared with, not bound to
"""Hosts that stand for all addresses of a machine, and where the machine itself reaches what listens there."""
DATABASE_SERVICE = "database"
"""What the health service calls the database: a check of it fails with words while it takes no changes."""

config = config_file.option(f"{ENVIRONMENT_PREFIX}_CONFIG")
some_config = config_file.option(f"{ENVIRONMENT_PREFIX}_CONFIG", partial=True)
"""The file of `serve` for other commands, which read a few of its keys."""
data_directory = click.option(
    "--data-dir",
    envvar=f"{ENVIRONMENT_PREFIX}_DATA_DIR",
    default=DEFAULT_DATA_DIRECTORY,
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the certificate authority and the embedded database.",
)
database_url = click.option(
    "--database-url",
    envvar=f"{ENVIRONMENT_PREFIX}_DATABASE_URL",
    default="",
    help="PostgreSQL to use instead of the embedded one: postgresql://…",
)
listen = click.option(
    "--listen",
    envvar=f"{ENVIRONMENT_PREFIX}_LISTEN",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="HOST:PORT[,HOST:PORT…]",
    help="Port for users.",
)


def listen_addresses(text: str) -> list[str]:
    """Returns the addresses of `HOST:PORT[,HOST:PORT…]`, at least one."""
    return [address.strip() for address in text.split(",")]
