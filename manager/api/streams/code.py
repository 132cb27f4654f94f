"""ExecuteCode: checks every step, finds `main1`, and passes all steps on to its agent."""

from __future__ import annotations

import contextlib
import logging
import uuid
from contextlib import AbstractContextManager, ExitStack, aclosing
from typing import TYPE_CHECKING

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.api.streams.ends import naming_the_end
from retinue.manager.api.visibility import find_session, record_access, require_feature
from retinue.manager.domain import errors
from retinue.manager.domain.session.events import AccessMethod
from retinue.manager.domain.session.features import Feature
from retinue.manager.server.interceptors import current_principal
from retinue.manager.session import kernel_locator
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc.first_request import first_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from retinue.manager.agent_rpc.relay import Forwarder
    from retinue.manager.store.postgres.database import Database
    from retinue.types.v1 import code_pb2

_log = logging.getLogger(__name__)

MAX_CODE_BYTES = 1 << 20
MAX_TEXT_BYTES = 64 * 1024
MAX_LANGUAGE = 64
MAX_TIMEOUT_SECONDS = 30 * 24 * 3600
KERNEL = "main1"


async def serve_code(
    database: Database, forwarder: Forwarder, requests: AsyncIterator[pb.ExecuteCodeRequest]
) -> AsyncGenerator[pb.ExecuteCodeResponse, None]:
    """Serves one stream."""
    opening = await _first(requests)
    language = opening.language or "python"
    async with database.transaction() as tx:
        session_id = await find_session(tx, opening.session, owner_only=True)
        await require_feature(tx, session_id, Feature.CODE_EXECUTION)
        location = await kernel_locator.locate(tx, session_id, KERNEL)
        await record_access(tx, session_id, AccessMethod.CODE, KERNEL)
    # What it runs is left out: code holds secrets.
    _log.info("%s runs code in session %s", current_principal().name, session_id)
    steps = _steps(agent_pb.CodeOpen(attempt_id=location.attempt_id, language=language), requests)
    running = RunningCode(lambda: forwarder.hold(location))
    async with (
        naming_the_end(database, session_id, KERNEL, location),
        aclosing(forwarder.exchange(location, lambda stub: stub.ExecuteCode, steps)) as responses,
    ):
        with running:
            async for response in responses:
                match response.output.WhichOneof("step"):
                    case "opened":
                        running.opened()
                    case "events":
                        running.note(response.output.events)
                        if opening.text:
                            as_text(response.output.events)
                yield pb.ExecuteCodeResponse(output=response.output)


def as_text(events: code_pb2.CodeEvents) -> None:
    """Moves the data of media that are UTF-8 to `text`."""
    for event in events.events:
        # Of an event of another kind it would make one of media.
        for form in event.media.forms if event.HasField("media") else ():
            with contextlib.suppress(UnicodeDecodeError):
                form.text = form.data.decode()
                form.ClearField("data")


class RunningCode:
    """Runs that a stream was sent and that have not ended: while there are any, or the stream is being opened, the
    session is in use, also when nothing is printed.
    """

    def __init__(self, hold: Callable[[], AbstractContextManager[None]]) -> None:
        self._hold = hold
        # The empty id is that of the opening.
        self._runs = {""}
        self._held = ExitStack()

    def opened(self) -> None:
        """The stream takes runs."""
        self._runs.discard("")
        self._release()

    def note(self, events: code_pb2.CodeEvents) -> None:
        """Something happened in runs."""
        for event in events.events:
            if event.HasField("finished"):
                self._runs.discard(event.run_id)
            else:
                if not self._runs:
                    self._held.enter_context(self._hold())
                self._runs.add(event.run_id)
        self._release()

    def _release(self) -> None:
        if not self._runs:
            self._held.close()

    def __enter__(self) -> None:
        self._held.enter_context(self._hold())

    def __exit__(self, *_: object) -> None:
        self._held.close()


async def _first(requests: AsyncIterator[pb.ExecuteCodeRequest]) -> pb.CodeOpen:
    request = await first_request(anext(requests), "open")
    language = request.open.language
    if len(language) > MAX_LANGUAGE or not language.isprintable() or "/" in language:
        raise errors.InvalidRequest([("open.language", f"must be a name of at most {MAX_LANGUAGE} characters")])
    return request.open


async def _steps(
    opening: agent_pb.CodeOpen, requests: AsyncIterator[pb.ExecuteCodeRequest]
) -> AsyncIterator[agent_pb.ExecuteCodeRequest]:
    yield agent_pb.ExecuteCodeRequest(open=opening)
    async for request in requests:
        match request.WhichOneof("step"):
            case "input":
                if violations := wrong_input(request.input):
                    raise errors.InvalidRequest(violations)
                yield agent_pb.ExecuteCodeRequest(input=request.input)
            case "open":
                raise errors.InvalidRequest([("open", "must come once")])
            case _:
                raise errors.InvalidRequest([("step", "is required")])


def wrong_input(message: code_pb2.CodeInput) -> list[errors.Violation]:
    """Returns the error of a step after the first: (field path, description)."""
    found: list[errors.Violation] = []
    match message.WhichOneof("step"):
        case "run":
            found = _wrong_run(message.run)
        case "resume":
            found = _wrong_id(message.resume.run_id, "resume.run_id")
            if message.resume.offset < 0:
                found.append(("resume.offset", "is negative"))
        case "answer":
            found = _wrong_id(message.answer.run_id, "answer.run_id")
            found += _too_long(message.answer.value, "answer.value", MAX_TEXT_BYTES)
        case "interrupt":
            # Without one it is for whatever runs.
            found = _wrong_id(message.interrupt.run_id, "interrupt.run_id") if message.interrupt.run_id else []
        case "complete":
            found = _too_long(message.complete.code, "complete.code", MAX_CODE_BYTES)
            if not 0 <= message.complete.cursor <= len(message.complete.code):
                found.append(("complete.cursor", "must be within the code"))
        case _:
            found = [("step", "is required")]
    return [(f"input.{path}", description) for path, description in found]


def _wrong_run(run: code_pb2.CodeRun) -> list[errors.Violation]:
    found = _wrong_id(run.run_id, "run.run_id") if run.run_id else []
    match run.WhichOneof("program"):
        case "code":
            found += _too_long(run.code, "run.code", MAX_CODE_BYTES)
        case "batch":
            commands = (("clean", run.batch.clean), ("build", run.batch.build), ("exec", run.batch.exec))
            for name, command in commands:
                found += _too_long(command, f"run.batch.{name}", MAX_TEXT_BYTES)
                if "\0" in command:
                    found.append((f"run.batch.{name}", "must not hold NUL"))
            if not any(command for _, command in commands):
                found.append(("run.batch", "must have a command"))
        case _:
            found.append(("run.program", "is required"))
    if run.HasField("timeout") and not 0 < run.timeout.ToNanoseconds() <= MAX_TIMEOUT_SECONDS * 10**9:
        found.append(("run.timeout", "must be from more than 0 to 30 days"))
    return found


def _wrong_id(text: str, path: str) -> list[errors.Violation]:
    try:
        plain = str(uuid.UUID(text)) == text.lower()
    except ValueError:
        plain = False
    return [] if plain else [(path, "must be a UUID")]


def _too_long(text: str, path: str, most: int) -> list[errors.Violation]:
    return [(path, f"must be at most {most} bytes")] if len(text.encode()) > most else []
