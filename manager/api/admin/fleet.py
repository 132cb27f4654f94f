"""The FleetService: agents, resource groups, shares and join tokens."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc.aio

from retinue.manager.api.admin.enrollment import checked_kind
from retinue.manager.api.admin.fleet_convert import (
    agent_for_user,
    agent_message,
    group_for_user,
    group_message,
    mismatch_message,
    orphan_message,
    router_message,
    share_message,
    shares_for_user,
)
from retinue.manager.api.admin.group_policy import changed_policy, new_policy
from retinue.manager.api.admin.share_histories import list_share_histories
from retinue.manager.dispatch.agent_values import attempt_key
from retinue.manager.domain.agents.agent_conditions import OUT_OF_BOUNDS, with_condition, with_loss_confirmed
from retinue.manager.domain.errors import MAX_NAMES, InvalidRequest, NameTaken, NotFound
from retinue.manager.domain.preconditions import InUse
from retinue.manager.domain.session.attempts import attempt_id
from retinue.manager.identity.tokens import JOIN_TOKEN_PREFIX, hash_secret, new_secret
from retinue.manager.server.etags import check_etag
from retinue.manager.server.fields import Violations
from retinue.manager.server.filters import parse_filter
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.journal_positions import position_of, with_position
from retinue.manager.server.pages import open_page
from retinue.manager.session.transaction import UnreadableSessionError, terminate
from retinue.manager.store.accounts import ssh_keys
from retinue.manager.store.endpoints import endpoints
from retinue.manager.store.fleet import agent_conditions, agents, groups, routers
from retinue.manager.store.fleet.groups import GroupRecord
from retinue.manager.store.journal import journal, requests
from retinue.manager.store.placement import ledger, orphans
from retinue.manager.store.sessions import conditions
from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.manager.v1 import fleet_service_pb2_grpc
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.identity.authority import Authority
    from retinue.manager.store.fleet.agents import AgentRecord
    from retinue.manager.store.postgres.database import Database

_log = logging.getLogger(__name__)

DEFAULT_GROUP = "default"
MAX_USES = 10_000
MAX_ORPHANS, MAX_CONFIRMED = 500, 500
DEFAULT_JOIN_TTL, LONGEST_JOIN_TTL = dt.timedelta(minutes=15), dt.timedelta(days=30)
LONGEST_DEADLINE = dt.timedelta(days=30)
_SHORTEST_TTL = dt.timedelta(seconds=1)
_STATE_PREFIX = "AGENT_STATE_"

_Context = grpc.aio.ServicerContext[Any, Any]
_Drained = TypeVar("_Drained", pb.DrainAgentResponse, pb.UndrainAgentResponse)
_Revoked = TypeVar("_Revoked", pb.RevokeAgentResponse, pb.DeleteAgentResponse)


class FleetServicer(fleet_service_pb2_grpc.FleetServiceServicer):
    """The fleet, for users to see what they can have of it, and for administrators to change."""

    def __init__(self, database: Database, authority: Authority, changed: Callable[[], None]) -> None:
        """`changed` is called when what may be placed, or how, has changed."""
        self._database = database
        self._changed = changed
        self._authority = authority

    async def GetAgent(self, request: pb.GetAgentRequest, context: _Context) -> pb.GetAgentResponse:
        async with self._database.transaction() as tx:
            return pb.GetAgentResponse(agent=_agent_shown(await _agent_message(tx, request.agent)))

    async def ListAgents(self, request: pb.ListAgentsRequest, context: _Context) -> pb.ListAgentsResponse:
        terms = [
            (field, operator, value.removeprefix(_STATE_PREFIX) if field == "state" else value)
            for field, operator, value in parse_filter(request.filter, agents.FILTER_FIELDS)
        ]
        page = open_page(request.page_size, request.page_token, ["agents", request.filter])
        async with self._database.transaction() as tx:
            after = page.after[0] if page.after else ""
            found = await agents.list_page(tx, terms=terms, after=after, limit=page.size + 1)
            shown = found[: page.size]
            loads = await agents.read_loads(tx, [agent.id for agent in shown])
        messages = [_agent_shown(agent_message(agent, loads[agent.id])) for agent in shown]
        listed, token = page.close(messages, len(found), lambda position: [found[position].id])
        return pb.ListAgentsResponse(agents=listed, next_page_token=token)

    async def DrainAgent(self, request: pb.DrainAgentRequest, context: _Context) -> pb.DrainAgentResponse:
        deadline = None
        if request.HasField("deadline"):
            violations = Violations()
            deadline = violations.duration("deadline", request.deadline, dt.timedelta(), LONGEST_DEADLINE)
            violations.raise_any()
        response = await self._set_drained(pb.DrainAgentResponse(), request, drained=True, deadline=deadline)
        if not request.keep_system:
            await self._end_system_sessions(request.agent)
        return response

    async def UndrainAgent(self, request: pb.UndrainAgentRequest, context: _Context) -> pb.UndrainAgentResponse:
        return await self._set_drained(pb.UndrainAgentResponse(), request, drained=False)

    async def _set_drained(
        self,
        response: _Drained,
        request: pb.DrainAgentRequest | pb.UndrainAgentRequest,
        *,
        drained: bool,
        deadline: dt.timedelta | None = None,
    ) -> _Drained:
        agent_id = request.agent
        async with self._database.transaction() as tx:
            agent = await _existing_agent(tx, agent_id, lock=True)
            check_etag(request.etag, agent.version)
            await agents.set_drained(tx, agent_id, drained=drained, deadline=deadline)
            if not drained:
                await agent_conditions.change(
                    tx, agent_id, "found", lambda before, now: with_condition(OUT_OF_BOUNDS, None, before, now)
                )
            agent = await _existing_agent(tx, agent_id)
            response.agent.CopyFrom(agent_message(agent, (await agents.read_loads(tx, [agent_id]))[agent_id]))
            await with_position(tx, response)
        self._changed()
        return response

    async def _end_system_sessions(self, agent_id: str) -> None:
        """Terminates those with a kernel on an agent that takes no more;
        each in a transaction of its own, as a second request ends the rest.
        """
        by = f"{current_principal().name}, who drains agent {agent_id}"
        async with self._database.transaction() as tx:
            ids = await ssh_keys.system_sessions_on(tx, agent_id)
        for session_id in ids:
            async with self._database.transaction() as tx:
                # One that another version has made costs only itself.
                with suppress(UnreadableSessionError):
                    await terminate(tx, session_id, by=by, force=False)
        if ids:
            self._changed()

    async def RevokeAgent(self, request: pb.RevokeAgentRequest, context: _Context) -> pb.RevokeAgentResponse:
        return await self._revoke(pb.RevokeAgentResponse(), request)

    async def DeleteAgent(self, request: pb.DeleteAgentRequest, context: _Context) -> pb.DeleteAgentResponse:
        return await self._revoke(pb.DeleteAgentResponse(), request, only_idle=True)

    async def _revoke(
        self, response: _Revoked, request: pb.RevokeAgentRequest | pb.DeleteAgentRequest, *, only_idle: bool = False
    ) -> _Revoked:
        agent_id = request.agent
        async with self._database.transaction() as tx:
            agent = await _existing_agent(tx, agent_id, lock=True)
            check_etag(request.etag, agent.version)
            if only_idle and (await agents.read_loads(tx, [agent_id]))[agent_id].kernels:
                raise InUse("agent", agent_id, "live kernels")
            await agents.revoke(tx, agent_id)
            await with_position(tx, response)
        # On its own, as sessions are locked before agents.
        async with self._database.transaction() as tx:
            await conditions.set_agent_lost(tx, agent_id, lost=True)
        self._changed()
        return response

    async def ConfirmLostAgents(
        self, request: pb.ConfirmLostAgentsRequest, context: _Context
    ) -> pb.ConfirmLostAgentsResponse:
        group, wanted = request.resource_group, sorted(set(request.agents))
        if not group and not wanted:
            raise InvalidRequest([("agents", "must name agents when there is no resource_group")])
        if len(request.agents) > MAX_CONFIRMED:
            raise InvalidRequest([("agents", f"must be at most {MAX_CONFIRMED}")])
        by = current_principal().name
        async with self._database.transaction() as tx:
            if group:
                await _existing_group(tx, group)
            for agent_id in wanted:
                agent = await _existing_agent(tx, agent_id)
                if group and agent.resource_group != group:
                    raise InvalidRequest([("agents", f"agent {agent_id} is of resource group {agent.resource_group}")])
            confirmed = [
                agent_id
                for agent_id in wanted or await agents.held_in(tx, group)
                if await agent_conditions.change(tx, agent_id, "found", partial(with_loss_confirmed, by=by))
            ]
            response = await with_position(tx, pb.ConfirmLostAgentsResponse(agents=confirmed))
        if confirmed:
            _log.warning("%s confirmed that agents are lost: %s", by, ", ".join(confirmed))
        self._changed()
        return response

    async def ListOrphans(self, request: pb.ListOrphansRequest, context: _Context) -> pb.ListOrphansResponse:
        page = open_page(request.page_size, request.page_token, ["orphans", request.agent])
        after = (page.after[0], uuid.UUID(page.after[1]), int(page.after[2])) if page.after else None
        async with self._database.transaction() as tx:
            found = await orphans.list_page(tx, request.agent, after, page.size + 1)
        listed, token = page.close(
            [orphan_message(orphan) for orphan in found[: page.size]],
            len(found),
            lambda position: [found[position].agent_id, str(found[position].kernel_id), str(found[position].epoch)],
        )
        return pb.ListOrphansResponse(orphans=listed, next_page_token=token)

    async def EndOrphans(self, request: pb.EndOrphansRequest, context: _Context) -> pb.EndOrphansResponse:
        if len(request.attempt_ids) > MAX_ORPHANS:
            raise InvalidRequest([("attempt_ids", f"must be at most {MAX_ORPHANS}")])
        keys = [attempt_key(text) for text in request.attempt_ids]
        wanted = [key for key in keys if key is not None]
        if len(wanted) < len(keys):
            raise InvalidRequest(
                [
                    (f"attempt_ids[{position}]", "must be KERNEL_ID.ATTEMPT")
                    for position, key in enumerate(keys)
                    if key is None
                ]
            )
        async with self._database.transaction() as tx:
            await _existing_agent(tx, request.agent)
            ending = await orphans.request_end(tx, request.agent, wanted or None)
            for key in wanted:
                if key not in ending:
                    raise NotFound("attempt", attempt_id(*key))
            ended = sorted(attempt_id(*key) for key in ending)
            return await with_position(tx, pb.EndOrphansResponse(attempt_ids=ended))

    async def GetRouter(self, request: pb.GetRouterRequest, context: _Context) -> pb.GetRouterResponse:
        async with self._database.transaction() as tx:
            found = await routers.read(tx, request.router)
        if found is None:
            raise NotFound("router", request.router)
        return pb.GetRouterResponse(router=router_message(found))

    async def ListRouters(self, request: pb.ListRoutersRequest, context: _Context) -> pb.ListRoutersResponse:
        page = open_page(request.page_size, request.page_token, ["routers"])
        async with self._database.transaction() as tx:
            found = await routers.list_page(tx, page.after[0] if page.after else "", page.size + 1)
        listed, token = page.close(
            [router_message(router) for router in found[: page.size]], len(found), lambda position: [found[position].id]
        )
        return pb.ListRoutersResponse(routers=listed, next_page_token=token)

    async def RevokeRouter(self, request: pb.RevokeRouterRequest, context: _Context) -> pb.RevokeRouterResponse:
        async with self._database.transaction() as tx:
            found = await routers.revoke(tx, request.router)
            if found is None:
                raise NotFound("router", request.router)
            return await with_position(tx, pb.RevokeRouterResponse(router=router_message(found)))

    async def GetResourceGroup(
        self, request: pb.GetResourceGroupRequest, context: _Context
    ) -> pb.GetResourceGroupResponse:
        async with self._database.transaction() as tx:
            group = group_message(await _existing_group(tx, request.name))
            return pb.GetResourceGroupResponse(resource_group=_group_shown(group))

    async def ListResourceGroups(
        self, request: pb.ListResourceGroupsRequest, context: _Context
    ) -> pb.ListResourceGroupsResponse:
        page = open_page(request.page_size, request.page_token, ["groups"])
        async with self._database.transaction() as tx:
            found = await groups.list_page(tx, after=page.after[0] if page.after else "", limit=page.size + 1)
        messages = [_group_shown(group_message(group)) for group in found[: page.size]]
        listed, token = page.close(messages, len(found), lambda position: [found[position].name])
        return pb.ListResourceGroupsResponse(resource_groups=listed, next_page_token=token)

    async def CreateResourceGroup(
        self, request: pb.CreateResourceGroupRequest, context: _Context
    ) -> pb.CreateResourceGroupResponse:
        violations = Violations()
        name = violations.name("resource_group.name", request.resource_group.name)
        violations.request_id(request.request_id)
        policy = new_policy(request.resource_group, violations)
        violations.raise_any()
        async with self._database.transaction() as tx:

            async def create() -> pb.CreateResourceGroupResponse:
                group = await groups.create(tx, name, policy)
                if group is None:
                    raise NameTaken("resource_group", name)
                return await with_position(tx, pb.CreateResourceGroupResponse(resource_group=group_message(group)))

            if request.validate_only:
                if await groups.get(tx, name) is not None:
                    raise NameTaken("resource_group", name)
                shown = GroupRecord(name=name, **policy)
                return await with_position(tx, pb.CreateResourceGroupResponse(resource_group=group_message(shown)))
            caller = current_principal().name
            return await requests.once(
                tx, caller, "CreateResourceGroup", request, pb.CreateResourceGroupResponse, create
            )

    async def UpdateResourceGroup(
        self, request: pb.UpdateResourceGroupRequest, context: _Context
    ) -> pb.UpdateResourceGroupResponse:
        wanted = request.resource_group
        async with self._database.transaction() as tx:
            group = await _existing_group(tx, wanted.name, lock=True)
            violations = Violations()
            policy = changed_policy(group.scheduling, group.isolation, wanted, request.update_mask, violations)
            violations.raise_any()
            check_etag(wanted.etag, group.version)
            if request.validate_only:
                shown = replace(group, **policy)
                return await with_position(tx, pb.UpdateResourceGroupResponse(resource_group=group_message(shown)))
            if policy:
                group = await groups.change(tx, wanted.name, policy)
            response = await with_position(tx, pb.UpdateResourceGroupResponse(resource_group=group_message(group)))
        self._changed()
        return response

    async def DeleteResourceGroup(
        self, request: pb.DeleteResourceGroupRequest, context: _Context
    ) -> pb.DeleteResourceGroupResponse:
        async with self._database.transaction() as tx:
            group = await _existing_group(tx, request.name, lock=True)
            check_etag(request.etag, group.version)
            if await groups.in_use(tx, request.name):
                raise InUse("resource_group", request.name, "agents or live sessions")
            if await endpoints.has_any(tx, resource_group=request.name):
                raise InUse("resource_group", request.name, "endpoints")
            await groups.remove(tx, request.name)
            return await with_position(tx, pb.DeleteResourceGroupResponse())

    async def ListShares(self, request: pb.ListSharesRequest, context: _Context) -> pb.ListSharesResponse:
        name = request.resource_group or DEFAULT_GROUP
        async with self._database.transaction() as tx:
            await _existing_group(tx, name)
            shares = await groups.read_shares(tx, name)
        messages, caller = [share_message(share) for share in shares], current_principal()
        return pb.ListSharesResponse(shares=messages) if caller.is_admin else shares_for_user(messages, caller.name)

    async def ListShareHistories(
        self, request: pb.ListShareHistoriesRequest, context: _Context
    ) -> pb.ListShareHistoriesResponse:
        """See the proto."""
        name = request.resource_group or DEFAULT_GROUP
        async with self._database.transaction() as tx:
            group = await _existing_group(tx, name)
            return await list_share_histories(tx, group, request)

    async def VerifyLedger(self, request: pb.VerifyLedgerRequest, context: _Context) -> pb.VerifyLedgerResponse:
        async with self._database.transaction() as tx:
            await ledger.freeze(tx)
            if request.resource_group:
                await _existing_group(tx, request.resource_group)
            found = await ledger.verify(tx, request.resource_group)
            at = await journal.head(tx)
        return pb.VerifyLedgerResponse(
            mismatches=[mismatch_message(item) for item in found.mismatches],
            claims=found.claims,
            shares=found.shares,
            agents=found.agents,
            position=position_of(at),
        )

    async def CreateJoinToken(
        self, request: pb.CreateJoinTokenRequest, context: _Context
    ) -> pb.CreateJoinTokenResponse:
        violations = Violations()
        if request.agent:
            violations.name("agent", request.agent)
        ttl = DEFAULT_JOIN_TTL
        if request.HasField("ttl"):
            ttl = violations.duration("ttl", request.ttl, _SHORTEST_TTL, LONGEST_JOIN_TTL)
        uses = violations.integer("uses", request.uses or 1, 1, MAX_USES)
        violations.raise_any()
        group = request.resource_group or DEFAULT_GROUP
        kind = checked_kind(request)
        secret = new_secret(JOIN_TOKEN_PREFIX)
        async with self._database.transaction() as tx:
            # Held, so that the group does not go meanwhile.
            await _existing_group(tx, group, lock=True)
            expire_time = await agents.create_join_token(
                tx, hash_secret(secret), kind=kind, group=group, agent_id=request.agent or None, uses=uses, ttl=ttl
            )
            response = pb.CreateJoinTokenResponse(
                token=secret, ca_fingerprint=self._authority.fingerprint, expire_time=timestamp(expire_time)
            )
            return await with_position(tx, response)


def _agent_shown(agent: pb.Agent) -> pb.Agent:
    return agent if current_principal().is_admin else agent_for_user(agent)


def _group_shown(group: pb.ResourceGroup) -> pb.ResourceGroup:
    caller = current_principal()
    return group if caller.is_admin else group_for_user(group, caller.name, caller.projects)


async def _existing_agent(tx: AsyncSession, agent_id: str, *, lock: bool = False) -> AgentRecord:
    agent = await agents.get(tx, agent_id, lock=lock)
    if agent is None:
        raise NotFound("agent", agent_id)
    return agent


async def _agent_message(tx: AsyncSession, agent_id: str) -> pb.Agent:
    agent = await _existing_agent(tx, agent_id)
    return agent_message(agent, (await agents.read_loads(tx, [agent_id]))[agent_id])


async def _existing_group(tx: AsyncSession, name: str, *, lock: bool = False) -> GroupRecord:
    group = await groups.get(tx, name, lock=lock)
    if group is None:
        raise NotFound.among("resource_group", name, await groups.first_names(tx, MAX_NAMES))
    return group
