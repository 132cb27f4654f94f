"""CreatePortTicket: finds the port among those that are declared, and makes the link that leads a browser there."""

from __future__ import annotations

import logging
from urllib.parse import urlencode

from retinue.manager.access import kernel_locator
from retinue.manager.api.visibility import find_session
from retinue.manager.gateway.core.rules import OPEN_PATH, TICKET_PREFIX, TICKET_SECONDS, Address, Target, wrong_path
from retinue.manager.identity.tokens import hash_secret, new_secret
from retinue.manager.server import errors, preconditions
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.revisions import with_revision
from retinue.manager.session.core.service_ports import TCP
from retinue.manager.store import port_access
from retinue.manager.store.database import Database
from retinue.manager.v1 import kernel_service_pb2 as pb

_log = logging.getLogger(__name__)


async def create_port_ticket(
    database: Database, gateway: Address | None, request: pb.CreatePortTicketRequest
) -> pb.CreatePortTicketResponse:
    """Makes one."""
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
        session_id = await find_session(tx, request.session, owner_only=True)
        kernel = await kernel_locator.running_main(tx, session_id)
        port = kernel.reachable.find(request.port)
        if port is None:
            declared = ", ".join(kernel.reachable.words())
            raise errors.NotFound(
                "port", request.port, f"there is {declared}" if declared else "the session declares none"
            )
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
        response = await with_revision(tx, pb.CreatePortTicketResponse())
    _log.info("%s gets a ticket for port %d of session %s", principal.name, port, session_id)
    origin = gateway.origin(Target(session_id, port))
    response.url, response.origin = f"{origin}{OPEN_PATH}?{urlencode({'ticket': secret})}", f"{origin}/"
    response.expire_time.FromDatetime(expire_time)
    return response
