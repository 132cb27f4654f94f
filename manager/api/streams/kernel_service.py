"""The KernelService: commands, ports, code and files of running kernels, their output and what they use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc.aio

from retinue.manager.agent_rpc.relay import Forwarder
from retinue.manager.api.streams.attach import serve_attach
from retinue.manager.api.streams.code import serve_code
from retinue.manager.api.streams.files import serve_download, serve_list, serve_upload
from retinue.manager.api.streams.logs import serve_logs
from retinue.manager.api.streams.port_tickets import create_port_ticket
from retinue.manager.api.streams.ports import Tunnels, serve_open_port
from retinue.manager.api.streams.stats import serve_stats
from retinue.manager.gateway.core.rules import Address
from retinue.manager.store.database import Database
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.manager.v1 import kernel_service_pb2_grpc


class KernelServicer(kernel_service_pb2_grpc.KernelServiceServicer):
    """Kernels, for the owners of their sessions and for administrators."""

    def __init__(self, database: Database, forwarder: Forwarder, gateway: Address | None = None) -> None:
        """Without a `gateway` there is no HTTP to ports."""
        self._database = database
        self._forwarder = forwarder
        self._tunnels = Tunnels()
        self._gateway = gateway

    async def StreamLogs(
        self, request: pb.StreamLogsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.StreamLogsResponse]:
        """See the proto."""
        async with aclosing(serve_logs(self._database, self._forwarder.without_activity, request)) as responses:
            async for response in responses:
                yield response

    async def StreamStats(
        self, request: pb.StreamStatsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.StreamStatsResponse]:
        """See the proto."""
        async with aclosing(serve_stats(self._database, self._forwarder, request)) as responses:
            async for response in responses:
                yield response

    async def Attach(
        self,
        request_iterator: AsyncIterator[pb.AttachRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.AttachResponse]:
        """See the proto."""
        async with aclosing(serve_attach(self._database, self._forwarder, aiter(request_iterator))) as responses:
            async for response in responses:
                yield response

    async def OpenPort(
        self, request_iterator: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        """See the proto; requests and responses are serialised."""
        served = serve_open_port(self._database, self._forwarder, self._tunnels, aiter(request_iterator))
        async with aclosing(served) as responses:
            async for response in responses:
                yield response

    async def CreatePortTicket(
        self, request: pb.CreatePortTicketRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CreatePortTicketResponse:
        """See the proto."""
        return await create_port_ticket(self._database, self._gateway, request)

    async def ExecuteCode(
        self,
        request_iterator: AsyncIterator[pb.ExecuteCodeRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.ExecuteCodeResponse]:
        """See the proto."""
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
