"""The form of `retinue.client.endpoints` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client import endpoints as aio_endpoints
from retinue.client.blocking import iterate, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import TYPE_CHECKING

    from retinue.client.words import Span
    from retinue.manager.v1 import endpoint_pb2 as epb
    from retinue.manager.v1 import endpoint_service_pb2 as pb


class Endpoints:
    """The endpoints that the caller may read, by id, name or `PROJECT/NAME`. All methods raise CallError."""

    def __init__(self, asynchronous: aio_endpoints.Endpoints) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def create(self, spec: epb.EndpointSpec, *, request_id: str = "", validate_only: bool = False) -> epb.Endpoint:
        """Makes an endpoint with its first revision; `validate_only` only checks."""
        return run(self._asynchronous.create(spec, request_id=request_id, validate_only=validate_only))

    def get(self, endpoint: str) -> pb.GetEndpointResponse:
        """Returns an endpoint with its replicas."""
        return run(self._asynchronous.get(endpoint))

    def list(self, *, project: str = "", deleted: bool = False, limit: int | None = None) -> Iterator[epb.Endpoint]:
        """Endpoints, newest first."""
        return iterate(self._asynchronous.list(project=project, deleted=deleted, limit=limit))

    def update(
        self, endpoint: str, spec: epb.EndpointSpec, *, mask: Sequence[str] = (), etag: str = ""
    ) -> epb.Endpoint:
        """Changes what `mask` names (default: what is given of scaling, routing, access, rollout and labels)."""
        return run(self._asynchronous.update(endpoint, spec, mask=mask, etag=etag))

    def delete(self, endpoint: str, *, etag: str = "") -> epb.Endpoint:
        """Drains and ends all replicas."""
        return run(self._asynchronous.delete(endpoint, etag=etag))

    def deploy(
        self,
        endpoint: str,
        revision: epb.RevisionSpec,
        *,
        rollout: epb.RolloutSpec | None = None,
        validate_only: bool = False,
    ) -> pb.DeployRevisionResponse:
        """Makes a new revision and starts its rollout."""
        return run(self._asynchronous.deploy(endpoint, revision, rollout=rollout, validate_only=validate_only))

    def revision(self, endpoint: str, number: int = 0) -> epb.Revision:
        """Returns a revision, by default the newest."""
        return run(self._asynchronous.revision(endpoint, number))

    def control(self, endpoint: str, action: pb.RolloutAction.ValueType, *, to_revision: int = 0) -> epb.Endpoint:
        """Promotes, pauses, resumes or rolls back a rollout."""
        return run(self._asynchronous.control(endpoint, action, to_revision=to_revision))

    def set_traffic(self, endpoint: str, shares: Mapping[int, int]) -> epb.Endpoint:
        """Sets the shares of revisions in percent, 100 together."""
        return run(self._asynchronous.set_traffic(endpoint, shares))

    def set_floor(self, endpoint: str, replicas: int, seconds: Span) -> epb.Endpoint:
        """Sets a floor under the number of replicas for a time; 0 replicas take it away."""
        return run(self._asynchronous.set_floor(endpoint, replicas, seconds))

    def explain(self, endpoint: str) -> pb.ExplainEndpointResponse:
        """Says why there are as many replicas as there are."""
        return run(self._asynchronous.explain(endpoint))

    def stats(self, endpoint: str, seconds: Span = 2.0) -> Iterator[pb.StreamEndpointStatsResponse]:
        """Yields numbers of an endpoint at an interval."""
        return iterate(self._asynchronous.stats(endpoint, seconds))

    def create_token(self, endpoint: str, *, label: str = "", seconds: Span = 0.0) -> pb.CreateEndpointTokenResponse:
        """Makes a token for requests to an endpoint; its secret is shown once."""
        return run(self._asynchronous.create_token(endpoint, label=label, seconds=seconds))

    def tokens(self, endpoint: str) -> Iterator[epb.EndpointToken]:
        """The tokens of an endpoint, newest first."""
        return iterate(self._asynchronous.tokens(endpoint))

    def revoke_token(self, endpoint: str, token_id: str) -> epb.EndpointToken:
        """Revokes a token."""
        return run(self._asynchronous.revoke_token(endpoint, token_id))
