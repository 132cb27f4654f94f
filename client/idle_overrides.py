"""Overrides of the idle policies of resource groups, for users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client import enum_names
from retinue.client.calls import call
from retinue.client.pages import paged
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.manager.v1 import account_service_pb2_grpc, idle_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    import grpc.aio


class IdleOverrides:
    """Longer times for some users, or none. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: account_service_pb2_grpc.AccountServiceAsyncStub = account_service_pb2_grpc.AccountServiceStub(
            channel
        )

    async def set(
        self, user: str, policy: idle_pb2.IdlePolicy | None = None, *, exempt: Iterable[str] = (), etag: str = ""
    ) -> idle_pb2.IdleOverride:
        """Sets the whole override of a user: fields that replace those of groups, and checkers (`interaction`, …) that never end anything.

        Without both, there is none any more.
        """
        checkers = [idle_pb2.IdleChecker.ValueType(enum_names.number(enum_names.IDLE_CHECKER, name)) for name in exempt]
        override = idle_pb2.IdleOverride(user=user, policy=policy, exempt=checkers, etag=etag)
        return (await call(self._stub.SetIdleOverride, pb.SetIdleOverrideRequest(override=override))).override

    async def list(self, *, limit: int | None = None) -> AsyncGenerator[idle_pb2.IdleOverride, None]:
        """Overrides that the caller may read, by user."""

        async def fetch(token: str, size: int) -> pb.ListIdleOverridesResponse:
            request = pb.ListIdleOverridesRequest(page_size=size, page_token=token)
            return await call(self._stub.ListIdleOverrides, request)

        async for override in paged(fetch, lambda page: page.overrides, limit):
            yield override
