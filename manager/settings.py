"""The settings of a manager, given at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path

from retinue.manager.domain.agents.timers import Timers
from retinue.manager.domain.session.ipam import POOL, VXLAN_PORT
from retinue.manager.domain.session.pending_limit import DEFAULT_MAX_PENDING
from retinue.manager.gateway.settings import GatewaySettings
from retinue.manager.options import (
    DEFAULT_AGENT_LISTEN,
    DEFAULT_AUDIT_DAYS,
    DEFAULT_DATA_DIRECTORY,
    DEFAULT_KEPT_DAYS,
    DEFAULT_LISTEN,
    DEFAULT_MAX_STRANGERS,
    DEFAULT_SHARES_DAYS,
)
from retinue.rpc.core.addresses import PUBLIC_ONLY, AddressPolicy


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, with its default."""

    # Holds the certificate authority and, unless `database_url` is given, the database.
    data_directory: Path = DEFAULT_DATA_DIRECTORY
    # Addresses of the port for users and of the one for agents, `host:port[,host:port…]`; port 0 means any that is
    # free, the same at all of them.
    listen: str = DEFAULT_LISTEN
    agent_listen: str = DEFAULT_AGENT_LISTEN
    # Where SSH connections to sessions come directly; empty: any free port at the host of `listen`; "none": nowhere.
    direct_listen: str = ""
    # Names and addresses under which the manager is reached; the first one is advertised.
    advertise: tuple[str, ...] = ()
    # A PostgreSQL server of one's own; empty: the embedded one.
    database_url: str = field(default="", repr=False)
    # Holds the key that the certificate authority is sealed with in the database; None: it is not kept there.
    ca_seal_key_file: Path | None = None
    # Makes accounts and tokens by itself and writes them to `dev.json`.
    development: bool = False
    timers: Timers = field(default_factory=Timers)
    # Where webhooks may go besides the public internet, and where not.
    webhook_addresses: AddressPolicy = PUBLIC_ONLY
    # Sessions that ended are removed after so many days; 0: never.
    keep_sessions_days: int = DEFAULT_KEPT_DAYS
    # Audit records are removed after so many days; 0: only when there are too many.
    keep_audit_days: int = DEFAULT_AUDIT_DAYS
    # Hourly shares are removed after so many days; 0: never.
    keep_shares_days: int = DEFAULT_SHARES_DAYS
    # How many sessions of a user may wait when no quota says it.
    max_pending_sessions: int = DEFAULT_MAX_PENDING
    # How many connections of an address may be there whose callers have not authenticated.
    max_strangers: int = DEFAULT_MAX_STRANGERS
    # HTTP to ports of sessions; None: there is none.
    gateway: GatewaySettings | None = None
    # What host names of endpoints end in.
    endpoint_domain: str = "localhost"
    # Where the networks of sessions are.
    session_subnets: IPv4Network = POOL
    # UDP port of VXLAN that new networks of sessions have.
    vxlan_port: int = VXLAN_PORT
    # Base of the API of a Prometheus server that scaling metrics may ask queries of; empty: none.
    prometheus_url: str = ""
    # Steps fail as files in this directory say; None for none.
    failpoints: Path | None = None
    # Where Prometheus reads the manager's own metrics; empty: nowhere.
    metrics: str = ""
    # How long calls under way may take to finish when the manager stops.
    grace_seconds: float = 2.0
