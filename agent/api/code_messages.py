"""Translates runs of code and their events between values and messages."""

from __future__ import annotations

import uuid
from typing import assert_never

from retinue.agent.code.core.events import (
    Batch,
    Completions,
    Event,
    Finished,
    InputRequest,
    Level,
    Media,
    Notice,
    NumberedEvent,
    Phase,
    PhaseFinished,
    Queued,
    RunRequest,
    Started,
    Status,
    Text,
)
from retinue.types.v1 import code_pb2 as pb

_PHASES = {
    None: pb.CODE_PHASE_UNSPECIFIED,
    Phase.CLEAN: pb.CODE_PHASE_CLEAN,
    Phase.BUILD: pb.CODE_PHASE_BUILD,
    Phase.EXECUTE: pb.CODE_PHASE_EXEC,
}
_STATUSES = {
    Status.OK: pb.CODE_STATUS_OK,
    Status.ERROR: pb.CODE_STATUS_ERROR,
    Status.INTERRUPTED: pb.CODE_STATUS_INTERRUPTED,
    Status.TIMED_OUT: pb.CODE_STATUS_TIMED_OUT,
    Status.PROCESS_LOST: pb.CODE_STATUS_PROCESS_LOST,
}

_LEVELS = {Level.INFO: pb.CODE_LOG_LEVEL_INFO, Level.WARNING: pb.CODE_LOG_LEVEL_WARNING}


def to_run(message: pb.CodeRun) -> RunRequest:
    """Returns what is asked for; a run without an id gets one."""
    batch = None
    if message.HasField("batch"):
        batch = Batch(message.batch.clean, message.batch.build, message.batch.exec)
    timeout = message.timeout.ToNanoseconds() / 1e9 if message.HasField("timeout") else None
    return RunRequest(message.run_id or str(uuid.uuid4()), message.code, batch, timeout)


def to_events(run_id: str, events: list[NumberedEvent]) -> pb.CodeEvents:
    """Returns the message for events of a run."""
    return pb.CodeEvents(events=[_to_event(run_id, event) for event in events])


def to_completions(query_id: int, found: Completions) -> pb.CodeCompletions:
    """Returns the answer to a query."""
    return pb.CodeCompletions(query_id=query_id, matches=found.matches, start=found.start, end=found.end)


def _to_event(run_id: str, numbered: NumberedEvent) -> pb.CodeEvent:
    message = pb.CodeEvent(run_id=run_id, offset=numbered.offset)
    _set(message, numbered.event)
    return message


def _set(message: pb.CodeEvent, event: Event) -> None:
    match event:
        case Text(text, errors=False):
            message.stdout = text
        case Text(text):
            message.stderr = text
        case Queued(ahead):
            message.queued.ahead = ahead
        case Started(phase):
            message.started.CopyFrom(pb.CodeStarted(phase=_PHASES[phase]))
        case Media():
            forms = [pb.CodeMediaForm(mime_type=form.mime_type, data=form.data) for form in event.forms]
            message.media.CopyFrom(
                pb.CodeMedia(forms=forms, result=event.result, display_id=event.display_id, update=event.update)
            )
        case Notice(words, level):
            message.log.CopyFrom(pb.CodeLog(level=_LEVELS[level], message=words))
        case InputRequest(prompt, password):
            message.input_request.CopyFrom(pb.CodeInputRequest(prompt=prompt, password=password))
        case PhaseFinished(phase, exit_code):
            message.phase_finished.CopyFrom(pb.CodePhaseFinished(phase=_PHASES[phase], exit_code=exit_code))
        case Finished():
            message.finished.CopyFrom(
                pb.CodeFinished(
                    status=_STATUSES[event.status],
                    exit_code=event.exit_code,
                    error_name=event.error_name,
                    error_value=event.error_value,
                    traceback=event.traceback,
                )
            )
        case _:
            assert_never(event)
