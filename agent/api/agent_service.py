"""The AgentService: translates and calls; decides nothing."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from retinue.agent.api.convert import resource_usage
from retinue.agent.api.errors import invalid, unknown_attempt
from retinue.agent.errors import UnknownAttemptError
from retinue.agent.inside.log_file import OffsetPastEndError
from retinue.agent.v1 import agent_service_pb2, agent_service_pb2_grpc
from retinue.rpc import times
from retinue.rpc.core.errors import Code, ServiceError
from retinue.rpc.core.output_stream import Stream
from retinue.rpc.core.reasons import ErrorReason
from retinue.types.v1 import log_stream_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from retinue.agent.api.apps import Apps
    from retinue.agent.api.attach import AttachService
    from retinue.agent.api.code import CodeService
    from retinue.agent.api.files import FileService
    from retinue.agent.api.lease_port import LeaseService
    from retinue.agent.api.open_port import PortService
    from retinue.agent.api.sync import SyncService
    from retinue.agent.inside.log_file import Output
    from retinue.agent.resources.sampler import Sampler
    from retinue.agent.resources.usage_history import UsageHistory
    from retinue.agent.runtime.contract import Runtime


MAX_ATTEMPTS = 10_000
MAX_HISTORIES = 100


class AgentService(agent_service_pb2_grpc.AgentServiceServicer):
    """The service through which managers control this node."""

    def __init__(
        self,
        sync: SyncService,
        *,
        attach: AttachService,
        ports: PortService,
        leases: LeaseService,
        code: CodeService,
        files: FileService,
        apps: Apps,
        runtime: Runtime,
        sampler: Sampler,
        history: UsageHistory,
    ) -> None:
        """Serves what these do."""
        self._sync = sync
        self._files = files
        self._attach = attach
        self._ports = ports
        self._leases = leases
        self._code = code
        self._apps = apps
        self._runtime = runtime
        self._sampler = sampler
        self._history = history

    async def Sync(self, request_iterator: Any, context: Any) -> AsyncGenerator[agent_service_pb2.SyncResponse, None]:
        """Keeps what runs on the node as the manager wants it."""
        del context
        async with aclosing(self._sync.serve(aiter(request_iterator))) as responses:
            async for response in responses:
                yield response

    async def StreamLogs(
        self, request: agent_service_pb2.StreamLogsRequest, context: Any
    ) -> AsyncGenerator[agent_service_pb2.StreamLogsResponse, None]:
        """Streams the output of an attempt."""
        del context
        if request.offset < 0:
            raise invalid("offset", "is negative")
        try:
            output = self._runtime.output(request.attempt_id)
            offset = await _begin(output, request)
            found = False
            async with aclosing(output.stream(offset, request.follow)) as pieces:
                async for piece in pieces:
                    found = True
                    yield agent_service_pb2.StreamLogsResponse(
                        offset=piece.offset, data=piece.data, stream=_STREAMS[piece.stream]
                    )
            if not found:
                # Its output may have gone, with all of the attempt, before it was opened.
                self._runtime.output(request.attempt_id)
        except UnknownAttemptError as error:
            raise unknown_attempt(request.attempt_id) from error
        except OffsetPastEndError as error:
            size = str(error.size)
            message = f"the output ends at {size}"
            raise ServiceError(Code.OUT_OF_RANGE, ErrorReason.OFFSET_PAST_END, message, size=size) from error

    async def ReadStats(
        self, request: agent_service_pb2.ReadStatsRequest, context: Any
    ) -> agent_service_pb2.ReadStatsResponse:
        """Returns the usage of attempts so far."""
        del context
        if len(request.attempt_ids) > MAX_ATTEMPTS:
            raise invalid("attempt_ids", f"must be at most {MAX_ATTEMPTS}")
        samples = await self._sampler.sample(request.attempt_ids)
        return agent_service_pb2.ReadStatsResponse(
            attempts=[
                agent_service_pb2.AttemptStats(attempt_id=attempt_id, usage=resource_usage(sample))
                for attempt_id, sample in samples.items()
            ]
        )

    async def ListUsageSamples(
        self, request: agent_service_pb2.ListUsageSamplesRequest, context: Any
    ) -> agent_service_pb2.ListUsageSamplesResponse:
        """Lists what attempts have used over the last hour."""
        del context
        if len(request.attempt_ids) > MAX_HISTORIES:
            raise invalid("attempt_ids", f"must be at most {MAX_HISTORIES}")
        since = request.since_time.ToNanoseconds() / 1e9 if request.HasField("since_time") else None
        interval = times.seconds(request.interval)
        found = {key: list(self._history.read(key, since, interval)) for key in request.attempt_ids}
        return agent_service_pb2.ListUsageSamplesResponse(
            attempts=[
                agent_service_pb2.AttemptUsageSamples(attempt_id=key, samples=map(resource_usage, samples))
                for key, samples in found.items()
                if samples
            ]
        )

    async def Attach(
        self, request_iterator: Any, context: Any
    ) -> AsyncGenerator[agent_service_pb2.AttachResponse, None]:
        """Runs a command inside a running attempt."""
        del context
        async with aclosing(self._attach.serve(aiter(request_iterator))) as responses:
            async for response in responses:
                yield response

    async def OpenPort(self, request_iterator: Any, context: Any) -> AsyncGenerator[Any, None]:
        """Connects to a port inside a running attempt; requests and responses are serialised."""
        del context
        async with aclosing(self._ports.serve(aiter(request_iterator))) as responses:
            async for response in responses:
                yield response

    async def LeasePort(
        self, request: agent_service_pb2.LeasePortRequest, context: Any
    ) -> agent_service_pb2.LeasePortResponse:
        """Has a port of a running attempt reached by the caller's machine."""
        return await self._leases.lease(request, context.peer)

    async def ExecuteCode(
        self, request_iterator: Any, context: Any
    ) -> AsyncGenerator[agent_service_pb2.ExecuteCodeResponse, None]:
        """Runs code inside a running attempt."""
        del context
        async with aclosing(self._code.serve(aiter(request_iterator))) as responses:
            async for response in responses:
                yield response

    async def UploadFiles(
        self, request_iterator: Any, context: Any
    ) -> AsyncGenerator[agent_service_pb2.UploadFilesResponse, None]:
        """Writes files into the work directory of a running attempt."""
        del context
        async with aclosing(self._files.upload(aiter(request_iterator))) as responses:
            async for response in responses:
                yield response

    async def DownloadFiles(
        self, request: agent_service_pb2.DownloadFilesRequest, context: Any
    ) -> AsyncGenerator[agent_service_pb2.DownloadFilesResponse, None]:
        """Reads files from the work directory of a running attempt."""
        del context
        async with aclosing(self._files.download(request)) as responses:
            async for response in responses:
                yield response

    async def ListFiles(
        self, request: agent_service_pb2.ListFilesRequest, context: Any
    ) -> AsyncGenerator[agent_service_pb2.ListFilesResponse, None]:
        """Lists files in the work directory of a running attempt."""
        del context
        async with aclosing(self._files.list(request)) as responses:
            async for response in responses:
                yield response

    async def StartApp(
        self, request: agent_service_pb2.StartAppRequest, context: Any
    ) -> agent_service_pb2.StartAppResponse:
        """Starts a detached program inside a running attempt."""
        del context
        return agent_service_pb2.StartAppResponse(status=await self._apps.start(request))

    async def StopApp(
        self, request: agent_service_pb2.StopAppRequest, context: Any
    ) -> agent_service_pb2.StopAppResponse:
        """Ends such a program."""
        del context
        return agent_service_pb2.StopAppResponse(status=await self._apps.stop(request))

    async def GetApp(self, request: agent_service_pb2.GetAppRequest, context: Any) -> agent_service_pb2.GetAppResponse:
        """Says whether such a program runs."""
        del context
        return agent_service_pb2.GetAppResponse(status=await self._apps.status(request.location))


_STREAMS = {
    Stream.UNSPECIFIED: log_stream_pb2.LOG_STREAM_UNSPECIFIED,
    Stream.STDOUT: log_stream_pb2.LOG_STREAM_STDOUT,
    Stream.STDERR: log_stream_pb2.LOG_STREAM_STDERR,
}


async def _begin(output: Output, request: agent_service_pb2.StreamLogsRequest) -> int:
    """Returns the first byte to be sent: the latest of what the request says."""
    offset = request.offset
    if request.HasField("since_time"):
        since = request.since_time.seconds + request.since_time.nanos / 1e9
        offset = max(offset, await asyncio.to_thread(output.since, since))
    if request.tail_lines > 0:
        offset = max(offset, await asyncio.to_thread(output.last_lines, request.tail_lines))
    return offset
