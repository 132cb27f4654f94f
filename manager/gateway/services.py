"""The services of the manager that its engine calls: resources, answers about requests, reports of bytes.
Sockets that know it by a key.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from envoy.service.auth.v3 import external_auth_pb2_grpc
from envoy.service.discovery.v3 import ads_pb2_grpc

from retinue.manager.gateway import sockets
from retinue.manager.gateway.core import resources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from envoy.config.bootstrap.v3.bootstrap_pb2 import Bootstrap

    from retinue.manager.gateway.forward_auth import ForwardAuthHandler
    from retinue.manager.gateway.traffic import TrafficReceiver
    from retinue.proxy.ads import AdsServer

# Headers of a request as the engine passes them on are within its own limit.
_OPTIONS = (("grpc.max_metadata_size", 64 * 1024), ("grpc.max_receive_message_length", 4 << 20))


class Services:
    """All services, at sockets in the abstract namespace, which leave nothing behind."""

    def __init__(self, ads: AdsServer, handler: ForwardAuthHandler, traffic: TrafficReceiver) -> None:
        """Nothing is served yet."""
        self.key = secrets.token_hex(32)
        self._servers: tuple[tuple[str, Callable[[grpc.aio.Server], None]], ...] = (
            (sockets.new_name(), partial(ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server, ads)),
            (sockets.new_name(), partial(external_auth_pb2_grpc.add_AuthorizationServicer_to_server, handler)),
            (sockets.new_name(), traffic.add_to),
        )

    def bootstrap(self) -> Bootstrap:
        """Returns the configuration by which the engine finds them."""
        ads, handler, traffic = (name for name, _ in self._servers)
        return resources.bootstrap(ads, handler, traffic, self.key)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serves while the block lasts."""
        running = []
        try:
            for name, add in self._servers:
                server = grpc.aio.server(interceptors=[_KnowsKey(self.key)], options=_OPTIONS)
                add(server)
                server.add_insecure_port(f"unix-abstract:{name}")
                await server.start()
                running.append(server)
            yield
        finally:
            for server in running:
                await server.stop(0)


class _KnowsKey(grpc.aio.ServerInterceptor):
    """Refuses calls of everyone else on this machine: the services give a private key away, and access."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def intercept_service(  # one of the methods has streams, which types of handlers do not say
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        metadata = dict(handler_call_details.invocation_metadata or ())
        given = metadata.get(resources.KEY, "")
        if isinstance(given, str) and hmac.compare_digest(given.encode(), self._key.encode()):
            return await continuation(handler_call_details)
        # Answers at once, whatever kind of call it is: it takes no request.
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not the gateway's engine")
