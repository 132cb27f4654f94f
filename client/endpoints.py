"""Inference endpoints of a manager: services with an address that does not change."""

from __future__ import annotations

import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING

from google.protobuf.field_mask_pb2 import FieldMask

from retinue.client.time_spans import as_duration
from retinue.client.transport.backoff import RetryBudget
from retinue.client.transport.calls import call, resumed
from retinue.client.transport.pages import paged
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from retinue.manager.v1 import endpoint_service_pb2_grpc

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncGenerator, Mapping, Sequence

    import grpc.aio

    from retinue.client.words import Span


class Endpoints:
    """The endpoints that the caller may read, by id, name or `PROJECT/NAME`. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel, retry_budget: RetryBudget | None = None) -> None:
        """`retry_budget` bounds how long streams are tried again."""
        self._retry_budget = retry_budget or RetryBudget()
        self._stub: endpoint_service_pb2_grpc.EndpointServiceAsyncStub = endpoint_service_pb2_grpc.EndpointServiceStub(
            channel
        )

    async def create(
        self, spec: epb.EndpointSpec, *, request_id: str = "", validate_only: bool = False
    ) -> epb.Endpoint:
        """Makes an endpoint with its first revision; `validate_only` only checks."""
        request = pb.CreateEndpointRequest(
            spec=spec, request_id=request_id or str(uuid.uuid4()), validate_only=validate_only
        )
        return (await call(self._stub.CreateEndpoint, request)).endpoint

    async def get(self, endpoint: str) -> pb.GetEndpointResponse:
        """Returns an endpoint with its replicas."""
        return await call(self._stub.GetEndpoint, pb.GetEndpointRequest(endpoint=endpoint))

    async def list(
        self, *, project: str = "", deleted: bool = False, limit: int | None = None
    ) -> AsyncGenerator[epb.Endpoint, None]:
        """Endpoints, newest first."""

        async def fetch(token: str, size: int) -> pb.ListEndpointsResponse:
            request = pb.ListEndpointsRequest(page_size=size, page_token=token, project=project, show_deleted=deleted)
            return await call(self._stub.ListEndpoints, request)

        async for endpoint in paged(fetch, lambda page: page.endpoints, limit):
            yield endpoint

    async def update(
        self, endpoint: str, spec: epb.EndpointSpec, *, mask: Sequence[str] = (), etag: str = ""
    ) -> epb.Endpoint:
        """Changes what `mask` names (default: what is given of scaling, routing, access, rollout and labels)."""
        request = pb.UpdateEndpointRequest(
            endpoint=endpoint,
            spec=spec,
            update_mask=FieldMask(paths=mask),
            etag=etag,
            request_id=str(uuid.uuid4()),
        )
        return (await call(self._stub.UpdateEndpoint, request)).endpoint

    async def delete(self, endpoint: str, *, etag: str = "") -> epb.Endpoint:
        """Drains and ends all replicas."""
        request = pb.DeleteEndpointRequest(endpoint=endpoint, etag=etag)
        return (await call(self._stub.DeleteEndpoint, request)).endpoint

    async def deploy(
        self,
        endpoint: str,
        revision: epb.RevisionSpec,
        *,
        rollout: epb.RolloutSpec | None = None,
        validate_only: bool = False,
    ) -> pb.DeployRevisionResponse:
        """Makes a new revision and starts its rollout."""
        request = pb.DeployRevisionRequest(
            endpoint=endpoint,
            revision=revision,
            rollout=rollout,
            request_id=str(uuid.uuid4()),
            validate_only=validate_only,
        )
        return await call(self._stub.DeployRevision, request)

    async def revision(self, endpoint: str, number: int = 0) -> epb.Revision:
        """Returns a revision, by default the newest."""
        request = pb.GetRevisionRequest(endpoint=endpoint, number=number)
        return (await call(self._stub.GetRevision, request)).revision

    async def promote(self, endpoint: str) -> epb.Endpoint:
        """Has a rollout take its next step without waiting."""
        request = pb.PromoteRolloutRequest(endpoint=endpoint, request_id=str(uuid.uuid4()))
        return (await call(self._stub.PromoteRollout, request)).endpoint

    async def pause(self, endpoint: str) -> epb.Endpoint:
        """Stops a rollout after what has begun."""
        request = pb.PauseRolloutRequest(endpoint=endpoint, request_id=str(uuid.uuid4()))
        return (await call(self._stub.PauseRollout, request)).endpoint

    async def resume(self, endpoint: str) -> epb.Endpoint:
        """Continues a paused rollout."""
        request = pb.ResumeRolloutRequest(endpoint=endpoint, request_id=str(uuid.uuid4()))
        return (await call(self._stub.ResumeRollout, request)).endpoint

    async def roll_back(self, endpoint: str, *, to_revision: int = 0) -> epb.Endpoint:
        """Goes back to the newest revision before the serving one that has served;
        while a rollout runs, to where it came from.
        """
        request = pb.RollBackEndpointRequest(endpoint=endpoint, to_revision=to_revision, request_id=str(uuid.uuid4()))
        return (await call(self._stub.RollBackEndpoint, request)).endpoint

    async def set_traffic(self, endpoint: str, shares: Mapping[int, int]) -> epb.Endpoint:
        """Sets the shares of revisions in percent, 100 together."""
        traffic = [pb.TrafficShare(revision=number, percent=percent) for number, percent in shares.items()]
        request = pb.SetTrafficRequest(endpoint=endpoint, traffic=traffic, request_id=str(uuid.uuid4()))
        return (await call(self._stub.SetTraffic, request)).endpoint

    async def set_floor(self, endpoint: str, replicas: int, seconds: Span) -> epb.Endpoint:
        """Sets a floor under the number of replicas for a time; 0 replicas take it away."""
        duration = as_duration(seconds)
        request = pb.SetScalingFloorRequest(
            endpoint=endpoint, replicas=replicas, duration=duration, request_id=str(uuid.uuid4())
        )
        return (await call(self._stub.SetScalingFloor, request)).endpoint

    async def history(self, endpoint: str, *, since: dt.datetime | None = None) -> pb.GetEndpointHistoryResponse:
        """Returns numbers of the last 6 hours, or from `since` (with a time zone) on, a sample a minute,
        and the decisions that changed the target.
        """
        request = pb.GetEndpointHistoryRequest(endpoint=endpoint)
        if since is not None:
            request.since_time.FromDatetime(since)
        return await call(self._stub.GetEndpointHistory, request)

    async def explain(self, endpoint: str) -> pb.ExplainEndpointResponse:
        """Says why there are as many replicas as there are."""
        return await call(self._stub.ExplainEndpoint, pb.ExplainEndpointRequest(endpoint=endpoint))

    async def stats(self, endpoint: str, seconds: Span = 2.0) -> AsyncGenerator[pb.StreamEndpointStatsResponse, None]:
        """Yields numbers of an endpoint at an interval."""
        request = pb.StreamEndpointStatsRequest(endpoint=endpoint)
        request.interval.CopyFrom(as_duration(seconds))
        async with aclosing(
            resumed(self._stub.StreamEndpointStats, lambda: request, endless=True, retry_budget=self._retry_budget)
        ) as responses:
            async for response in responses:
                yield response

    async def create_token(
        self, endpoint: str, *, label: str = "", seconds: Span = 0.0
    ) -> pb.CreateEndpointTokenResponse:
        """Makes a token for requests to an endpoint; its secret is shown once."""
        request = pb.CreateEndpointTokenRequest(endpoint=endpoint, label=label)
        if seconds:
            request.lifetime.CopyFrom(as_duration(seconds))
        return await call(self._stub.CreateEndpointToken, request)

    async def tokens(self, endpoint: str) -> AsyncGenerator[epb.EndpointToken, None]:
        """The tokens of an endpoint, newest first."""

        async def fetch(token: str, size: int) -> pb.ListEndpointTokensResponse:
            request = pb.ListEndpointTokensRequest(endpoint=endpoint, page_size=size, page_token=token)
            return await call(self._stub.ListEndpointTokens, request)

        async for item in paged(fetch, lambda page: page.tokens, None):
            yield item

    async def revoke_token(self, endpoint: str, token_id: str) -> epb.EndpointToken:
        """Revokes a token."""
        request = pb.RevokeEndpointTokenRequest(endpoint=endpoint, token_id=token_id)
        return (await call(self._stub.RevokeEndpointToken, request)).token
