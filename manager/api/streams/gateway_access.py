"""CreatePortTicket and CreatePortTunnel: find the port among those that are declared,
and let a browser or a program in through the gateway. CreateConsoleTicket lets a browser in to the console, as well.
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from retinue.manager.api.visibility import find_session, record_access
from retinue.manager.domain import errors, preconditions
from retinue.manager.domain.session.events import AccessMethod
from retinue.manager.domain.session.service_ports import TCP
from retinue.manager.gateway.core.rules import (
    OPEN_PATH,
    TICKET_PREFIX,
    TICKET_SECONDS,
    TUNNEL_SECONDS,
    Address,
    Target,
    wrong_path,
)
from retinue.manager.identity.tokens import CONSOLE_TICKET_PREFIX, hash_secret, new_secret
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.journal_positions import with_position
from retinue.manager.session import kernel_locator
from retinue.manager.store.access import console_tickets, port_access
from retinue.manager.store.accounts import accounts
from retinue.manager.v1 import account_service_pb2
from retinue.manager.v1 import kernel_service_pb2 as pb

if TYPE_CHECKING:
    import uuid

    from retinue.manager.gateway.serving import Gateway
    from retinue.manager.store.postgres.database import Database, Transaction

_log = logging.getLogger(__name__)


async def find_port(tx: Transaction, session: str, port: str) -> tuple[uuid.UUID, int, kernel_locator.MainKernel]:
    """Returns a session of the caller, and the number of a port of its main kernel, which runs. Raises ApiError."""
    session_id = await find_session(tx, session, owner_only=True)
    kernel = await kernel_locator.running_main(tx, session_id)
    number = kernel.reachable.find(port)
    if number is None:
        declared = ", ".join(kernel.reachable.words())
        raise errors.NotFound("port", port, f"there is {declared}" if declared else "the session declares none")
    return session_id, number, kernel


async def create_port_ticket(
    database: Database, gateway: Address | None, request: pb.CreatePortTicketRequest
) -> pb.CreatePortTicketResponse:
    """Makes the link that leads a browser to a port."""
    path = request.path or "/"
    violations = [("port", "is required")] if not request.port else []
    if wrong := wrong_path(path):
        violations.append(("path", wrong))
    if violations:
        raise errors.InvalidRequest(violations)
    if gateway is None:
        raise preconditions.GatewayOff
    principal, secret = current_principal(), new_secret(TICKET_PREFIX)
    async with database.transaction() as tx:
        session_id, port, kernel = await find_port(tx, request.session, request.port)
        if kernel.reachable.protocol(port) == TCP:
            raise errors.InvalidRequest([("port", f"is declared to speak {TCP}, not HTTP: use a local port instead")])
        assert principal.token_id is not None  # noqa: S101  # users have tokens, and others may not call this
        expire_time = await port_access.create_ticket(
            tx,
            hash_secret(secret),
            session_id=session_id,
            port=port,
            user=principal.name,
            token_id=principal.token_id,
            path=path,
            seconds=TICKET_SECONDS,
        )
        response = await with_position(tx, pb.CreatePortTicketResponse())
    _log.info("%s gets a ticket for port %d of session %s", principal.name, port, session_id)
    origin = gateway.origin(Target(session_id, port))
    response.url, response.origin = f"{origin}{OPEN_PATH}?{urlencode({'ticket': secret})}", f"{origin}/"
    response.expire_time.FromDatetime(expire_time)
    return response


async def create_port_tunnel(
    database: Database, gateway: Gateway | None, request: pb.CreatePortTunnelRequest
) -> pb.CreatePortTunnelResponse:
    """Opens a tunnel of the gateway's engine for a program."""
    if not request.port:
        raise errors.InvalidRequest([("port", "is required")])
    if gateway is None:
        raise preconditions.GatewayOff
    principal, tunnel = current_principal(), gateway.new_tunnel(dt.datetime.now(dt.UTC))
    assert principal.token_id is not None  # noqa: S101  # users have tokens, and others may not call this
    async with database.transaction() as tx:
        session_id, port, kernel = await find_port(tx, request.session, request.port)
        if kernel.serves_sftp:
            # Each of its connections has an address of its own, by which its log is read.
            raise preconditions.NoTunnel(port)
        expire_time = await port_access.create_access(
            tx,
            tunnel.hash,
            session_id=session_id,
            port=port,
            user=principal.name,
            token_id=principal.token_id,
            seconds=TUNNEL_SECONDS,
        )
        await record_access(tx, session_id, AccessMethod.PORT, kernel_locator.MAIN_HOSTNAME, port=port)
    if not await gateway.open_tunnel(tunnel):
        async with database.transaction() as tx:
            await port_access.remove(tx, tunnel.hash)
        raise preconditions.NoTunnel(port)
    _log.info("%s has a tunnel to port %d of session %s", principal.name, port, session_id)
    host = gateway.address.host(Target(session_id, port))
    identity = tunnel.identity
    response = pb.CreatePortTunnelResponse(
        host=host, port=gateway.address.number, server_name=identity.name, identity=identity.key + identity.certificate
    )
    response.expire_time.FromDatetime(expire_time)
    async with database.transaction() as tx:
        return await with_position(tx, response)


async def create_console_ticket(database: Database, origin: str) -> account_service_pb2.CreateConsoleTicketResponse:
    """Makes the link by which a browser logs in to the console at `origin`, which is empty when there is none."""
    if not origin:
        raise preconditions.ConsoleOff
    principal, secret = current_principal(), new_secret(CONSOLE_TICKET_PREFIX)
    assert principal.token_id is not None  # noqa: S101  # users have tokens, and others may not call this
    async with database.transaction() as tx:
        token = await accounts.get_token(tx, principal.token_id)
        if token is None or token.revoke_time is not None:
            raise errors.TokenInvalid
        expire_time = await console_tickets.create(tx, hash_secret(secret), token.id, TICKET_SECONDS)
        response = await with_position(tx, account_service_pb2.CreateConsoleTicketResponse(origin=f"{origin}/"))
    _log.info("%s gets a ticket for the console", principal.name)
    # In the fragment: browsers send it to no server, and no log has it.
    response.url = f"{origin}/login#ticket={secret}"
    response.expire_time.FromDatetime(expire_time)
    return response
