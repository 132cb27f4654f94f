"""Agents and resource groups of a manager."""

from __future__ import annotations

import datetime as dt
import uuid

# The declared types are also checked when the program runs.
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from google.protobuf.field_mask_pb2 import FieldMask

from retinue.client import enum_names
from retinue.client.admin.scheduling_policy import agent_strategy, session_strategy
from retinue.client.time_spans import as_duration
from retinue.client.transport.calls import call
from retinue.client.transport.pages import paged
from retinue.client.typed_options import check_options
from retinue.client.words import Egress, Isolation, PullPolicy, SessionType, Span
from retinue.manager.v1 import enrollment_service_pb2 as enrollment_pb
from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.manager.v1 import fleet_service_pb2_grpc, idle_pb2, scheduling_policy_pb2, session_pb2
from retinue.types.v1 import isolation_pb2, pull_policy_pb2

if TYPE_CHECKING:
    import grpc.aio


class GroupPolicy(TypedDict, total=False):
    """The scheduling options of a group; see ResourceGroup in the contract. `egress` is `allow` or `deny`.

    A strategy without options may be given by its name.
    """

    session_strategy: scheduling_policy_pb2.SessionStrategy | str
    agent_strategy: scheduling_policy_pb2.AgentStrategy | str
    external_server: scheduling_policy_pb2.ExternalServer | None
    reservation: scheduling_policy_pb2.ReservationPolicy
    preemption: scheduling_policy_pb2.PreemptionPolicy
    pending_timeout: Span
    max_kernels_per_agent: int
    owner_weights: Mapping[str, int]
    start_timeout: Span
    max_grace: Span
    mount_roots: Sequence[pb.MountRoot]
    image_registries: Sequence[str]
    session_types: Sequence[SessionType]
    isolations: Sequence[Isolation]
    default_isolation: Isolation | Literal[""]
    default_pull_policy: PullPolicy | Literal[""]
    egress: Egress
    mass_loss_percent: int
    mass_loss_agents: int
    mass_loss_window: Span
    idle_policy: idle_pb2.IdlePolicy


class Agents:
    """The nodes. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: fleet_service_pb2_grpc.FleetServiceAsyncStub = fleet_service_pb2_grpc.FleetServiceStub(channel)

    async def get(self, agent_id: str) -> pb.Agent:
        """Returns one agent."""
        return (await call(self._stub.GetAgent, pb.GetAgentRequest(agent=agent_id))).agent

    async def list(
        self,
        *,
        filter: str = "",  # noqa: A002  # as in the contract
        limit: int | None = None,
    ) -> AsyncGenerator[pb.Agent, None]:
        """Agents by id; `filter` is in the language of ListAgentsRequest."""

        async def fetch(token: str, size: int) -> pb.ListAgentsResponse:
            return await call(
                self._stub.ListAgents, pb.ListAgentsRequest(page_size=size, page_token=token, filter=filter)
            )

        async for agent in paged(fetch, lambda page: page.agents, limit):
            yield agent

    async def drain(
        self, agent_id: str, *, keep_system: bool = False, deadline: Span | None = None, etag: str = ""
    ) -> pb.Agent:
        """Takes an agent out of scheduling; what runs there stays, but for system sessions unless `keep_system`.

        What still runs there after `deadline` is evicted: it runs on other agents if it may be run again,
        and ends otherwise.
        """
        request = pb.DrainAgentRequest(agent=agent_id, etag=etag, keep_system=keep_system)
        if deadline is not None:
            request.deadline.CopyFrom(as_duration(deadline))
        return (await call(self._stub.DrainAgent, request)).agent

    async def undrain(self, agent_id: str, *, etag: str = "") -> pb.Agent:
        """Puts an agent back into scheduling."""
        return (await call(self._stub.UndrainAgent, pb.UndrainAgentRequest(agent=agent_id, etag=etag))).agent

    async def revoke(self, agent_id: str, *, etag: str = "") -> None:
        """Makes an agent's certificate worthless for good, whatever it runs."""
        await call(self._stub.RevokeAgent, pb.RevokeAgentRequest(agent=agent_id, etag=etag))

    async def delete(self, agent_id: str, *, etag: str = "") -> None:
        """Removes an agent that runs nothing; refused while kernels of it are live."""
        await call(self._stub.DeleteAgent, pb.DeleteAgentRequest(agent=agent_id, etag=etag))

    async def confirm_lost(self, agent_ids: Sequence[str] = (), *, resource_group: str = "") -> Sequence[str]:
        """Confirms that agents are lost whose loss is held, by default all of a group; returns which had been held."""
        request = pb.ConfirmLostAgentsRequest(agents=agent_ids, resource_group=resource_group)
        return (await call(self._stub.ConfirmLostAgents, request)).agents

    async def orphans(self, agent_id: str = "", *, limit: int | None = None) -> AsyncGenerator[pb.Orphan, None]:
        """Yields what agents, or one, run that the database does not know since it was restored from a backup."""

        async def fetch(token: str, size: int) -> pb.ListOrphansResponse:
            return await call(
                self._stub.ListOrphans, pb.ListOrphansRequest(agent=agent_id, page_size=size, page_token=token)
            )

        async for orphan in paged(fetch, lambda page: page.orphans, limit):
            yield orphan

    async def end_orphans(self, agent_id: str, attempt_ids: Sequence[str] = ()) -> Sequence[str]:
        """Has an agent end orphans, by default all of its; returns which, before they have ended."""
        request = pb.EndOrphansRequest(agent=agent_id, attempt_ids=attempt_ids)
        return (await call(self._stub.EndOrphans, request)).attempt_ids

    async def create_join_token(
        self,
        *,
        resource_group: str = "",
        agent_id: str = "",
        ttl: Span | None = None,
        uses: int = 1,
        router: bool = False,
    ) -> pb.CreateJoinTokenResponse:
        """Creates a token with which nodes enrol as agents of a group, or as routers; it is shown once."""
        kind = enrollment_pb.NODE_KIND_ROUTER if router else enrollment_pb.NODE_KIND_AGENT
        request = pb.CreateJoinTokenRequest(resource_group=resource_group, agent=agent_id, uses=uses, kind=kind)
        if ttl is not None:
            request.ttl.CopyFrom(as_duration(ttl))
        return await call(self._stub.CreateJoinToken, request)


class Routers:
    """What serves endpoints to clients. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: fleet_service_pb2_grpc.FleetServiceAsyncStub = fleet_service_pb2_grpc.FleetServiceStub(channel)

    async def get(self, router_id: str) -> pb.Router:
        """Returns one router, for administrators."""
        return (await call(self._stub.GetRouter, pb.GetRouterRequest(router=router_id))).router

    async def list(self, *, limit: int | None = None) -> AsyncGenerator[pb.Router, None]:
        """Routers by id, for administrators."""

        async def fetch(token: str, size: int) -> pb.ListRoutersResponse:
            return await call(self._stub.ListRouters, pb.ListRoutersRequest(page_size=size, page_token=token))

        async for router in paged(fetch, lambda page: page.routers, limit):
            yield router

    async def revoke(self, router_id: str) -> pb.Router:
        """Makes a router's certificate worthless: it gets no table any more, and reaches no replica."""
        return (await call(self._stub.RevokeRouter, pb.RevokeRouterRequest(router=router_id))).router


class ResourceGroups:
    """The pools of agents and their scheduling policies. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: fleet_service_pb2_grpc.FleetServiceAsyncStub = fleet_service_pb2_grpc.FleetServiceStub(channel)

    async def get(self, name: str) -> pb.ResourceGroup:
        """Returns one group."""
        return (await call(self._stub.GetResourceGroup, pb.GetResourceGroupRequest(name=name))).resource_group

    async def list(self, *, limit: int | None = None) -> AsyncGenerator[pb.ResourceGroup, None]:
        """Groups by name."""

        async def fetch(token: str, size: int) -> pb.ListResourceGroupsResponse:
            return await call(
                self._stub.ListResourceGroups, pb.ListResourceGroupsRequest(page_size=size, page_token=token)
            )

        async for group in paged(fetch, lambda page: page.resource_groups, limit):
            yield group

    async def create(
        self, name: str, *, request_id: str = "", validate_only: bool = False, **policy: Unpack[GroupPolicy]
    ) -> pb.ResourceGroup:
        """Makes a group; what is not given gets the server's default."""
        request = pb.CreateResourceGroupRequest(
            resource_group=_group(name, policy), request_id=request_id or str(uuid.uuid4()), validate_only=validate_only
        )
        return (await call(self._stub.CreateResourceGroup, request)).resource_group

    async def update(self, name: str, *, etag: str = "", **policy: Unpack[GroupPolicy]) -> pb.ResourceGroup:
        """Changes what is given, to an empty value too."""
        group = _group(name, policy)
        group.etag = etag
        request = pb.UpdateResourceGroupRequest(resource_group=group, update_mask=FieldMask(paths=_paths(policy)))
        return (await call(self._stub.UpdateResourceGroup, request)).resource_group

    async def delete(self, name: str, *, etag: str = "") -> None:
        """Removes a group without agents and live sessions."""
        await call(self._stub.DeleteResourceGroup, pb.DeleteResourceGroupRequest(name=name, etag=etag))

    async def shares(self, resource_group: str = "") -> Sequence[pb.Share]:
        """Returns the owners' dominant shares in a group (default: `default`), largest first;
        others than administrators get their own only.
        """
        return (await call(self._stub.ListShares, pb.ListSharesRequest(resource_group=resource_group))).shares

    async def share_histories(
        self,
        resource_group: str = "",
        *,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        interval: Span | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[pb.ShareHistory, None]:
        """Yields dominant shares over time in a group (default: `default`): of the group, of projects and of users,
        each the largest first. Times have a time zone; by default the last 7 days by the hour.
        """
        request = pb.ListShareHistoriesRequest(resource_group=resource_group)
        if since is not None:
            request.start_time.FromDatetime(since)
        if until is not None:
            request.end_time.FromDatetime(until)
        if interval is not None:
            request.interval.CopyFrom(as_duration(interval))

        async def fetch(token: str, size: int) -> pb.ListShareHistoriesResponse:
            request.page_token, request.page_size = token, size
            return await call(self._stub.ListShareHistories, request)

        async for history in paged(fetch, lambda page: page.histories, limit):
            yield history

    async def verify(self, resource_group: str = "") -> pb.VerifyLedgerResponse:
        """Recomputes the claims, shares and capacity of a group (default: all), for administrators; a sound ledger has
        no mismatches.
        """
        return await call(self._stub.VerifyLedger, pb.VerifyLedgerRequest(resource_group=resource_group))


def _paths(policy: GroupPolicy) -> Sequence[str]:
    """Returns the fields of a group that are given."""
    scheduling = scheduling_policy_pb2.SchedulingPolicy.DESCRIPTOR.fields_by_name
    return sorted(f"scheduling_policy.{name}" if name in scheduling else name for name in policy)


def _scheduling(policy: GroupPolicy) -> scheduling_policy_pb2.SchedulingPolicy:
    sessions, agents = policy.get("session_strategy"), policy.get("agent_strategy")
    message = scheduling_policy_pb2.SchedulingPolicy(
        session_strategy=session_strategy(sessions) if isinstance(sessions, str) else sessions,
        agent_strategy=agent_strategy(agents) if isinstance(agents, str) else agents,
        external_server=policy.get("external_server"),
        reservation=policy.get("reservation"),
        preemption=policy.get("preemption"),
        max_kernels_per_agent=policy.get("max_kernels_per_agent", 0),
    )
    if (pending_timeout := policy.get("pending_timeout")) is not None:
        message.pending_timeout.CopyFrom(as_duration(pending_timeout))
    return message


def _pull_policy(name: str) -> pull_policy_pb2.PullPolicy.ValueType:
    return pull_policy_pb2.PullPolicy.ValueType(enum_names.number(enum_names.PULL_POLICY, name) if name else 0)


def _isolation(name: str) -> isolation_pb2.Isolation.ValueType:
    return isolation_pb2.Isolation.ValueType(enum_names.number(enum_names.ISOLATION, name) if name else 0)


def _group(name: str, policy: GroupPolicy) -> pb.ResourceGroup:
    check_options(policy, GroupPolicy)
    group = pb.ResourceGroup(
        name=name,
        scheduling_policy=_scheduling(policy),
        owner_weights=policy.get("owner_weights", {}),
        mount_roots=policy.get("mount_roots", ()),
        image_registries=policy.get("image_registries", ()),
        session_types=[
            session_pb2.SessionType.Value(f"SESSION_TYPE_{name.upper()}") for name in policy.get("session_types", ())
        ],
        isolations=[_isolation(name) for name in policy.get("isolations", ())],
        default_isolation=_isolation(policy.get("default_isolation", "")),
        default_pull_policy=_pull_policy(policy.get("default_pull_policy", "")),
        mass_loss_percent=policy.get("mass_loss_percent", 0),
        mass_loss_agents=policy.get("mass_loss_agents", 0),
        idle_policy=policy.get("idle_policy"),
    )
    if egress := policy.get("egress"):
        group.egress = pb.EgressPolicy.Value(f"EGRESS_POLICY_{egress.upper()}")
    if (start_timeout := policy.get("start_timeout")) is not None:
        group.start_timeout.CopyFrom(as_duration(start_timeout))
    if (max_grace := policy.get("max_grace")) is not None:
        group.max_grace.CopyFrom(as_duration(max_grace))
    if (mass_loss_window := policy.get("mass_loss_window")) is not None:
        group.mass_loss_window.CopyFrom(as_duration(mass_loss_window))
    return group
