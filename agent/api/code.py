"""ExecuteCode: passes runs on to the workspace of a kernel, and what happens in them back,
as long as the stream lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retinue.agent.api.code_messages import to_completions, to_events, to_run
from retinue.agent.api.errors import invalid, not_running, unknown_attempt
from retinue.agent.code.inside import LanguageMissingError
from retinue.agent.code.runs import OffsetPastEndError, Run
from retinue.agent.code.workspace import TooManyRunsError, Workspace
from retinue.agent.code.workspaces import MAX_LANGUAGES, TooManyLanguagesError
from retinue.agent.errors import KernelRuntimeError, NotRunningError, UnknownAttemptError
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.errors import ApiError, Code, ServiceError
from retinue.rpc.core.reasons import ErrorReason
from retinue.rpc.first_request import first_request
from retinue.rpc.stream_limits import OpenStreams
from retinue.types.v1 import code_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from retinue.agent.code.workspaces import Workspaces

MAX_PER_ATTEMPT = 32
"""Streams at a time into one kernel."""
MAX_UNREAD = 64
"""Responses that are buffered for the reader of the stream."""


class CodeService:
    """All streams for code of an agent."""

    def __init__(self, workspaces: Workspaces) -> None:
        """Opens nothing yet."""
        self._workspaces = workspaces
        self._open = OpenStreams({}, MAX_PER_ATTEMPT)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends every stream, and lets no other begin; runs continue."""
        self._stopping.set()

    async def serve(
        self, requests: AsyncIterator[pb.ExecuteCodeRequest]
    ) -> AsyncGenerator[pb.ExecuteCodeResponse, None]:
        """Serves one stream to its end."""
        opening = (await first_request(anext(requests), "open")).open
        with self._open.hold("ExecuteCode", opening.attempt_id), _to_api_errors(opening.attempt_id):
            async with self._workspaces.open(opening.attempt_id, opening.language) as workspace:
                yield _response(opened=code_pb2.CodeOpened())
                async with contextlib.aclosing(self._responses(workspace, requests)) as responses:
                    async for response in responses:
                        yield response

    async def _responses(
        self, workspace: Workspace, requests: AsyncIterator[pb.ExecuteCodeRequest]
    ) -> AsyncGenerator[pb.ExecuteCodeResponse, None]:
        stream = _Stream(workspace)
        stopping = asyncio.ensure_future(self._stopping.wait())
        stream.begin(stream.take(requests))
        upcoming: asyncio.Future[pb.ExecuteCodeResponse | _Ended] | None = None
        try:
            # The end of a task counts once it is read, and is behind all that the task has put there.
            while stream.unread > 0:
                upcoming = asyncio.ensure_future(stream.responses.get())
                await asyncio.wait({upcoming, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    raise _unavailable("the agent is stopping")
                response = upcoming.result()
                if not isinstance(response, _Ended):
                    yield response
                    continue
                stream.unread -= 1
                if response.failure is not None:
                    raise response.failure
        finally:
            stopping.cancel()
            if upcoming is not None:
                upcoming.cancel()
            await stream.close()


@dataclass(frozen=True, slots=True)
class _Ended:
    """One part of a stream has ended, and how."""

    failure: Exception | None


class _Stream:
    """One stream: tasks that fill `responses`, each with its end as the last."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._tasks: set[asyncio.Task[None]] = set()
        self._followed: set[str] = set()
        self.responses: asyncio.Queue[pb.ExecuteCodeResponse | _Ended] = asyncio.Queue(MAX_UNREAD)
        self.unread = 0
        """Tasks whose end was not taken out of `responses` yet."""

    def begin(self, work: Any) -> None:
        """Does something beside the rest of the stream."""
        self.unread += 1
        self._tasks.add(asyncio.create_task(self._to_end(work), name="code stream"))

    async def close(self) -> None:
        """Ends all that the stream does; the iterator of requests must not be touched once the call has ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take(self, requests: AsyncIterator[pb.ExecuteCodeRequest]) -> None:
        """Takes steps until there are no more."""
        async for request in requests:
            step = request.input
            match step.WhichOneof("step"):
                case "run":
                    self._follow(await self._workspace.add(to_run(step.run)), 0)
                case "resume":
                    self._follow(self._run(step.resume.run_id), step.resume.offset)
                case "answer":
                    # An answer may come too late without being wrong.
                    await self._workspace.answer(self._run(step.answer.run_id), step.answer.value)
                case "interrupt":
                    wanted = step.interrupt.run_id
                    run = self._run(wanted) if wanted else self._workspace.current()
                    if run is not None:
                        self._workspace.interrupt(run, force=step.interrupt.force)
                case "complete":
                    self.begin(self._complete(step.complete))
                case _:
                    raise invalid("step", "makes no sense here")

    def _run(self, run_id: str) -> Run:
        if (run := self._workspace.find(run_id)) is None:
            message = f"there is no run {run_id}, or not any more: an agent that was restarted knows none of before"
            raise ServiceError(Code.NOT_FOUND, "RUN_NOT_FOUND", message, kind="run", id=run_id)
        return run

    def _follow(self, run: Run, offset: int) -> None:
        if offset > run.end:
            raise OffsetPastEndError(run.end)
        if run.id not in self._followed:
            self._followed.add(run.id)
            self.begin(self._pass_on(run, offset))

    async def _pass_on(self, run: Run, offset: int) -> None:
        async with contextlib.aclosing(run.read(offset)) as pieces:
            async for events in pieces:
                await self.responses.put(_response(events=to_events(run.id, events)))
        self._followed.discard(run.id)

    async def _complete(self, query: code_pb2.CodeCompletionQuery) -> None:
        found = await self._workspace.complete(query.code, query.cursor)
        await self.responses.put(_response(completions=to_completions(query.query_id, found)))

    async def _to_end(self, work: Any) -> None:
        failure: Exception | None = None
        try:
            await work
        except Exception as error:  # noqa: BLE001  # raised by the reader of the responses
            failure = error
        await self.responses.put(_Ended(failure))


def _response(**step: Any) -> pb.ExecuteCodeResponse:
    return pb.ExecuteCodeResponse(output=code_pb2.CodeOutput(**step))


@contextlib.contextmanager
def _to_api_errors(attempt_id: str) -> Iterator[None]:
    try:
        yield
    except UnknownAttemptError as error:
        raise unknown_attempt(attempt_id) from error
    except OffsetPastEndError as error:
        size = str(error.size)
        raise ServiceError(Code.OUT_OF_RANGE, ErrorReason.OFFSET_PAST_END, str(error), size=size) from error
    except LanguageMissingError as error:
        names = ", ".join(error.installed)
        code = Code.FAILED_PRECONDITION
        raise ServiceError(code, ErrorReason.LANGUAGE_UNAVAILABLE, str(error), installed=names) from error
    except NotRunningError as error:
        raise not_running(attempt_id, error) from error
    except TooManyRunsError as error:
        raise _limit(64, "runs wait") from error
    except TooManyLanguagesError as error:
        raise _limit(MAX_LANGUAGES, "languages are in use") from error
    except KernelRuntimeError as error:
        raise _unavailable(str(error)) from error


def _limit(limit: int, what: str) -> ApiError:
    message = f"{limit} {what} in this kernel already"
    return ServiceError(Code.RESOURCE_EXHAUSTED, ErrorReason.STREAM_LIMIT, message, limit=str(limit))


def _unavailable(message: str) -> ApiError:
    return ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, message)
