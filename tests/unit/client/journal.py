"""A journal of sessions and a servicer that serves it, breaking off as asked."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from retinue.manager.v1 import kernel_service_pb2, kernel_service_pb2_grpc
from retinue.manager.v1 import session_pb2 as pb
from retinue.manager.v1 import session_service_pb2 as service_pb
from retinue.manager.v1 import session_service_pb2_grpc as service_grpc
from retinue.manager.v1.journal_position_pb2 import JournalPosition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ID = "0b9b4f0e-6a31-4b4e-9d0c-2f1b7f0d9a11"
DETAILS = "grpc-status-details-bin"


async def refuse(
    context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, reason: str, *details: object, **metadata: str
) -> None:
    """Ends a call with an error as the manager gives it."""
    status = status_pb2.Status(code=code.value[0], message=f"refused: {reason}")
    info = error_details_pb2.ErrorInfo(reason=reason, domain="retinue", metadata=metadata)
    for detail in (info, *details):
        status.details.add().Pack(detail)
    context.set_trailing_metadata(((DETAILS, status.SerializeToString()),))
    await context.abort(code, status.message)


def session(state: pb.SessionState.ValueType = pb.SESSION_STATE_PENDING, size: int = 2) -> pb.Session:
    """A batch session of `size` kernels."""
    built = pb.Session(id=ID, owner="ada", state=state, result=pb.SESSION_RESULT_UNDEFINED, etag="e1")
    built.spec.name, built.spec.type = "work", pb.SESSION_TYPE_BATCH
    built.spec.cluster_size = size
    for rank in range(size):
        hostname = "main1" if rank == 0 else f"sub{rank}"
        built.kernels.add(
            id=ID if rank == 0 else str(uuid.uuid5(uuid.UUID(ID), hostname)),
            role="main" if rank == 0 else "sub",
            index=max(1, rank),
            local_rank=rank,
            hostname=hostname,
            state=pb.KERNEL_STATE_PENDING,
        )
    return built


class Journal:
    """Events with successive revisions, of one session unless said otherwise."""

    def __init__(self) -> None:
        self.events: list[pb.SessionEvent] = []

    def add(self, revision: int | None = None, session_id: str = ID) -> pb.SessionEvent:
        last = self.events[-1].revision if self.events else 0
        event = pb.SessionEvent(revision=revision or last + 1, session_id=session_id)
        event.create_time.FromSeconds(1_700_000_000 + event.revision)
        self.events.append(event)
        return event

    def created(self, created: pb.Session) -> None:
        self.add(session_id=created.id).created.CopyFrom(created)

    def moved(self, to_state: pb.SessionState.ValueType, *, exit_code: int | None = None, reason: str = "") -> None:
        moved = self.add().session_moved
        moved.SetInParent()
        moved.to_state, moved.reason, moved.result = to_state, reason, pb.SESSION_RESULT_UNDEFINED
        moved.network = pb.NETWORK_KIND_BRIDGE
        if exit_code is not None:
            moved.exit_code = exit_code
            moved.result = pb.SESSION_RESULT_FAILED if exit_code else pb.SESSION_RESULT_SUCCESS

    def kernel(
        self, rank: int, to_state: pb.KernelState.ValueType, *, agent: str = "n1", exit_code: int | None = None
    ) -> None:
        kernel = session(size=rank + 1).kernels[rank]
        moved = self.add().kernel_moved
        moved.kernel_id, moved.hostname, moved.to_state, moved.agent, moved.attempt = (
            kernel.id,
            kernel.hostname,
            to_state,
            agent,
            1,
        )
        moved.address = f"10.128.0.{rank + 2}"
        if exit_code is not None:
            moved.exit_code = exit_code

    def whole_life(self, exit_code: int = 0) -> None:
        """From creation to the end, two kernels on two agents."""
        self.created(session())
        self.moved(pb.SESSION_STATE_SCHEDULED)
        for state in (pb.KERNEL_STATE_SCHEDULED, pb.KERNEL_STATE_CREATING, pb.KERNEL_STATE_RUNNING):
            for rank in range(2):
                self.kernel(rank, state, agent=f"n{rank + 1}")
        self.moved(pb.SESSION_STATE_PREPARING)
        self.moved(pb.SESSION_STATE_RUNNING)
        self.kernel(0, pb.KERNEL_STATE_TERMINATED, exit_code=exit_code)
        reason = "COMMAND_FAILED" if exit_code else "COMMAND_ENDED"
        self.moved(pb.SESSION_STATE_TERMINATING, exit_code=exit_code, reason=reason)
        self.kernel(1, pb.KERNEL_STATE_TERMINATED, agent="n2", exit_code=143)
        self.moved(pb.SESSION_STATE_TERMINATED, exit_code=exit_code, reason=reason)


class JournalServicer(service_grpc.SessionServiceServicer, kernel_service_pb2_grpc.KernelServiceServicer):
    """Serves a journal and output; every stream breaks after `break_after` events or pieces (0: never)."""

    def __init__(self, journal: Journal, break_after: int = 0, output: dict[str, bytes] | None = None) -> None:
        self.journal = journal
        self.break_after = break_after
        self.output = output or {}
        self.piece = 7
        self.oldest = 0
        self.incarnation = "first"
        self.watches: list[int | None] = []
        self.log_offsets: list[int] = []
        self.state = session()
        self.state_revision = 1

    def _position(self, revision: int) -> JournalPosition:
        return JournalPosition(revision=revision, incarnation=self.incarnation)

    async def GetSession(
        self, request: service_pb.GetSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> service_pb.GetSessionResponse:
        if request.session not in (self.state.id, self.state.spec.name):
            await refuse(context, grpc.StatusCode.NOT_FOUND, "NOT_FOUND", kind="session", id=request.session)
        return service_pb.GetSessionResponse(session=self.state, position=self._position(self.state_revision))

    async def WatchSessions(
        self, request: service_pb.WatchSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[service_pb.WatchSessionsResponse]:
        after = request.after.revision if request.HasField("after") else None
        self.watches.append(after)
        if after is not None and after < self.oldest:
            await refuse(context, grpc.StatusCode.OUT_OF_RANGE, "REVISION_COMPACTED", oldest=str(self.oldest))
        if request.after.incarnation not in {"", self.incarnation}:
            await refuse(context, grpc.StatusCode.OUT_OF_RANGE, "REVISION_LOST", incarnation=self.incarnation)
        newest = self.journal.events[-1].revision if self.journal.events else 0
        position = newest if after is None else after
        yield service_pb.WatchSessionsResponse(position=self._position(position))
        sent = 0
        for event in self.journal.events:
            if event.revision <= position or (request.session_id and event.session_id != request.session_id):
                continue
            if self.break_after and sent == self.break_after:
                await refuse(context, grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
            yield service_pb.WatchSessionsResponse(position=self._position(event.revision), events=[event])
            sent += 1
        if not request.until_ended:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")

    async def StreamLogs(
        self, request: kernel_service_pb2.StreamLogsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[kernel_service_pb2.StreamLogsResponse]:
        self.log_offsets.append(request.offset)
        sent = 0
        for hostname in sorted(self.output) if request.all else [request.hostname or "main1"]:
            data = self.output[hostname]
            for start in range(request.offset, len(data), self.piece):
                if self.break_after and sent == self.break_after:
                    await refuse(context, grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
                piece = data[start : start + self.piece]
                yield kernel_service_pb2.StreamLogsResponse(hostname=hostname, offset=start, data=piece)
                sent += 1
