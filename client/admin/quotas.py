"""Limits of users, projects and resource groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from retinue.client import enum_names
from retinue.client.transport.calls import call
from retinue.client.transport.pages import paged
from retinue.client.typed_options import Amount, amount_texts
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.manager.v1 import account_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    import grpc.aio

    from retinue.client.words import QuotaKind


class Quotas:
    """The limits on what sessions may hold together. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: account_service_pb2_grpc.AccountServiceAsyncStub = account_service_pb2_grpc.AccountServiceStub(
            channel
        )

    async def set(
        self,
        kind: QuotaKind,
        name: str,
        *,
        slots: Mapping[str, Amount] | None = None,
        max_sessions: int | None = None,
        max_pending_sessions: int | None = None,
        max_system_sessions: int | None = None,
        highest_priority: int | None = None,
        etag: str = "",
    ) -> pb.Quota:
        """Sets all limits of a `user`, `project` or `resource-group`: what is not given is not limited."""
        quota = pb.Quota(
            kind=_kind(kind),
            name=name,
            slots=amount_texts(slots or {}),
            max_sessions=max_sessions,
            max_pending_sessions=max_pending_sessions,
            max_system_sessions=max_system_sessions,
            highest_priority=highest_priority,
            etag=etag,
        )
        return (await call(self._stub.SetQuota, pb.SetQuotaRequest(quota=quota))).quota

    async def get(self, kind: QuotaKind, name: str) -> pb.Quota:
        """Returns the quota of a `user`, `project` or `resource-group`, with what counts against it now."""
        return (await call(self._stub.GetQuota, pb.GetQuotaRequest(kind=_kind(kind), name=name))).quota

    async def list(
        self, *, kind: QuotaKind | Literal[""] = "", name: str = "", limit: int | None = None
    ) -> AsyncGenerator[pb.Quota, None]:
        """Quotas that the caller may read, by kind and name, with what counts against them now."""
        wanted = _kind(kind) if kind else pb.QUOTA_KIND_UNSPECIFIED

        async def fetch(token: str, size: int) -> pb.ListQuotasResponse:
            request = pb.ListQuotasRequest(kind=wanted, name=name, page_size=size, page_token=token)
            return await call(self._stub.ListQuotas, request)

        async for quota in paged(fetch, lambda page: page.quotas, limit):
            yield quota


def _kind(text: str) -> pb.QuotaKind.ValueType:
    return pb.QuotaKind.ValueType(enum_names.number(enum_names.QUOTA_KIND, text))
