"""Asking a manager whether it serves, as its own machine's health checks do."""

from __future__ import annotations

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from retinue.manager.identity.authority import MANAGER_DNS

_SECONDS = 4.0


async def is_serving(address: str, ca: bytes) -> bool:
    """Returns whether the manager at `address`, with a certificate of the CA in PEM, can do its work now."""
    options = (("grpc.ssl_target_name_override", MANAGER_DNS), ("grpc.enable_http_proxy", 0))
    async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca), options) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_SECONDS, wait_for_ready=True
            )
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
