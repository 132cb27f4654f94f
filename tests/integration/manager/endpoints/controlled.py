"""A service with endpoints as two users see it, and the leader's controller, which looks when the test asks for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
from sqlalchemy import text

from retinue.manager.domain.endpoints.model import RoutedEndpoint, Traffic
from retinue.manager.domain.endpoints.states import ReplicaState
from retinue.manager.endpoints.controller import EndpointController
from retinue.manager.v1 import (
    account_service_pb2_grpc,
    endpoint_service_pb2_grpc,
    session_service_pb2_grpc,
)
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from retinue.manager.v1 import session_pb2 as spb
from tests.integration.manager.rig import Service, bearer

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Sequence

    import grpc.aio

    from retinue.manager.store.postgres.database import Transaction

TERM = 1


class Routers:
    """The routers' side: one router that serves each table as soon as it gets it."""

    def __init__(self) -> None:
        self.table: dict[uuid.UUID, RoutedEndpoint] = {}
        self.revision = 0
        self.reported = Traffic(live=1)
        self.acknowledges = True
        self.refused: dict[uuid.UUID, str] = {}

    def refusals(self) -> dict[uuid.UUID, str]:
        return self.refused

    def publish(self, endpoints: Sequence[RoutedEndpoint]) -> int:
        table = {item.id: item for item in endpoints}
        if table != self.table:
            self.table, self.revision = table, self.revision + 1
        if self.acknowledges:
            self.reported = replace(self.reported, acknowledged=self.revision)
        return self.revision

    def traffic(self) -> Traffic:
        draining = {
            item.session_id: 0
            for endpoint in self.table.values()
            for found in endpoint.revisions
            for item in found.replicas
            if item.state is ReplicaState.DRAINING
        }
        return replace(self.reported, draining={**draining, **self.reported.draining})


class Rig:
    """The service as two users see it, and a controller that looks when the test asks for it."""

    def __init__(self, service: Service, channel: grpc.aio.Channel, tokens: dict[str, str]) -> None:
        self.service = service
        self.stub: endpoint_service_pb2_grpc.EndpointServiceAsyncStub = endpoint_service_pb2_grpc.EndpointServiceStub(
            channel
        )
        self.sessions: session_service_pb2_grpc.SessionServiceAsyncStub = session_service_pb2_grpc.SessionServiceStub(
            channel
        )
        self.accounts: account_service_pb2_grpc.AccountServiceAsyncStub = account_service_pb2_grpc.AccountServiceStub(
            channel
        )
        self.metadata = {name: bearer(token) for name, token in tokens.items()}
        self.routers = Routers()
        self.controller = EndpointController(service.database, TERM, lambda _affected: None, self.routers)

    async def call(self, method: str, request: Any, caller: str = "ada") -> Any:
        return await getattr(self.stub, method)(request, metadata=self.metadata[caller])

    async def create(self, name: str = "llm", caller: str = "ada", **spec: Any) -> epb.Endpoint:
        request = pb.CreateEndpointRequest(spec=epb.EndpointSpec(name=name, revision=revision(), **spec))
        return (await self.call("CreateEndpoint", request, caller)).endpoint  # type: ignore[no-any-return]

    async def get(self, name: str = "llm") -> epb.Endpoint:
        return (await self.call("GetEndpoint", pb.GetEndpointRequest(endpoint=name))).endpoint  # type: ignore[no-any-return]

    async def replicas(self, name: str = "llm") -> list[epb.Replica]:
        return list((await self.call("GetEndpoint", pb.GetEndpointRequest(endpoint=name))).replicas)

    async def states(self, name: str = "llm") -> list[tuple[int, str]]:
        return states_of(await self.replicas(name))

    async def ends(self) -> Counter[tuple[str, str]]:
        """Why sessions of replicas end or have ended: reason and message, with their numbers."""
        async with self.service.database.transaction() as tx:
            rows = await tx.execute(
                text("SELECT reason, message FROM session WHERE state IN ('TERMINATING', 'TERMINATED', 'CANCELLED')")
            )
            return Counter((row.reason, row.message) for row in rows)

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.controller.look()

    async def settle(self, name: str = "llm", *, running: bool = True, rounds: int = 30) -> None:
        """Looks until nothing of an endpoint changes: what is pending runs, what is ending has ended."""
        before = None
        for _ in range(rounds):
            await self.look()
            await (self.obey() if running else self.move("TERMINATING", "TERMINATED"))
            found = await self.call("GetEndpoint", pb.GetEndpointRequest(endpoint=name))
            now = [(item.session_id, item.state) for item in found.replicas], found.endpoint.rollout
            if now == before:
                return
            before = now
        raise AssertionError("it does not come to rest")

    async def obey(self) -> None:
        """Agents do what is asked of them: what is to end has ended, what is pending runs."""
        async with self.service.database.transaction() as tx:
            await _move(tx, "TERMINATING", "TERMINATED")
            await _move(tx, "PENDING", "RUNNING")

    async def move(self, old: str, new: str) -> None:
        async with self.service.database.transaction() as tx:
            await _move(tx, old, new)


def states_of(replicas: Iterable[epb.Replica]) -> list[tuple[int, str]]:
    """The revision and the state of each."""
    return sorted(
        (item.revision, epb.ReplicaState.Name(item.state).removeprefix("REPLICA_STATE_")) for item in replicas
    )


async def _move(tx: Transaction, old: str, new: str) -> None:
    moved: Any = await tx.execute(
        text(
            "UPDATE session SET state = :new, start_time = now(), end_time = CASE WHEN :ended THEN now() END WHERE state = :old"
        ),
        {"old": old, "new": new, "ended": new in ("TERMINATED", "CANCELLED")},
    )
    if new == "RUNNING" and moved.rowcount:
        await tx.execute(text("UPDATE endpoint_replica SET address = '192.0.2.9', port = 31000"))


def revision(**fields: Any) -> epb.RevisionSpec:
    return epb.RevisionSpec(
        session=spb.SessionSpec(kernel=spb.KernelSpec(command=["serve"], environment={"KEY": "value"})),
        port=8000,
        **fields,
    )
