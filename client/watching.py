"""Watches sessions: their events, as one ordered stream over any number of connections."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from retinue.client.calls import resumed
from retinue.manager.v1 import session_service_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from retinue.client.backoff import RetryBudget
    from retinue.manager.v1 import session_pb2, session_service_pb2_grpc


async def watch(
    stub: session_service_pb2_grpc.SessionServiceAsyncStub,
    *,
    after_revision: int | None,
    incarnation: str,
    session_id: str,
    until_ended: bool,
    filter: str,  # noqa: A002  # as in the contract
    retry_budget: RetryBudget,
) -> AsyncGenerator[session_pb2.SessionEvent, None]:
    """Yields events after `after_revision` (None: from now on), in order of revision, each exactly once.

    With `until_ended` it ends after the last event of `session_id`. Raises CallError; OutOfRange with reason
    `REVISION_COMPACTED` when the journal does not go back that far, and `REVISION_LOST` when the server's database was restored since
    `incarnation`, which came with the revision; empty: not known.
    """
    position = after_revision

    def request() -> session_service_pb2.WatchSessionsRequest:
        return session_service_pb2.WatchSessionsRequest(
            after_revision=position,
            incarnation=incarnation,
            session_id=session_id,
            until_ended=until_ended,
            filter=filter,
        )

    async with aclosing(
        resumed(stub.WatchSessions, request, endless=not until_ended, retry_budget=retry_budget)
    ) as responses:
        async for response in responses:
            incarnation = response.incarnation
            for event in response.events:
                if position is not None and event.revision <= position:
                    continue
                position = event.revision
                yield event
            position = max(position or 0, response.revision)
