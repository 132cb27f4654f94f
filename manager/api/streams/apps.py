"""The AppService: finds the definition of an app, checks what is added to it,
and asks the agent that has the kernel.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.api.visibility import find_session, record_access, require_feature
from retinue.manager.domain import errors
from retinue.manager.domain.session.admission import wrong_command, wrong_environment
from retinue.manager.domain.session.events import AccessMethod
from retinue.manager.domain.session.features import Feature
from retinue.manager.domain.session.service_ports import Addresses, local_address
from retinue.manager.domain.session.spec import MAIN
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.journal_positions import position_of
from retinue.manager.session import kernel_locator
from retinue.manager.store.journal import journal
from retinue.manager.v1 import app_service_pb2 as pb
from retinue.manager.v1 import app_service_pb2_grpc
from retinue.rpc.times import is_valid, seconds

if TYPE_CHECKING:
    import grpc.aio

    from retinue.manager.agent_rpc.relay import Forwarder
    from retinue.manager.domain.session.apps import AppSpec
    from retinue.manager.session.kernel_locator import MainKernel
    from retinue.manager.store.postgres.database import Database

_log = logging.getLogger(__name__)

# Less than any unary call may take.
MAX_WAIT_SECONDS = 20
DEFAULT_GRACE_SECONDS = 10


class AppServicer(app_service_pb2_grpc.AppServiceServicer):
    """Apps, for the owners of their sessions and for administrators."""

    def __init__(self, database: Database, forwarder: Forwarder, addresses: Addresses | None) -> None:
        """`addresses` are those of the manager's gateway, if it has one."""
        self._database = database
        self._forwarder = forwarder
        self._addresses = addresses or local_address

    async def StartApp(
        self, request: pb.StartAppRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.StartAppResponse:
        wait = _seconds(request.wait if request.HasField("wait") else None, "wait", MAX_WAIT_SECONDS)
        violations = [
            *wrong_command(request.arguments, "arguments"),
            *wrong_environment(request.environment, "environment"),
        ]
        if violations:
            raise errors.InvalidRequest(violations)
        kernel, app, location = await self._find(request.session, request.app)
        if violations := app.wrong_additions(request.arguments, request.environment):
            raise errors.InvalidRequest(violations)
        session_id, at = await self._record(kernel, app, AccessMethod.APP_START)
        _log.info("%s starts app %s of session %s", current_principal().name, app.name, session_id)
        address = self._addresses(uuid.UUID(session_id), location.port)
        command, environment = app.at(location.port, session_id, address, request.arguments)
        asked = agent_pb.StartAppRequest(
            location=location,
            command=command,
            environment={**environment, **request.environment},
            working_directory=app.working_directory or kernel.working_directory,
            wait=wait,
        )
        answer = await self._forwarder.call(kernel.location, lambda stub: stub.StartApp, asked)
        return pb.StartAppResponse(status=answer.status, position=position_of(at))

    async def GetApp(self, request: pb.GetAppRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.GetAppResponse:
        kernel, _, location = await self._find(request.session, request.app)
        asked = agent_pb.GetAppRequest(location=location)
        answer = await self._forwarder.without_activity.call(kernel.location, lambda stub: stub.GetApp, asked)
        return pb.GetAppResponse(status=answer.status)

    async def StopApp(
        self, request: pb.StopAppRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.StopAppResponse:
        grace = _seconds(request.grace if request.HasField("grace") else None, "grace", DEFAULT_GRACE_SECONDS)
        kernel, app, location = await self._find(request.session, request.app)
        session_id, at = await self._record(kernel, app, AccessMethod.APP_STOP)
        _log.info("%s stops app %s of session %s", current_principal().name, app.name, session_id)
        asked = agent_pb.StopAppRequest(location=location, grace=grace)
        answer = await self._forwarder.call(kernel.location, lambda stub: stub.StopApp, asked)
        return pb.StopAppResponse(status=answer.status, position=position_of(at))

    async def _record(self, kernel: MainKernel, app: AppSpec, method: AccessMethod) -> tuple[str, journal.Head]:
        """Records in the journal what is done to an app; returns the session's id, and where the journal ends then."""
        session_id = kernel.location.attempt_id.partition(".")[0]
        async with self._database.transaction() as tx:
            await record_access(tx, uuid.UUID(session_id), method, f"{MAIN}1", app=app.name)
            return session_id, await journal.head(tx)

    async def _find(self, session: str, name: str) -> tuple[MainKernel, AppSpec, agent_pb.AppLocation]:
        async with self._database.transaction() as tx:
            session_id = await find_session(tx, session, owner_only=True)
            await require_feature(tx, session_id, Feature.APPS)
            kernel = await kernel_locator.running_main(tx, session_id)
        app = next((app for app in kernel.apps if app.name == name), None)
        port = kernel.reachable.find(name)
        if app is None or port is None:
            names = ", ".join(app.name for app in kernel.apps)
            raise errors.NotFound("app", name, f"there is {names}" if names else "the session defines none")
        attempt_id = kernel.location.attempt_id
        return (
            kernel,
            app,
            agent_pb.AppLocation(attempt_id=attempt_id, name=name, port=port, address=kernel.address),
        )


def _seconds(value: Duration | None, field: str, default: int) -> Duration:
    if value is None:
        return Duration(seconds=default)
    if not is_valid(value):
        raise errors.InvalidRequest([(field, "is not a valid duration")])
    if not 0 <= seconds(value) <= MAX_WAIT_SECONDS:
        raise errors.InvalidRequest([(field, f"must be from 0 to {MAX_WAIT_SECONDS} s")])
    return value
