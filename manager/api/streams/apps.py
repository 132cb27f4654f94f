"""StartApp, StopApp and GetApp: finds the definition, checks what is added to it, and asks the agent that has the kernel."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.access import kernel_locator
from retinue.manager.access.access_log import AccessMethod
from retinue.manager.access.kernel_locator import MainKernel
from retinue.manager.agent_rpc.relay import Forwarder
from retinue.manager.api.visibility import find_session, record_access
from retinue.manager.server import errors
from retinue.manager.server.interceptors import current_principal
from retinue.manager.session.core.admission import wrong_command, wrong_environment
from retinue.manager.session.core.apps import ServiceSpec
from retinue.manager.session.core.spec import MAIN
from retinue.manager.store import journal
from retinue.manager.store.database import Database
from retinue.manager.v1 import app_service_pb2 as pb
from retinue.types.v1 import app_pb2

_log = logging.getLogger(__name__)

# Less than any unary call may take.
MAX_WAIT_SECONDS = 20
DEFAULT_GRACE_SECONDS = 10


async def start_app(database: Database, forwarder: Forwarder, request: pb.StartAppRequest) -> pb.StartAppResponse:
    """Starts it, unless it runs."""
    wait = _seconds(request.wait if request.HasField("wait") else None, "wait", MAX_WAIT_SECONDS)
    violations = [
        *wrong_command(request.arguments, "arguments"),
        *wrong_environment(request.environment, "environment"),
    ]
    if violations:
        raise errors.InvalidRequest(violations)
    kernel, service, location = await _find(database, request.session, request.app)
    if violations := service.wrong_additions(request.arguments, request.environment):
        raise errors.InvalidRequest(violations)
    session_id, at = await _noted(database, kernel, service, AccessMethod.SERVICE)
    _log.info("%s starts app %s of session %s", current_principal().name, service.name, session_id)
    asked = agent_pb.StartAppRequest(
        location=location,
        command=service.command_at(location.port, session_id, request.arguments),
        environment={**service.environment, **request.environment},
        directory=service.working_directory,
        wait=wait,
    )
    answer = await forwarder.call(kernel.place, lambda stub: stub.StartApp, asked)
    return pb.StartAppResponse(status=answer.status, revision=at.revision, incarnation=at.incarnation)


async def stop_app(database: Database, forwarder: Forwarder, request: pb.StopAppRequest) -> pb.StopAppResponse:
    """Ends it, if it runs."""
    grace = _seconds(request.grace if request.HasField("grace") else None, "grace", DEFAULT_GRACE_SECONDS)
    kernel, service, location = await _find(database, request.session, request.app)
    session_id, at = await _noted(database, kernel, service, AccessMethod.SERVICE_STOP)
    _log.info("%s stops app %s of session %s", current_principal().name, service.name, session_id)
    asked = agent_pb.StopAppRequest(location=location, grace=grace)
    answer = await forwarder.call(kernel.place, lambda stub: stub.StopApp, asked)
    return pb.StopAppResponse(status=answer.status, revision=at.revision, incarnation=at.incarnation)


async def get_app(database: Database, forwarder: Forwarder, request: pb.GetAppRequest) -> app_pb2.AppStatus:
    """Returns the state of an app."""
    kernel, _, location = await _find(database, request.session, request.app)
    asked = agent_pb.GetAppRequest(location=location)
    answer: agent_pb.GetAppResponse = await forwarder.without_activity.call(
        kernel.place, lambda stub: stub.GetApp, asked
    )
    return answer.status


async def _noted(
    database: Database, kernel: MainKernel, service: ServiceSpec, method: AccessMethod
) -> tuple[str, journal.Head]:
    """Keeps in the journal what is done to a service; returns the session's id, and where the journal ends then."""
    session_id = kernel.place.attempt_id.partition(".")[0]
    async with database.transaction() as tx:
        await record_access(tx, uuid.UUID(session_id), method, f"{MAIN}1", service=service.name)
        return session_id, await journal.head(tx)


async def _find(database: Database, session: str, name: str) -> tuple[MainKernel, ServiceSpec, agent_pb.AppLocation]:
    async with database.transaction() as tx:
        session_id = await find_session(tx, session, owner_only=True)
        kernel = await kernel_locator.running_main(tx, session_id)
    service = next((service for service in kernel.services if service.name == name), None)
    port = kernel.reachable.find(name)
    if service is None or port is None:
        raise errors.NotFound("app", name, _there_is([service.name for service in kernel.services]))
    attempt_id = kernel.place.attempt_id
    return kernel, service, agent_pb.AppLocation(attempt_id=attempt_id, name=name, port=port, address=kernel.address)


def _there_is(names: Sequence[str]) -> str:
    return f"there is {', '.join(names)}" if names else "the session defines none"


def _seconds(value: Duration | None, field: str, default: int) -> Duration:
    if value is None:
        return Duration(seconds=default)
    try:
        value.ToJsonString()
    except ValueError:
        raise errors.InvalidRequest([(field, "is not a valid duration")]) from None
    if not 0 <= value.seconds + value.nanos / 1e9 <= MAX_WAIT_SECONDS:
        raise errors.InvalidRequest([(field, f"must be from 0 to {MAX_WAIT_SECONDS} s")])
    return value
