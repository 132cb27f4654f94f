"""The KernelService: commands, ports, code and files of running kernels, their output and what they use."""

from __future__ import annotations

import datetime as dt
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from retinue.manager.api.streams.attach import serve_attach
from retinue.manager.api.streams.code import serve_code
from retinue.manager.api.streams.files import serve_download, serve_list, serve_upload
from retinue.manager.api.streams.gateway_access import create_port_ticket, create_port_tunnel
from retinue.manager.api.streams.logs import serve_logs
from retinue.manager.api.streams.ports import Tunnels, serve_open_port
from retinue.manager.api.streams.stats import serve_stats
from retinue.manager.api.streams.usage_samples import list_usage_samples
from retinue.manager.api.visibility import find_session, record_access, require_feature
from retinue.manager.domain.session.events import AccessMethod
from retinue.manager.domain.session.features import Feature
from retinue.manager.domain.session.ssh_authority import SshAuthority, host_name
from retinue.manager.domain.session.ssh_keys import parse_public_key
from retinue.manager.server.fields import Violations
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.journal_positions import with_position
from retinue.manager.session import kernel_locator
from retinue.manager.store.placement import attempts
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.manager.v1 import kernel_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc.aio

    from retinue.manager.agent_rpc.relay import Forwarder
    from retinue.manager.gateway.serving import Gateway
    from retinue.manager.store.postgres.database import Database
    from retinue.rpc.direct_port import DirectPorts

_log = logging.getLogger(__name__)

_SHORTEST_TTL, _LONGEST_TTL = dt.timedelta(minutes=1), dt.timedelta(hours=1)


class KernelServicer(kernel_service_pb2_grpc.KernelServiceServicer):
    """Kernels, for the owners of their sessions and for administrators."""

    def __init__(
        self,
        database: Database,
        forwarder: Forwarder,
        authority: SshAuthority,
        direct: DirectPorts,
        gateway: Gateway | None = None,
    ) -> None:
        """`authority` certifies keys for SFTP, whose connections come by `direct`;
        without a `gateway` there is no HTTP to ports.
        """
        self._authority = authority
        self._database = database
        self._forwarder = forwarder
        self._tunnels = Tunnels(direct)
        self._gateway = gateway

    async def StreamLogs(
        self, request: pb.StreamLogsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.StreamLogsResponse]:
        async with aclosing(serve_logs(self._database, self._forwarder.without_activity, request)) as responses:
            async for response in responses:
                yield response

    async def StreamStats(
        self, request: pb.StreamStatsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.StreamStatsResponse]:
        async with aclosing(serve_stats(self._database, self._forwarder, request)) as responses:
            async for response in responses:
                yield response

    async def ListUsageSamples(
        self, request: pb.ListUsageSamplesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListUsageSamplesResponse:
        return await list_usage_samples(self._database, self._forwarder, request)

    async def Attach(
        self,
        request_iterator: AsyncIterator[pb.AttachRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.AttachResponse]:
        async with aclosing(serve_attach(self._database, self._forwarder, aiter(request_iterator))) as responses:
            async for response in responses:
                yield response

    async def OpenPort(
        self, request_iterator: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        """Requests and responses are serialised."""
        served = serve_open_port(self._database, self._forwarder, self._tunnels, aiter(request_iterator))
        async with aclosing(served) as responses:
            async for response in responses:
                yield response

    async def CreatePortTicket(
        self, request: pb.CreatePortTicketRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CreatePortTicketResponse:
        address = None if self._gateway is None else self._gateway.address
        return await create_port_ticket(self._database, address, request)

    async def CreatePortTunnel(
        self, request: pb.CreatePortTunnelRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CreatePortTunnelResponse:
        return await create_port_tunnel(self._database, self._gateway, request)

    async def CreateSshCertificate(
        self, request: pb.CreateSshCertificateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CreateSshCertificateResponse:
        return await _create_ssh_certificate(self._database, self._authority, request)

    async def ExecuteCode(
        self,
        request_iterator: AsyncIterator[pb.ExecuteCodeRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.ExecuteCodeResponse]:
        async with aclosing(serve_code(self._database, self._forwarder, aiter(request_iterator))) as responses:
            async for response in responses:
                yield response

    async def UploadFiles(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.UploadFilesResponse]:
        """Writes files into a kernel's work directory."""
        del context
        requests: AsyncIterator[pb.UploadFilesRequest] = aiter(request_iterator)
        async with aclosing(serve_upload(self._database, self._forwarder, requests)) as responses:
            async for response in responses:
                yield response

    async def DownloadFiles(
        self, request: pb.DownloadFilesRequest, context: Any
    ) -> AsyncIterator[pb.DownloadFilesResponse]:
        """Reads files from a kernel's work directory."""
        del context
        async with aclosing(serve_download(self._database, self._forwarder, request)) as responses:
            async for response in responses:
                yield response

    async def ListFiles(self, request: pb.ListFilesRequest, context: Any) -> AsyncIterator[pb.ListFilesResponse]:
        """Lists files in a kernel's work directory."""
        del context
        async with aclosing(serve_list(self._database, self._forwarder, request)) as responses:
            async for response in responses:
                yield response


async def _create_ssh_certificate(
    database: Database, authority: SshAuthority, request: pb.CreateSshCertificateRequest
) -> pb.CreateSshCertificateResponse:
    """Makes one."""
    violations, key, ttl = Violations(), None, _LONGEST_TTL
    try:
        parsed = parse_public_key(request.public_key)
    except ValueError as error:
        violations.add("public_key", str(error))
    else:
        if (key := parsed.key) is None:
            violations.add(
                "public_key", "is in a device, of which no certificates are made: register it by CreateSshKey"
            )
    if request.HasField("ttl"):
        ttl = violations.duration("ttl", request.ttl, _SHORTEST_TTL, _LONGEST_TTL)
    violations.raise_any()
    assert key is not None  # noqa: S101  # else there was a violation
    fingerprint = parsed.fingerprint
    caller = current_principal()
    async with database.transaction() as tx:
        session_id = await find_session(tx, request.session, owner_only=True)
        await require_feature(tx, session_id, Feature.SFTP)
        where = kernel_locator.MAIN_HOSTNAME
        await record_access(tx, session_id, AccessMethod.SSH_CERTIFICATE, where, key_fingerprint=fingerprint)
        main = await attempts.read_newest(tx, session_id, where)
        response = await with_position(tx, pb.CreateSshCertificateResponse())
    now = time.time()
    response.certificate = authority.certify(key, session_id, caller.name, now, ttl.total_seconds())
    response.host_name, response.known_hosts = host_name(session_id), authority.known_hosts(session_id)
    if main is not None and main.epoch is not None:
        response.host_key = authority.host(session_id, main.epoch).public_line
    response.expire_time.FromSeconds(int(now + ttl.total_seconds()))
    _log.info("%s gets a certificate of key %s for session %s", caller.name, fingerprint, session_id)
    return response
