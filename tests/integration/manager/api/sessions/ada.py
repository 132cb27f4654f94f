"""A user who calls the API of sessions, and what she asks for."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from retinue.manager.v1 import session_pb2, session_service_pb2_grpc
from retinue.manager.v1 import session_service_pb2 as pb
from tests.integration.manager.rig import Service, bearer


class Ada:
    """A user who calls."""

    def __init__(self, stub: session_service_pb2_grpc.SessionServiceAsyncStub, service: Service, token: str) -> None:
        self.stub = stub
        self.service = service
        self.metadata = bearer(token)

    async def create(self, *specs: session_pb2.SessionSpec, **values: Any) -> pb.BatchCreateSessionsResponse:
        return await self.stub.BatchCreateSessions(
            pb.BatchCreateSessionsRequest(specs=specs, **values), metadata=self.metadata
        )

    async def count(self, table: str) -> int:
        async with self.service.database.transaction() as tx:
            return int((await tx.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())  # noqa: S608


def spec(**changes: Any) -> session_pb2.SessionSpec:
    made = session_pb2.SessionSpec(type=session_pb2.SESSION_TYPE_BATCH, kernel=session_pb2.KernelSpec(command=["true"]))
    made.MergeFrom(session_pb2.SessionSpec(**changes))
    return made
