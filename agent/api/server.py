"""The agent's gRPC server: TLS on both sides, health, and nothing for callers other than a manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import (
    health,
    health_pb2,
    health_pb2_grpc,
)

from retinue.agent.api.agent_service import AgentService
from retinue.agent.api.apps import Apps
from retinue.agent.api.attach import AttachService
from retinue.agent.api.code import CodeService
from retinue.agent.api.files import FileService
from retinue.agent.api.guard import SERVICE, Guard
from retinue.agent.api.lease_port import LeaseService
from retinue.agent.api.open_port import PortService
from retinue.agent.v1 import agent_service_pb2_grpc
from retinue.rpc.enrollment.peers import server_credentials
from retinue.rpc.sockets import listen_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.agent.api.sync import SyncService
    from retinue.agent.builds import NodeBuilds
    from retinue.agent.code.workspaces import Workspaces
    from retinue.agent.network.publisher import Publisher
    from retinue.agent.resources.usage_history import UsageHistory
    from retinue.agent.runtime.contract import Runtime
    from retinue.rpc.enrollment.identity import Identity

OPTIONS: tuple[tuple[str, int], ...] = (
    # Two processes on one port would each get some of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # Without it, megabytes pile up for a reader of logs that does not read.
    ("grpc.http2.bdp_probe", 0),
    # Bytes of a stream that are accepted before its reader asks for them.
    ("grpc.http2.lookahead_bytes", 32 * 1024),
    # A snapshot of a whole node comes in one message.
    ("grpc.max_receive_message_length", 64 << 20),
)
STOP_GRACE = 0.5
"""Seconds that calls in progress get when the server stops."""


class Server:
    """The server of one agent."""

    def __init__(
        self,
        sync: SyncService,
        runtime: Runtime,
        workspaces: Workspaces,
        publisher: Publisher,
        identity: Callable[[], Identity],
        *,
        builds: NodeBuilds,
        history: UsageHistory,
    ) -> None:
        """`identity` gives the current one; a renewed certificate counts from the next handshake."""
        self._sync = sync
        self._attach = AttachService(runtime, builds)
        files = FileService(runtime)
        self._ports = PortService(runtime, files)
        self._workspaces = workspaces
        self._code = CodeService(workspaces)
        self._server = grpc.aio.server(interceptors=(Guard(),), options=OPTIONS)
        self._credentials = server_credentials(identity)
        self._health = health.aio.HealthServicer()
        agent_service_pb2_grpc.add_AgentServiceServicer_to_server(
            AgentService(
                sync,
                attach=self._attach,
                ports=self._ports,
                leases=LeaseService(runtime, publisher),
                code=self._code,
                files=files,
                apps=Apps(runtime),
                runtime=runtime,
                sampler=sync.sampler,
                history=history,
            ),
            self._server,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, address: str, direct: tuple[str, int] | None = None) -> int:
        """Listens at `host:port` and returns the port, which the node chose if it was 0;
        and for direct connections. Raises OSError.
        """
        try:
            port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise listen_error(address) from error
        if direct is not None:
            self._ports.direct.open(*direct)
        await self._server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def stop(self) -> None:
        """Stops serving; streams end first, so that this takes no longer than it must."""
        await self._health.enter_graceful_shutdown()
        self._sync.stop()
        self._attach.stop()
        self._ports.stop()
        self._code.stop()
        await self._ports.direct.close()
        await self._server.stop(STOP_GRACE)
        await self._workspaces.close()
        await self._attach.wait_ended()
