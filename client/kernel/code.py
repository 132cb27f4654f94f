"""Runs code in a session: its output is returned as it is produced."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, cast

import grpc
import grpc.aio

from retinue.client import enum_names
from retinue.client.errors import CallError, RetinueError, Unavailable
from retinue.client.notebooks import as_html, shortened
from retinue.client.time_spans import as_duration
from retinue.client.transport.bidi_stream import BidiStream
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.types.v1 import code_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType

    from retinue.client.words import CodeStatus, Span
    from retinue.manager.v1 import kernel_service_pb2_grpc

MAX_UNREAD = 256
"""Events of one run that are buffered for its reader; when they are full, the stream waits."""
# For an interrupt to be sent when the caller of a run leaves.
_INTERRUPT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CodeResult:
    """A run as a whole. `media` are forms by MIME type, in the order they were shown;
    `value` is the text of the code's value.
    """

    run_id: str
    status: CodeStatus
    exit_code: int
    stdout: str
    stderr: str
    media: list[dict[str, bytes]] = field(default_factory=list)
    value: str = ""
    error_name: str = ""
    error_value: str = ""
    traceback: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Returns a text of one line."""
        said = f" {self.error_name}: {self.error_value}" if self.error_name else f" {self.value}" if self.value else ""
        return f"<CodeResult {self.status}{shortened(said)}>"

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: all text, whatever else the run has shown is in `media`."""
        facts = {"status": self.status, "error": self.error_name and f"{self.error_name}: {self.error_value}"}
        return as_html("Code", facts, self.stdout + self.stderr + self.value)


class Code:
    """A stream of runs of one language in one session; variables are kept from run to run, and from stream to stream.

    async with session.code() as code:
        result = await code.execute("6 * 7")
        print(result.value)
        async for event in code.run("for n in range(3): print(n)"):
            print(event.stdout, end="")

    Runs continue when the block is left: `resume` sends the rest of their events to another stream.
    All methods raise CallError.
    """

    def __init__(self, stub: kernel_service_pb2_grpc.KernelServiceAsyncStub, session: str, language: str) -> None:
        """Sends nothing before the block is entered."""
        self._identity = str(uuid.uuid4())
        self._stub = stub
        self._open = pb.CodeOpen(session=session, language=language)
        self._reading: asyncio.Task[None] | None = None
        self._runs: dict[str, asyncio.Queue[code_pb2.CodeEvent | None]] = {}
        self._queries: dict[int, asyncio.Future[code_pb2.CodeCompletions]] = {}
        self._numbers = itertools.count(1)
        self._failure: RetinueError | None = None

    async def __aenter__(self) -> Self:
        """Opens the stream, and returns when it takes runs."""
        method = self._stub.ExecuteCode
        self._exchange = BidiStream[pb.ExecuteCodeRequest, pb.ExecuteCodeResponse](method, self._identity)
        try:
            await self._exchange.send(pb.ExecuteCodeRequest(open=self._open))
            await self._exchange.receive()
        except BaseException:
            self._exchange.cancel()
            raise
        self._reading = asyncio.create_task(self._read(), name="code stream")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the stream, not what runs."""
        self._exchange.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def run(
        self, code: str, *, run_id: str = "", timeout: Span | None = None
    ) -> AsyncGenerator[code_pb2.CodeEvent, None]:
        """Runs code; what happens, as it happens, up to `finished`. The same `run_id` (a UUID) does not run twice."""
        return self._follow(code_pb2.CodeInput(run=_run(code_pb2.CodeRun(code=code), run_id, timeout)))

    def batch(
        self, *, clean: str = "", build: str = "", execute: str = "", run_id: str = "", timeout: Span | None = None
    ) -> AsyncGenerator[code_pb2.CodeEvent, None]:
        """Runs shell commands one after the other, `*` for the usual ones; what happens, up to `finished`."""
        commands = code_pb2.CodeBatch(clean=clean, build=build, exec=execute)
        return self._follow(code_pb2.CodeInput(run=_run(code_pb2.CodeRun(batch=commands), run_id, timeout)))

    def resume(self, run_id: str, offset: int = 0) -> AsyncGenerator[code_pb2.CodeEvent, None]:
        """Yields the events of a run of any stream, from an offset on."""
        return self._follow(code_pb2.CodeInput(resume=code_pb2.CodeResume(run_id=run_id, offset=offset)))

    async def execute(self, code: str, *, run_id: str = "", timeout: Span | None = None) -> CodeResult:  # noqa: ASYNC109  # of the run
        """Runs code to its end; what it prints and shows is put together. A run that asks for input is interrupted, and
        so is one whose caller leaves: what runs next would wait behind it.
        """
        run_id = run_id or str(uuid.uuid4())
        events = []
        try:
            async with contextlib.aclosing(self.run(code, run_id=run_id, timeout=timeout)) as happening:
                async for event in happening:
                    events.append(event)
                    if event.HasField("input_request"):
                        await self.interrupt(event.run_id)
        except asyncio.CancelledError:
            with contextlib.suppress(RetinueError, TimeoutError):
                await asyncio.wait_for(self.interrupt(run_id), _INTERRUPT_SECONDS)
            raise
        return gathered(events)

    async def answer(self, run_id: str, value: str) -> None:
        """Answers a run that asked for input."""
        await self._send(code_pb2.CodeInput(answer=code_pb2.CodeAnswer(run_id=run_id, value=value)))

    async def interrupt(self, run_id: str = "", *, force: bool = False) -> None:
        """Interrupts a run, by default the one that runs now or is the next to, no matter who started it;
        with `force` its variables are lost.
        """
        await self._send(code_pb2.CodeInput(interrupt=code_pb2.CodeInterrupt(run_id=run_id, force=force)))

    async def finish(self) -> None:
        """Asks for nothing more, and waits until all that was asked for is done."""
        await self._exchange.end_requests()
        if self._reading is not None:
            await asyncio.wait([self._reading])
        if not self._exchange.ended_well:
            raise self._failure or self._lost()

    async def complete(self, code: str, cursor: int | None = None) -> code_pb2.CodeCompletions:
        """Returns completions of code at a position, by default its end; nothing while something runs."""
        number = next(self._numbers)
        answer: asyncio.Future[code_pb2.CodeCompletions] = asyncio.get_running_loop().create_future()
        self._queries[number] = answer
        position = len(code) if cursor is None else cursor
        query = code_pb2.CodeCompletionQuery(query_id=number, code=code, cursor=position)
        try:
            await self._send(code_pb2.CodeInput(complete=query))
            return await answer
        finally:
            del self._queries[number]

    async def _follow(self, step: code_pb2.CodeInput) -> AsyncGenerator[code_pb2.CodeEvent, None]:
        run_id = step.run.run_id if step.HasField("run") else step.resume.run_id
        events = self._runs[run_id] = asyncio.Queue(MAX_UNREAD)
        try:
            await self._send(step)
            while True:
                event = await events.get()
                if event is None:
                    raise self._failure or self._lost()
                yield event
                if event.HasField("finished"):
                    return
        finally:
            del self._runs[run_id]
            # The reader of all runs may wait for room in this queue.
            while not events.empty():
                events.get_nowait()

    async def _read(self) -> None:
        try:
            while True:
                output = (await self._exchange.receive()).output
                if output.HasField("completions"):
                    query = self._queries.get(output.completions.query_id)
                    if query is not None and not query.done():
                        query.set_result(output.completions)
                for event in output.events.events:
                    if (events := self._runs.get(event.run_id)) is not None:
                        await events.put(event)
        except RetinueError as error:
            self._failure = error
            for query in self._queries.values():
                if not query.done():
                    query.set_exception(error)
            # Behind what has come and is not read yet.
            await asyncio.gather(*(events.put(None) for events in self._runs.values()))

    async def _send(self, step: code_pb2.CodeInput) -> None:
        if self._failure is not None:
            raise self._failure
        await self._exchange.send(pb.ExecuteCodeRequest(input=step))

    def _lost(self) -> CallError:
        code = grpc.StatusCode.UNAVAILABLE
        return Unavailable("the server ended the stream", code=code, request_id=self._identity)


def _run(run: code_pb2.CodeRun, run_id: str, timeout: Span | None) -> code_pb2.CodeRun:
    run.run_id = run_id or str(uuid.uuid4())
    if timeout is not None:
        run.timeout.CopyFrom(as_duration(timeout))
    return run


def gathered(events: list[code_pb2.CodeEvent]) -> CodeResult:
    """Returns a finished run, built from its events."""
    last = events[-1].finished
    media = [event.media for event in events if event.HasField("media")]
    values = [
        form.data.decode(errors="replace")
        for item in media
        if item.result
        for form in item.forms[:]
        if form.mime_type == "text/plain"
    ]
    return CodeResult(
        run_id=events[-1].run_id,
        status=cast("CodeStatus", enum_names.name_of(code_pb2.CodeStatus.DESCRIPTOR, last.status)),
        exit_code=last.exit_code,
        stdout="".join(event.stdout for event in events),
        stderr="".join(event.stderr for event in events),
        media=[{form.mime_type: form.data for form in item.forms} for item in media],
        value=values[-1] if values else "",
        error_name=last.error_name,
        error_value=last.error_value,
        traceback=tuple(last.traceback),
    )
