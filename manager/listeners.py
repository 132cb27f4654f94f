"""The manager's two ports: one server, one set of services, TLS on both, and certificates of agents on one of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from retinue.manager import options
from retinue.manager.agent_rpc.dialer import WINDOW_BYTES, Dialer
from retinue.manager.agent_rpc.relay import ActivityListener, Forwarder
from retinue.manager.api.admin.accounts import AccountServicer
from retinue.manager.api.admin.enrollment import EnrollmentServicer
from retinue.manager.api.admin.fleet import FleetServicer
from retinue.manager.api.endpoints.servicer import EndpointServicer
from retinue.manager.api.sessions.servicer import SessionServicer
from retinue.manager.api.sessions.templates import TemplateServicer
from retinue.manager.api.streams.apps import AppServicer
from retinue.manager.api.streams.kernel_service import KernelServicer
from retinue.manager.domain import errors
from retinue.manager.domain.endpoints.hosts import OwnHosts
from retinue.manager.domain.session.pending_limit import DEFAULT_MAX_PENDING
from retinue.manager.identity.authority import MANAGER_DNS, Authority
from retinue.manager.identity.endpoint_tokens import EndpointTokenSigner
from retinue.manager.identity.own_certificate import OwnCertificate
from retinue.manager.server import reflection
from retinue.manager.server.connection_watch import ConnectionCalls, watching
from retinue.manager.server.interceptors import CallInterceptor
from retinue.manager.v1 import (
    account_service_pb2,
    account_service_pb2_grpc,
    app_service_pb2,
    app_service_pb2_grpc,
    endpoint_service_pb2,
    endpoint_service_pb2_grpc,
    enrollment_service_pb2,
    enrollment_service_pb2_grpc,
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    kernel_service_pb2,
    kernel_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
    template_service_pb2,
    template_service_pb2_grpc,
)
from retinue.rpc.direct_port import DirectPorts, listen_address
from retinue.rpc.sockets import listen_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from retinue.manager.domain.session.secrets import SessionSecrets
    from retinue.manager.endpoints.controller import EndpointController
    from retinue.manager.gateway.serving import Gateway
    from retinue.manager.server.auditing import Auditor
    from retinue.manager.server.authentication import Authenticator
    from retinue.manager.server.calls import Browsers
    from retinue.manager.store.journal.journal_tail import JournalTail
    from retinue.manager.store.postgres.database import Database

_log = logging.getLogger(__name__)

# Until a connection has said who it is for, and that it speaks HTTP/2.
HANDSHAKE_SECONDS = 10
# How long a connection may be open without a call.
IDLE_SECONDS = 60
SERVER_OPTIONS = (
    # Two managers on one port would share it without a word.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Below what clients are configured for: pings that come sooner end the connection.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # Without probing, a reader that does not read costs 100 KB instead of megabytes.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    # A connection on which nothing is said costs a descriptor: two minutes by default.
    ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
    # A connection without a call, also before the first one; a client that still wants it
    # opens another with its next call.
    ("grpc.max_connection_idle_ms", 1000 * IDLE_SECONDS),
    # From this age on, new calls of a client come by a new connection, perhaps to another manager. Without a grace open
    # streams last: a shell or a tunnel could not be resumed.
    ("grpc.max_connection_age_ms", 3_600_000),
)
SERVICES = (
    session_service_pb2.DESCRIPTOR.services_by_name["SessionService"].full_name,
    kernel_service_pb2.DESCRIPTOR.services_by_name["KernelService"].full_name,
    app_service_pb2.DESCRIPTOR.services_by_name["AppService"].full_name,
    template_service_pb2.DESCRIPTOR.services_by_name["TemplateService"].full_name,
    endpoint_service_pb2.DESCRIPTOR.services_by_name["EndpointService"].full_name,
    fleet_service_pb2.DESCRIPTOR.services_by_name["FleetService"].full_name,
    account_service_pb2.DESCRIPTOR.services_by_name["AccountService"].full_name,
    enrollment_service_pb2.DESCRIPTOR.services_by_name["EnrollmentService"].full_name,
    health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
    reflection.V1,
    reflection.V1ALPHA,
)


class Health(HealthServicer):  # type: ignore[misc]  # the library has no types
    """The health service; of the service `database` it says in words why a manager is not ready."""

    reason = ""

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:  # noqa: N802  # the library's name
        """Returns the state of a service. Raises Unavailable with the reason for `database`."""
        if request.service == options.DATABASE_SERVICE and self.reason:
            raise errors.Unavailable(self.reason)
        answer: health_pb2.HealthCheckResponse = await super().Check(request, context)
        return answer


@dataclass(frozen=True, slots=True)
class Ports:
    """A server that serves. `endpoint` and `agent_endpoint` are `host:port`, as advertised; `local` is where
    this machine itself reaches the port for users.
    """

    health: Health
    endpoint: str
    agent_endpoint: str
    local: str

    async def set_serving(self, *, serving: bool, reason: str = "") -> None:
        """Sets the state that the health service reports, of every service, and why it is not a better one."""
        self.health.reason = reason
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if serving else statuses.NOT_SERVING
        for service in ("", options.DATABASE_SERVICE, *SERVICES):
            await self.health.set(service, status)


@contextlib.asynccontextmanager
async def serving(
    *,
    database: Database,
    tail: JournalTail,
    authority: Authority,
    authenticator: Authenticator,
    dialer: Dialer,
    secrets: SessionSecrets,
    interactions: ActivityListener | None = None,
    moved: Callable[[], None],
    endpoints: Callable[[], EndpointController | None] = lambda: None,
    endpoint_domain: str = "localhost",
    prometheus: bool = False,
    listen: str,
    agent_listen: str,
    advertise: Sequence[str],
    grace_seconds: float,
    direct_listen: str = "",
    gateway: Gateway | None = None,
    console_origin: str = "",
    max_pending_sessions: int = DEFAULT_MAX_PENDING,
    auditor: Auditor | None = None,
    browsers: Browsers | None = None,
    max_strangers: int = options.DEFAULT_MAX_STRANGERS,
) -> AsyncIterator[Ports]:
    """Serves for as long as the block lasts; health reports NOT_SERVING until it is set otherwise.

    `secrets` are those of sessions; `interactions` records what is exchanged with these, `moved` is called when an
    agent listens somewhere else, and `endpoints` returns the controller of endpoints while this process leads;
    their host names are in `endpoint_domain`, and with `prometheus` they may scale by queries. `listen` and
    `agent_listen` are `host:port`, or several with commas. SSH connections to
    sessions come at `direct_listen`, by default at any free port, and `gateway` is where users reach ports of
    sessions over HTTP, with the web console at `console_origin` if it is not empty. `auditor` records calls, and those
    of the console as of `browsers`. An address may have `max_strangers` connections whose callers have not
    authenticated. At the end, streams end first, and calls
    in progress get `grace_seconds`.
    Raises OSError when a port cannot be had.
    """
    stopping = asyncio.Event()
    direct = DirectPorts()
    calls = ConnectionCalls()
    interceptor = CallInterceptor(authenticator, stopping, calls, auditor=auditor, browsers=browsers)
    server = grpc.aio.server(interceptors=[interceptor], options=SERVER_OPTIONS)
    # The authority's certificate is in the chain for nodes that enrol: they know it by its fingerprint only.
    listens, agent_listens = options.listen_addresses(listen), options.listen_addresses(agent_listen)
    named = [*advertise, *_named_hosts(*listens, *agent_listens)]
    own = OwnCertificate(authority, lambda: authority.issue_server(named))
    users, agents = (partial(_credentials, authority, own, nodes=nodes) for nodes in (False, True))
    user_ports, agent_ports = _bind(server, listens, users), _bind(server, agent_listens, agents)
    port, agent_port = user_ports[0], agent_ports[0]
    health = Health()
    endpoint = _advertised(listens[0], port, advertise)
    agent_endpoint = _advertised(agent_listens[0], agent_port, advertise)
    ports = Ports(health, endpoint, agent_endpoint, _local(listens[0], port))
    await ports.set_serving(serving=False)
    # An empty host says: the one that was dialled. Of several, an agent's network may have that one only.
    anywhere = len(agent_listens) > 1 or _host(agent_listens[0]) in options.LOCAL_HOSTS
    for_agents = f":{agent_port}" if anywhere else ports.agent_endpoint
    forwarder = Forwarder(dialer, interactions)
    addresses = None if gateway is None else gateway.address.public
    session_service_pb2_grpc.add_SessionServiceServicer_to_server(
        SessionServicer(database, tail, max_pending_sessions=max_pending_sessions), server
    )
    kernel_service_pb2_grpc.add_KernelServiceServicer_to_server(
        KernelServicer(database, forwarder, secrets.ssh, direct, gateway), server
    )
    app_service_pb2_grpc.add_AppServiceServicer_to_server(AppServicer(database, forwarder, addresses), server)
    template_service_pb2_grpc.add_TemplateServiceServicer_to_server(TemplateServicer(database), server)
    names = {*named, socket.gethostname(), MANAGER_DNS}
    port_domain = "" if gateway is None else gateway.address.domain.lower()
    hosts = OwnHosts(endpoint_domain, port_domain, frozenset(name.lower() for name in names))
    endpoint_service_pb2_grpc.add_EndpointServiceServicer_to_server(
        EndpointServicer(database, tail, endpoints, EndpointTokenSigner(authority), hosts, prometheus=prometheus),
        server,
    )
    fleet_service_pb2_grpc.add_FleetServiceServicer_to_server(FleetServicer(database, authority, tail.wake), server)
    account_service_pb2_grpc.add_AccountServiceServicer_to_server(
        AccountServicer(database, authenticator, tail.wake, console_origin), server
    )
    enrollment_service_pb2_grpc.add_EnrollmentServiceServicer_to_server(
        EnrollmentServicer(database, authority, agent_endpoint=lambda: for_agents, moved=moved), server
    )
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.ReflectionServicer(SERVICES).add_to(server)
    if (address := listen_address(direct_listen, listens[0])) is not None:
        direct.open(*address)
    await server.start()
    _log.info("serving users at %s and agents at %s", ports.endpoint, ports.agent_endpoint)
    try:
        with watching(calls, {*user_ports, *agent_ports}, max_strangers):
            yield ports
    finally:
        await health.enter_graceful_shutdown()
        stopping.set()
        await direct.close()
        await server.stop(grace_seconds)
        _log.info("ports closed")


def _credentials(authority: Authority, own: OwnCertificate, *, nodes: bool) -> grpc.ServerCredentials:
    """Returns credentials that show the manager's certificate as it is at each handshake; with `nodes`, only agents and
    routers are let in.
    """

    def configuration() -> tuple[bytes, bytes, bytes]:
        certificate, roots = own.current(), authority.certificate
        return certificate.key, certificate.certificate + roots, roots

    def made(key: bytes, chain: bytes, roots: bytes) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(key, chain)], roots if nodes else None)

    shown = configuration()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        # Called by gRPC before every handshake, in a thread of its own; None says that nothing changed.
        nonlocal shown
        if (current := configuration()) == shown:
            return None
        shown = current
        return made(*current)

    # The stubs do not know that None is an answer: https://grpc.github.io/grpc/python/grpc.html says so.
    fetcher: Any = fetch
    return grpc.dynamic_ssl_server_credentials(made(*shown), fetcher, require_client_authentication=nodes)


def _bind(
    server: grpc.aio.Server, addresses: Sequence[str], credentials: Callable[[], grpc.ServerCredentials]
) -> list[int]:
    """Listens at each address, and returns their ports. Raises OSError.

    Each address has `credentials` of its own: gRPC takes the first configuration of them once.
    """
    ports: list[int] = []
    for address in addresses:
        # Port 0 is any that is free, the same at all addresses.
        wanted = f"{_host(address)}:{ports[0]}" if ports and address.endswith(":0") else address
        try:
            port = server.add_secure_port(wanted, credentials())
        except RuntimeError as error:
            raise listen_error(wanted) from error
        if port == 0:
            raise listen_error(wanted)
        ports.append(port)
    return ports


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _named_hosts(*addresses: str) -> list[str]:
    return [_host(address).strip("[]") for address in addresses if _host(address) not in options.LOCAL_HOSTS]


def _local(address: str, port: int) -> str:
    return f"{options.LOCAL_HOSTS.get(_host(address), _host(address))}:{port}"


def _advertised(address: str, port: int, advertise: Sequence[str]) -> str:
    host = _host(address)
    if advertise:
        host = f"[{advertise[0]}]" if ":" in advertise[0] else advertise[0]
    elif host in options.LOCAL_HOSTS:
        host = "127.0.0.1"
    return f"{host}:{port}"
