"""Attach: checks the first step, finds the kernel, and passes all steps on to its agent."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.agent_rpc.relay import Forwarder
from retinue.manager.api.streams.ends import naming_the_end
from retinue.manager.api.visibility import find_session, record_access, require_feature
from retinue.manager.domain import errors
from retinue.manager.domain.session.admission import wrong_command, wrong_directory, wrong_environment
from retinue.manager.domain.session.events import AccessMethod
from retinue.manager.domain.session.features import Feature
from retinue.manager.server.interceptors import current_principal
from retinue.manager.session import kernel_locator
from retinue.manager.store.postgres.database import Database
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc.first_request import first_request
from retinue.types.v1 import terminal_pb2

_log = logging.getLogger(__name__)

MAX_INPUT_BYTES = 64 * 1024
MAX_TERMINAL = 1000
SIGNALS = ("INT", "TERM", "KILL", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT", "TSTP", "WINCH", "ALRM")


async def serve_attach(
    database: Database, forwarder: Forwarder, requests: AsyncIterator[pb.AttachRequest]
) -> AsyncGenerator[pb.AttachResponse, None]:
    """Serves one stream."""
    start = await _first(requests)
    hostname = start.hostname or "main1"
    async with database.transaction() as tx:
        session_id = await find_session(tx, start.session, owner_only=True)
        await require_feature(tx, session_id, Feature.ATTACH)
        location = await kernel_locator.locate(tx, session_id, hostname)
        directory = start.working_directory or await kernel_locator.working_directory(tx, session_id, hostname)
        await record_access(tx, session_id, AccessMethod.ATTACH, hostname)
    # What it runs is left out: commands hold secrets.
    _log.info("%s attaches to kernel %s of session %s", current_principal().name, hostname, session_id)
    steps = _steps(location.attempt_id, start, directory, requests)
    async with (
        naming_the_end(database, session_id, hostname, location),
        aclosing(forwarder.exchange(location, lambda stub: stub.Attach, steps)) as responses,
    ):
        async for response in responses:
            yield _response(response, hostname)


async def _first(requests: AsyncIterator[pb.AttachRequest]) -> pb.AttachStart:
    request = await first_request(anext(requests), "start")
    if violations := wrong_start(request.start):
        raise errors.InvalidRequest(violations)
    return request.start


def wrong_start(start: pb.AttachStart) -> list[errors.Violation]:
    """Returns the error of a first step: (field path, description)."""
    violations = [
        *wrong_command(tuple(start.command), "start.command"),
        *wrong_environment(start.environment, "start.environment"),
    ]
    violations += wrong_directory(start.working_directory, "start.working_directory")
    if start.HasField("terminal"):
        violations += _wrong_size(start.terminal, "start.terminal")
        if start.detached:
            violations.append(("start.detached", "has no terminal"))
    return violations


def _wrong_size(size: terminal_pb2.TerminalSize, path: str) -> list[errors.Violation]:
    sizes = (("rows", size.rows), ("columns", size.columns))
    return [
        (f"{path}.{name}", f"must be from 1 to {MAX_TERMINAL}")
        for name, value in sizes
        if not 1 <= value <= MAX_TERMINAL
    ]


async def _steps(
    attempt_id: str, start: pb.AttachStart, directory: str, requests: AsyncIterator[pb.AttachRequest]
) -> AsyncIterator[agent_pb.AttachRequest]:
    yield agent_pb.AttachRequest(
        start=agent_pb.AttachStart(
            attempt_id=attempt_id,
            command=start.command,
            environment=start.environment,
            working_directory=directory,
            terminal=_size(start.terminal) if start.HasField("terminal") else None,
            keep_processes=start.keep_processes,
            detached=start.detached,
        )
    )
    async for request in requests:
        yield agent_step(request)


def agent_step(request: pb.AttachRequest) -> agent_pb.AttachRequest:
    """A step after the first as the agent gets it. Raises InvalidRequest."""
    match request.WhichOneof("step"):
        case "stdin":
            if len(request.stdin) > MAX_INPUT_BYTES:
                raise errors.InvalidRequest([("stdin", f"must be at most {MAX_INPUT_BYTES} bytes")])
            return agent_pb.AttachRequest(stdin=request.stdin)
        case "end_of_input":
            return agent_pb.AttachRequest(end_of_input=terminal_pb2.EndOfInput())
        case "resize":
            if violations := _wrong_size(request.resize, "resize"):
                raise errors.InvalidRequest(violations)
            return agent_pb.AttachRequest(resize=_size(request.resize))
        case "signal":
            name = request.signal.removeprefix("SIG")
            if name not in SIGNALS:
                raise errors.InvalidRequest([("signal", f"must be one of {', '.join(SIGNALS)}")])
            return agent_pb.AttachRequest(signal=name)
        case "start":
            raise errors.InvalidRequest([("start", "must come once")])
        case _:
            raise errors.InvalidRequest([("step", "is required")])


def _size(size: terminal_pb2.TerminalSize) -> terminal_pb2.TerminalSize:
    return terminal_pb2.TerminalSize(rows=size.rows, columns=size.columns)


def _response(response: agent_pb.AttachResponse, hostname: str) -> pb.AttachResponse:
    match response.WhichOneof("step"):
        case "started":
            return pb.AttachResponse(started=pb.AttachStarted(hostname=hostname))
        case "stdout":
            return pb.AttachResponse(stdout=response.stdout)
        case "stderr":
            return pb.AttachResponse(stderr=response.stderr)
        case _:
            return pb.AttachResponse(exited=terminal_pb2.CommandExited(exit_code=response.exited.exit_code))
