"""Attach: checks the first step, finds the kernel, and passes all steps on to its agent."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.api.streams.ends import naming_the_end
from retinue.manager.api.visibility import find_session, record_access, require_feature
from retinue.manager.domain import errors
from retinue.manager.domain.session.admission import wrong_command, wrong_directory, wrong_environment
from retinue.manager.domain.session.events import AccessMethod
from retinue.manager.domain.session.features import Feature
from retinue.manager.server.interceptors import current_principal
from retinue.manager.session import kernel_locator
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc.first_request import first_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from retinue.manager.agent_rpc.relay import Forwarder
    from retinue.manager.store.postgres.database import Database
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
        if not start.spec.working_directory:
            start.spec.working_directory = await kernel_locator.working_directory(tx, session_id, hostname)
        await record_access(tx, session_id, AccessMethod.ATTACH, hostname)
    # What it runs is left out: commands hold secrets.
    _log.info("%s attaches to kernel %s of session %s", current_principal().name, hostname, session_id)
    steps = _steps(location.attempt_id, start.spec, requests)
    async with (
        naming_the_end(database, session_id, hostname, location),
        aclosing(forwarder.exchange(location, lambda stub: stub.Attach, steps)) as responses,
    ):
        async for response in responses:
            yield pb.AttachResponse(output=response.output)


async def _first(requests: AsyncIterator[pb.AttachRequest]) -> pb.AttachStart:
    request = await first_request(anext(requests), "start")
    if violations := wrong_start(request.start):
        raise errors.InvalidRequest(violations)
    return request.start


def wrong_start(start: pb.AttachStart) -> list[errors.Violation]:
    """Returns the error of a first step: (field path, description)."""
    spec = start.spec
    violations = [
        *wrong_command(tuple(spec.command), "start.spec.command"),
        *wrong_environment(spec.environment, "start.spec.environment"),
        *wrong_directory(spec.working_directory, "start.spec.working_directory"),
    ]
    if spec.HasField("terminal"):
        violations += _wrong_size(spec.terminal, "start.spec.terminal")
        if spec.detached:
            violations.append(("start.spec.detached", "has no terminal"))
    return violations


def _wrong_size(size: terminal_pb2.TerminalSize, path: str) -> list[errors.Violation]:
    sizes = (("rows", size.rows), ("columns", size.columns))
    return [
        (f"{path}.{name}", f"must be from 1 to {MAX_TERMINAL}")
        for name, value in sizes
        if not 1 <= value <= MAX_TERMINAL
    ]


async def _steps(
    attempt_id: str, spec: terminal_pb2.CommandSpec, requests: AsyncIterator[pb.AttachRequest]
) -> AsyncIterator[agent_pb.AttachRequest]:
    yield agent_pb.AttachRequest(start=agent_pb.AttachStart(attempt_id=attempt_id, spec=spec))
    async for request in requests:
        match request.WhichOneof("step"):
            case "input":
                if violations := wrong_input(request.input):
                    raise errors.InvalidRequest(violations)
                yield agent_pb.AttachRequest(input=request.input)
            case "start":
                raise errors.InvalidRequest([("start", "must come once")])
            case _:
                raise errors.InvalidRequest([("step", "is required")])


def wrong_input(message: terminal_pb2.CommandInput) -> list[errors.Violation]:
    """Returns the error of a step after the first: (field path, description)."""
    match message.WhichOneof("step"):
        case "stdin" if len(message.stdin) > MAX_INPUT_BYTES:
            return [("input.stdin", f"must be at most {MAX_INPUT_BYTES} bytes")]
        case "resize":
            return _wrong_size(message.resize, "input.resize")
        case "signal" if message.signal.removeprefix("SIG") not in SIGNALS:
            return [("input.signal", f"must be one of {', '.join(SIGNALS)}")]
        case None:
            return [("input.step", "is required")]
        case _:
            return []
