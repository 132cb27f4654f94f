"""The AppService: programs that sessions define, started and stopped on demand."""

from __future__ import annotations

from typing import Any

import grpc.aio

from retinue.manager.agent_rpc.relay import Forwarder
from retinue.manager.api.streams.apps import get_app, start_app, stop_app
from retinue.manager.store.database import Database
from retinue.manager.v1 import app_service_pb2 as pb
from retinue.manager.v1 import app_service_pb2_grpc


class AppServicer(app_service_pb2_grpc.AppServiceServicer):
    """Apps, for the owners of their sessions and for administrators."""

    def __init__(self, database: Database, forwarder: Forwarder) -> None:
        self._database = database
        self._forwarder = forwarder

    async def StartApp(
        self, request: pb.StartAppRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.StartAppResponse:
        """See the proto."""
        return await start_app(self._database, self._forwarder, request)

    async def GetApp(self, request: pb.GetAppRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.GetAppResponse:
        """See the proto."""
        return pb.GetAppResponse(status=await get_app(self._database, self._forwarder, request))

    async def StopApp(
        self, request: pb.StopAppRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.StopAppResponse:
        """See the proto."""
        return await stop_app(self._database, self._forwarder, request)
