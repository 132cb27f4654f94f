"""The form of `retinue.client.admin.fleet` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client.admin import fleet as aio_fleet
from retinue.client.blocking import iterate, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TYPE_CHECKING, Unpack

    from retinue.client.admin.fleet import GroupPolicy
    from retinue.client.words import Span
    from retinue.manager.v1 import fleet_service_pb2 as pb


class Agents:
    """The nodes. All methods raise CallError."""

    def __init__(self, asynchronous: aio_fleet.Agents) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def get(self, agent_id: str) -> pb.Agent:
        """Returns one agent."""
        return run(self._asynchronous.get(agent_id))

    def list(self, *, filter: str = "", limit: int | None = None) -> Iterator[pb.Agent]:
        """Agents by id; `filter` is in the language of ListAgentsRequest."""
        return iterate(self._asynchronous.list(filter=filter, limit=limit))

    def drain(
        self, agent_id: str, *, keep_system: bool = False, deadline: Span | None = None, etag: str = ""
    ) -> pb.Agent:
        """Takes an agent out of scheduling; what runs there stays, but for system sessions unless `keep_system`.

        What still runs there after `deadline` is evicted: it runs on other agents if it may be run again,
        and ends otherwise.
        """
        return run(self._asynchronous.drain(agent_id, keep_system=keep_system, deadline=deadline, etag=etag))

    def undrain(self, agent_id: str, *, etag: str = "") -> pb.Agent:
        """Puts an agent back into scheduling."""
        return run(self._asynchronous.undrain(agent_id, etag=etag))

    def revoke(self, agent_id: str, *, etag: str = "") -> None:
        """Makes an agent's certificate worthless for good, whatever it runs."""
        run(self._asynchronous.revoke(agent_id, etag=etag))

    def delete(self, agent_id: str, *, etag: str = "") -> None:
        """Removes an agent that runs nothing; refused while kernels of it are live."""
        run(self._asynchronous.delete(agent_id, etag=etag))

    def confirm_lost(self, agent_ids: Sequence[str] = (), *, resource_group: str = "") -> Sequence[str]:
        """Confirms that agents are lost whose loss is held, by default all of a group; returns which had been held."""
        return run(self._asynchronous.confirm_lost(agent_ids, resource_group=resource_group))

    def orphans(self, agent_id: str = "", *, limit: int | None = None) -> Iterator[pb.Orphan]:
        """Yields what agents, or one, run that the database does not know since it was restored from a backup."""
        return iterate(self._asynchronous.orphans(agent_id, limit=limit))

    def end_orphans(self, agent_id: str, attempt_ids: Sequence[str] = ()) -> Sequence[str]:
        """Has an agent end orphans, by default all of its; returns which, before they have ended."""
        return run(self._asynchronous.end_orphans(agent_id, attempt_ids))

    def create_join_token(
        self,
        *,
        resource_group: str = "",
        agent_id: str = "",
        ttl: Span | None = None,
        uses: int = 1,
        router: bool = False,
    ) -> pb.CreateJoinTokenResponse:
        """Creates a token with which nodes enrol as agents of a group, or as routers; it is shown once."""
        return run(
            self._asynchronous.create_join_token(
                resource_group=resource_group, agent_id=agent_id, ttl=ttl, uses=uses, router=router
            )
        )


class Routers:
    """What serves endpoints to clients. All methods raise CallError."""

    def __init__(self, asynchronous: aio_fleet.Routers) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def list(self, *, limit: int | None = None) -> Iterator[pb.Router]:
        """Routers by id, for administrators."""
        return iterate(self._asynchronous.list(limit=limit))

    def revoke(self, router_id: str) -> pb.Router:
        """Makes a router's certificate worthless: it gets no table any more, and reaches no replica."""
        return run(self._asynchronous.revoke(router_id))


class ResourceGroups:
    """The pools of agents and their scheduling policies. All methods raise CallError."""

    def __init__(self, asynchronous: aio_fleet.ResourceGroups) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def get(self, name: str) -> pb.ResourceGroup:
        """Returns one group."""
        return run(self._asynchronous.get(name))

    def list(self, *, limit: int | None = None) -> Iterator[pb.ResourceGroup]:
        """Groups by name."""
        return iterate(self._asynchronous.list(limit=limit))

    def create(
        self, name: str, *, request_id: str = "", validate_only: bool = False, **policy: Unpack[GroupPolicy]
    ) -> pb.ResourceGroup:
        """Makes a group; what is not given gets the server's default."""
        return run(self._asynchronous.create(name, request_id=request_id, validate_only=validate_only, **policy))

    def update(self, name: str, *, etag: str = "", **policy: Unpack[GroupPolicy]) -> pb.ResourceGroup:
        """Changes what is given, to an empty value too."""
        return run(self._asynchronous.update(name, etag=etag, **policy))

    def delete(self, name: str, *, etag: str = "") -> None:
        """Removes a group without agents and live sessions."""
        run(self._asynchronous.delete(name, etag=etag))

    def shares(self, resource_group: str = "") -> Sequence[pb.Share]:
        """Returns the owners' dominant shares in a group (default: `default`), largest first;
        others than administrators get their own only.
        """
        return run(self._asynchronous.shares(resource_group))

    def verify(self, resource_group: str = "") -> pb.VerifyLedgerResponse:
        """Recomputes the claims, shares and capacity of a group (default: all), for administrators; a sound ledger has
        no mismatches.
        """
        return run(self._asynchronous.verify(resource_group))
