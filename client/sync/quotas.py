"""The form of `retinue.client.admin.quotas` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client.admin import quotas as aio_quotas
from retinue.client.blocking import iterate, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TYPE_CHECKING, Literal

    from retinue.client.typed_options import Amount
    from retinue.client.words import QuotaKind
    from retinue.manager.v1 import account_service_pb2 as pb


class Quotas:
    """The limits on what sessions may hold together. All methods raise CallError."""

    def __init__(self, asynchronous: aio_quotas.Quotas) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def set(
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
        return run(
            self._asynchronous.set(
                kind,
                name,
                slots=slots,
                max_sessions=max_sessions,
                max_pending_sessions=max_pending_sessions,
                max_system_sessions=max_system_sessions,
                highest_priority=highest_priority,
                etag=etag,
            )
        )

    def list(
        self, *, kind: QuotaKind | Literal[""] = "", name: str = "", limit: int | None = None
    ) -> Iterator[pb.Quota]:
        """Quotas that the caller may read, by kind and name, with what counts against them now."""
        return iterate(self._asynchronous.list(kind=kind, name=name, limit=limit))
