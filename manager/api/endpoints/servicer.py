"""The EndpointService: translates requests, checks who may see what, and stores what is asked for.
The leader's controller does the rest.
"""

from __future__ import annotations

import datetime as dt
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import grpc.aio
from google.protobuf.message import Message

from retinue.manager.api.endpoints import rollouts
from retinue.manager.api.endpoints.convert import (
    listed_revision,
    replica_message,
    revision_message,
    settings_message,
)
from retinue.manager.api.endpoints.inspection import explain, read_history, stream_stats
from retinue.manager.api.endpoints.requests import (
    check_hosts,
    find_endpoint,
    find_record,
    home_project,
    read_endpoint,
    read_revision_spec,
    shown_endpoint,
    shown_endpoints,
    updated_spec,
)
from retinue.manager.api.endpoints.rollouts import checked_shares, deploy, set_shares
from retinue.manager.api.endpoints.settings_convert import Reader
from retinue.manager.api.endpoints.tokens import create_token, list_tokens, revoke_token
from retinue.manager.api.endpoints.watch import serve_endpoint_watch
from retinue.manager.api.visibility import caller_visibility, full_view
from retinue.manager.domain import errors, preconditions
from retinue.manager.domain.endpoints.events import (
    EndpointCreated,
    EndpointEnded,
    EndpointUpdated,
    FloorSet,
)
from retinue.manager.domain.endpoints.hosts import OwnHosts
from retinue.manager.domain.endpoints.spec import MAX_REPLICAS, EndpointSettings
from retinue.manager.domain.endpoints.states import Lifecycle
from retinue.manager.domain.session.pending_limit import PendingLimit
from retinue.manager.endpoints.actions import entry
from retinue.manager.server.etags import check_etag
from retinue.manager.server.fields import Violations
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.journal_positions import position_of, with_position
from retinue.manager.server.pages import open_page
from retinue.manager.store.endpoints import endpoint_revisions, endpoints
from retinue.manager.store.endpoints.endpoints import NewEndpoint
from retinue.manager.store.journal import journal, requests
from retinue.manager.v1 import endpoint_pb2, endpoint_service_pb2_grpc
from retinue.manager.v1 import endpoint_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from retinue.manager.endpoints.controller import EndpointController
    from retinue.manager.endpoints.fleet import EndpointView
    from retinue.manager.identity.endpoint_tokens import EndpointTokenSigner
    from retinue.manager.store.journal.journal_tail import JournalTail
    from retinue.manager.store.postgres.database import Database, Transaction

_Answer = TypeVar("_Answer", bound=Message)
_Context = grpc.aio.ServicerContext[Any, Any]
_LONGEST_FLOOR = dt.timedelta(days=7)
_LABEL_NAME = 54


class EndpointServicer(endpoint_service_pb2_grpc.EndpointServiceServicer):
    """Endpoints, for their owners and for administrators."""

    def __init__(
        self,
        database: Database,
        tail: JournalTail,
        controller: Callable[[], EndpointController | None],
        signer: EndpointTokenSigner | None = None,
        hosts: OwnHosts = OwnHosts(),  # noqa: B008  # it never changes
        *,
        prometheus: bool = False,
    ) -> None:
        """`controller` is that of this process while it leads; `signer` signs tokens; `hosts` are names that no
        endpoint may choose. With `prometheus` metrics may be queries.
        """
        self._database = database
        self._tail = tail
        self._controller = controller
        self._signer = signer
        self._hosts = hosts
        self._domain = hosts.endpoint_domain
        self._prometheus = prometheus
        self._pending = PendingLimit()

    async def CreateEndpoint(self, request: pb.CreateEndpointRequest, context: _Context) -> pb.CreateEndpointResponse:
        given, caller = request.spec, current_principal()
        violations = Violations()
        violations.name("spec.name", given.name)
        violations.request_id(request.request_id)
        reader = Reader(violations, prometheus=self._prometheus)
        settings = reader.settings(given, "spec")
        reader.shown(settings, reader.replica(given.revision, "spec.revision"), "spec.scaling")
        violations.raise_any()
        project = home_project(given.project)
        async with self._database.transaction() as tx:

            async def create() -> pb.CreateEndpointResponse:
                revision = await read_revision_spec(tx, given.revision, "spec.revision", project, self._pending)
                endpoint_id = uuid.uuid4()
                hosts = settings.routing.hosts
                await check_hosts(tx, hosts, (), endpoint_id, self._hosts, "spec.routing.hosts")
                new = NewEndpoint(
                    id=endpoint_id,
                    name=given.name,
                    project=project,
                    owner=caller.name,
                    resource_group=revision.session.resource_group,
                    host_label=f"{given.name[:_LABEL_NAME].rstrip('-')}-{endpoint_id.hex[:8]}",
                    settings=settings,
                    target=max(1, settings.scaling.min),
                    spec=revision,
                )
                # No other caller can see it before it is created.
                if not await endpoints.create(tx, new):
                    raise errors.NameTaken("endpoint", given.name)
                view = await read_endpoint(tx, endpoint_id)
                created = EndpointCreated(given.name, new.host_label, new.target)
                await journal.append(tx, [entry(view, created)])
                return await with_position(tx, pb.CreateEndpointResponse(endpoint=await self._shown(tx, view)))

            if request.validate_only:
                response = await create()
                for field in ("id", "host_label", "etag", "create_time"):
                    response.endpoint.ClearField(field)
                await tx.rollback()
                return response
            response = await requests.once(
                tx, caller.name, "CreateEndpoint", request, pb.CreateEndpointResponse, create
            )
        self._wake()
        return response

    async def GetEndpoint(self, request: pb.GetEndpointRequest, context: _Context) -> pb.GetEndpointResponse:
        async with self._database.transaction() as tx:
            at = await journal.head(tx)
            view = await find_endpoint(tx, request.endpoint)
            shown = await self._shown(tx, view)
        return pb.GetEndpointResponse(
            endpoint=shown,
            replicas=self._replicas(view),
            position=position_of(at),
        )

    async def ListEndpoints(self, request: pb.ListEndpointsRequest, context: _Context) -> pb.ListEndpointsResponse:
        page = open_page(request.page_size, request.page_token, ["endpoints", request.project, request.show_deleted])
        async with self._database.transaction() as tx:
            at = await journal.head(tx)
            found = await endpoints.list_page(
                tx,
                caller_visibility(),
                project=request.project,
                deleted=request.show_deleted,
                after=page.after,
                limit=page.size + 1,
            )
            shown = await shown_endpoints(tx, found[: page.size], self._domain)
        listed, token = page.close(shown, len(found), lambda n: [found[n].create_time.isoformat(), str(found[n].id)])
        return pb.ListEndpointsResponse(endpoints=listed, next_page_token=token, position=position_of(at))

    async def UpdateEndpoint(self, request: pb.UpdateEndpointRequest, context: _Context) -> pb.UpdateEndpointResponse:

        async def update(tx: Transaction, view: EndpointView) -> pb.UpdateEndpointResponse:
            before = settings_message(view.settings)
            after, paths = updated_spec(before, request.spec, request.update_mask)
            violations = Violations()
            reader = Reader(violations, prometheus=self._prometheus)
            settings: EndpointSettings = reader.settings(after, "spec")
            if (newest := view.revisions.get(view.record.newest_revision)) is not None:
                reader.shown(settings, newest.replica, "spec.scaling")
            violations.raise_any()
            had, wanted = view.settings.routing.hosts, settings.routing.hosts
            await check_hosts(tx, wanted, had, view.record.id, self._hosts, "spec.routing.hosts")
            if settings != view.settings:
                await endpoints.set_settings(tx, view.record.id, settings)
                await journal.append(tx, [entry(view, EndpointUpdated(tuple(paths)))])
            return await with_position(tx, pb.UpdateEndpointResponse(endpoint=await self._shown_again(tx, view)))

        return await self._change(
            request, "UpdateEndpoint", pb.UpdateEndpointResponse, update, validate_only=request.validate_only
        )

    async def DeleteEndpoint(self, request: pb.DeleteEndpointRequest, context: _Context) -> pb.DeleteEndpointResponse:
        async with self._database.transaction() as tx:
            record = await find_record(tx, request.endpoint)
            check_etag(request.etag, record.version)
            if record.lifecycle is Lifecycle.ACTIVE:
                await endpoints.set_lifecycle(tx, record.id, Lifecycle.DELETING)
                ended = EndpointEnded(Lifecycle.DELETING)
                await journal.append(tx, [journal.Entry(record.id, record.owner, record.project, ended)])
            view = await read_endpoint(tx, record.id)
            response = await with_position(tx, pb.DeleteEndpointResponse(endpoint=await self._shown(tx, view)))
        self._wake()
        return response

    async def DeployRevision(self, request: pb.DeployRevisionRequest, context: _Context) -> pb.DeployRevisionResponse:

        async def effect(tx: Transaction, view: EndpointView) -> pb.DeployRevisionResponse:
            made = await deploy(tx, view, request, self._pending)
            deployed = revision_message(made, full_view(view.record.owner), ())
            return await with_position(
                tx, pb.DeployRevisionResponse(endpoint=await self._shown_again(tx, view), deployed=deployed)
            )

        return await self._change(
            request, "DeployRevision", pb.DeployRevisionResponse, effect, validate_only=request.validate_only
        )

    async def GetRevision(self, request: pb.GetRevisionRequest, context: _Context) -> pb.GetRevisionResponse:
        async with self._database.transaction() as tx:
            view = await find_endpoint(tx, request.endpoint)
            number = request.number or view.record.newest_revision
            found = await endpoint_revisions.read(tx, view.record.id, number)
        if found is None:
            raise errors.NotFound("revision", str(request.number))
        return pb.GetRevisionResponse(revision=revision_message(found, full_view(view.record.owner), view.replicas))

    async def ListRevisions(self, request: pb.ListRevisionsRequest, context: _Context) -> pb.ListRevisionsResponse:
        page = open_page(request.page_size, request.page_token, ["revisions", request.endpoint])
        async with self._database.transaction() as tx:
            view = await find_endpoint(tx, request.endpoint)
            found = await endpoint_revisions.list_page(
                tx, view.record.id, before=int(page.after[0]) if page.after else 0, limit=page.size + 1
            )
        shown = full_view(view.record.owner)
        listed, token = page.close(
            [listed_revision(item, shown, view.replicas) for item in found[: page.size]],
            len(found),
            lambda n: [str(found[n].number)],
        )
        return pb.ListRevisionsResponse(revisions=listed, next_page_token=token)

    async def PromoteRollout(self, request: pb.PromoteRolloutRequest, context: _Context) -> pb.PromoteRolloutResponse:

        async def effect(tx: Transaction, view: EndpointView) -> pb.PromoteRolloutResponse:
            await rollouts.promote(tx, view)
            return await with_position(tx, pb.PromoteRolloutResponse(endpoint=await self._shown_again(tx, view)))

        return await self._change(request, "PromoteRollout", pb.PromoteRolloutResponse, effect)

    async def PauseRollout(self, request: pb.PauseRolloutRequest, context: _Context) -> pb.PauseRolloutResponse:

        async def effect(tx: Transaction, view: EndpointView) -> pb.PauseRolloutResponse:
            await rollouts.pause(tx, view)
            return await with_position(tx, pb.PauseRolloutResponse(endpoint=await self._shown_again(tx, view)))

        return await self._change(request, "PauseRollout", pb.PauseRolloutResponse, effect)

    async def ResumeRollout(self, request: pb.ResumeRolloutRequest, context: _Context) -> pb.ResumeRolloutResponse:

        async def effect(tx: Transaction, view: EndpointView) -> pb.ResumeRolloutResponse:
            await rollouts.resume(tx, view)
            return await with_position(tx, pb.ResumeRolloutResponse(endpoint=await self._shown_again(tx, view)))

        return await self._change(request, "ResumeRollout", pb.ResumeRolloutResponse, effect)

    async def RollBackEndpoint(
        self, request: pb.RollBackEndpointRequest, context: _Context
    ) -> pb.RollBackEndpointResponse:

        async def effect(tx: Transaction, view: EndpointView) -> pb.RollBackEndpointResponse:
            await rollouts.roll_back(tx, view, request.to_revision)
            return await with_position(tx, pb.RollBackEndpointResponse(endpoint=await self._shown_again(tx, view)))

        return await self._change(request, "RollBackEndpoint", pb.RollBackEndpointResponse, effect)

    async def SetTraffic(self, request: pb.SetTrafficRequest, context: _Context) -> pb.SetTrafficResponse:
        shares = checked_shares(request)

        async def effect(tx: Transaction, view: EndpointView) -> pb.SetTrafficResponse:
            await set_shares(tx, view, shares)
            return await with_position(tx, pb.SetTrafficResponse(endpoint=await self._shown_again(tx, view)))

        return await self._change(request, "SetTraffic", pb.SetTrafficResponse, effect)

    async def SetScalingFloor(
        self, request: pb.SetScalingFloorRequest, context: _Context
    ) -> pb.SetScalingFloorResponse:
        violations = Violations()
        violations.integer("replicas", request.replicas, 0, MAX_REPLICAS)
        seconds = 0.0
        if request.replicas:
            shortest = dt.timedelta(seconds=1)
            seconds = violations.duration("duration", request.duration, shortest, _LONGEST_FLOOR).total_seconds()
        violations.raise_any()

        async def set_floor(tx: Transaction, view: EndpointView) -> pb.SetScalingFloorResponse:
            floor = await endpoints.set_floor(tx, view.record.id, request.replicas, seconds)
            body = FloorSet(request.replicas, floor.end_time if floor else None)
            await journal.append(tx, [entry(view, body)])
            return await with_position(tx, pb.SetScalingFloorResponse(endpoint=await self._shown_again(tx, view)))

        return await self._change(request, "SetScalingFloor", pb.SetScalingFloorResponse, set_floor)

    async def ExplainEndpoint(
        self, request: pb.ExplainEndpointRequest, context: _Context
    ) -> pb.ExplainEndpointResponse:
        async with self._database.transaction() as tx:
            return await explain(tx, await find_endpoint(tx, request.endpoint), self._controller(), self._domain)

    async def WatchEndpoints(
        self, request: pb.WatchEndpointsRequest, context: _Context
    ) -> AsyncIterator[pb.WatchEndpointsResponse]:
        async with aclosing(serve_endpoint_watch(self._database, self._tail, request)) as responses:
            async for response in responses:
                yield response

    async def StreamEndpointStats(
        self, request: pb.StreamEndpointStatsRequest, context: _Context
    ) -> AsyncIterator[pb.StreamEndpointStatsResponse]:
        async with aclosing(stream_stats(self._database, self._controller, request)) as responses:
            async for response in responses:
                yield response

    async def GetEndpointHistory(
        self, request: pb.GetEndpointHistoryRequest, context: _Context
    ) -> pb.GetEndpointHistoryResponse:
        """See the proto."""
        return await read_history(self._database, self._controller, request)

    async def CreateEndpointToken(
        self, request: pb.CreateEndpointTokenRequest, context: _Context
    ) -> pb.CreateEndpointTokenResponse:
        async with self._database.transaction() as tx:
            return await create_token(tx, self._signer, request)

    async def ListEndpointTokens(
        self, request: pb.ListEndpointTokensRequest, context: _Context
    ) -> pb.ListEndpointTokensResponse:
        async with self._database.transaction() as tx:
            return await list_tokens(tx, request)

    async def RevokeEndpointToken(
        self, request: pb.RevokeEndpointTokenRequest, context: _Context
    ) -> pb.RevokeEndpointTokenResponse:
        async with self._database.transaction() as tx:
            response = await revoke_token(tx, request)
        # Whoever sends routers what is revoked may rest, as nobody writes.
        self._tail.wake()
        return response

    async def _change(  # the request, and what is done for it
        self,
        request: Any,
        method: str,
        answer_type: type[_Answer],
        effect: Callable[[Transaction, EndpointView], Awaitable[_Answer]],
        *,
        validate_only: bool = False,
    ) -> _Answer:
        """Changes an endpoint that is not being deleted, once per `request_id`;
        with `validate_only`, nothing of it stays.
        """
        violations = Violations()
        violations.request_id(request.request_id)
        violations.raise_any()
        async with self._database.transaction() as tx:

            async def change() -> _Answer:
                view = await find_endpoint(tx, request.endpoint, lock=True)
                if hasattr(request, "etag"):
                    check_etag(request.etag, view.record.version)
                if not view.is_active:
                    raise preconditions.StateForbids("the endpoint is being deleted", f"endpoint/{view.record.name}")
                return await effect(tx, view)

            if validate_only:
                response = await change()
                await tx.rollback()
                return response
            response = await requests.once(tx, current_principal().name, method, request, answer_type, change)
        self._wake()
        return response

    async def _shown(self, tx: Transaction, view: EndpointView) -> endpoint_pb2.Endpoint:
        return await shown_endpoint(tx, view, self._domain)

    async def _shown_again(self, tx: Transaction, view: EndpointView) -> endpoint_pb2.Endpoint:
        return await self._shown(tx, await read_endpoint(tx, view.record.id))

    def _replicas(self, view: EndpointView) -> Sequence[endpoint_pb2.Replica]:
        controller = self._controller()
        requests_on = {} if controller is None else controller.traffic().draining
        return [replica_message(item, requests_on.get(item.session_id)) for item in view.replicas]

    def _wake(self) -> None:
        self._tail.wake()
        controller = self._controller()
        if controller is not None:
            controller.wake()
