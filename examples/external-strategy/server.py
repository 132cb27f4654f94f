"""An external strategy in Python: the owner who holds least goes first, whatever the slots.

python server.py 50070
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc.aio

from retinue.strategy.v1 import strategy_service_pb2 as pb
from retinue.strategy.v1 import strategy_service_pb2_grpc as pb_grpc


class LeastHoldingFirst(pb_grpc.StrategyServiceServicer):
    """Orders sessions; agents are left to the group's own strategy."""

    async def OrderSessions(
        self, request: pb.OrderSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.OrderSessionsResponse:
        """By the largest part that the owner holds of any slot, then by arrival."""
        held = {
            owner.name: max(
                (held / total for held, total in zip(owner.held, request.capacity, strict=True) if total), default=0.0
            )
            for owner in request.owners
        }
        sessions = sorted(request.sessions, key=lambda session: held[session.owner])
        return pb.OrderSessionsResponse(session_ids=[session.id for session in sessions])


async def serve(port: int) -> None:
    """Answers until it is stopped."""
    server = grpc.aio.server()
    pb_grpc.add_StrategyServiceServicer_to_server(LeastHoldingFirst(), server)
    print(server.add_insecure_port(f"127.0.0.1:{port}"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
