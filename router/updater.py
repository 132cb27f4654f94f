"""Brings the engine from one state of the table to the next, in an order in which no request meets a gap.

Clusters and replicas that are new come first, then routes, then what is no longer used goes,
each step acknowledged before the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.proxy.ads import ASSIGNMENTS, CLUSTERS, ROUTES, AdsServer, RefusedError
from retinue.proxy.core.fields import route_configuration
from retinue.router.core import names
from retinue.router.core.resources import NOTHING, EndpointResources, merged

if TYPE_CHECKING:
    from envoy.config.route.v3.route_components_pb2 import VirtualHost
    from google.protobuf.message import Message

_log = logging.getLogger(__name__)


# Endpoints with their resources before and after.
_Change = Mapping[str, tuple[EndpointResources, EndpointResources]]


class _Steps:
    """What a change does."""

    def __init__(self, change: _Change) -> None:
        pairs = list(change.values())
        self.clusters = {
            name: cluster
            for old, new in pairs
            for name, cluster in new.clusters.items()
            if old.clusters.get(name) != cluster
        }
        self.hosts = {key: new.host for key, (old, new) in change.items() if old.host != new.host}
        self.assignments = {name: assignment for _, new in pairs for name, assignment in new.assignments.items()}
        # Replicas that go stay until requests follow the new routes.
        self.before_routes = {
            name: merged(old.assignments[name], assignment)
            for old, new in pairs
            for name, assignment in new.assignments.items()
            if self.hosts and name in old.assignments
        }
        self.removed = [name for old, new in pairs for name in old.clusters if name not in new.clusters]


@dataclass(slots=True)
class _State:
    """What was applied, and the virtual hosts that routes are made of: those of a change before it is applied."""

    applied: dict[str, EndpointResources] = field(default_factory=dict)
    hosts: dict[str, VirtualHost] = field(default_factory=dict)


class Updater:
    """Applies states of endpoints, one batch after the other; belongs on one event loop."""

    def __init__(self, ads: AdsServer) -> None:
        self._ads = ads
        self._state = _State()
        self._applying = asyncio.Lock()

    async def apply(self, wanted: Mapping[str, EndpointResources | None]) -> dict[str, str]:
        """Brings these endpoints to their new states, None to remove one; returns once the engine follows.

        Returns the endpoints that the engine refused with its words: their former state stays.
        """
        async with self._applying:
            change = {}
            for endpoint_id, after in wanted.items():
                before = self._state.applied.get(endpoint_id, NOTHING)
                if before != (after or NOTHING):
                    change[endpoint_id] = before, after or NOTHING
            return await self._apply(change)

    async def _apply(self, change: _Change) -> dict[str, str]:
        """Applies a change; of one that is refused, half after half, so that what is refused is found."""
        if not change:
            return {}
        try:
            await self._step_through(change)
        except RefusedError as error:
            await self._step_through({key: (after, before) for key, (before, after) in change.items()})
            if len(change) == 1:
                (endpoint_id,) = change
                _log.warning("endpoint %s stays as it was: %s", endpoint_id, error)
                return {endpoint_id: str(error)}
            items = list(change.items())
            middle = len(items) // 2
            return await self._apply(dict(items[:middle])) | await self._apply(dict(items[middle:]))
        for endpoint_id, (_, after) in change.items():
            if after is NOTHING:
                self._state.applied.pop(endpoint_id, None)
            else:
                self._state.applied[endpoint_id] = after
        return {}

    async def _step_through(self, change: _Change) -> None:
        steps = _Steps(change)
        # Together: the engine acknowledges a cluster once it has replicas.
        self._put(CLUSTERS, steps.clusters)
        self._put(ASSIGNMENTS, steps.assignments | steps.before_routes)
        await self._ads.settled(CLUSTERS, steps.clusters)
        await self._ads.settled(ASSIGNMENTS, steps.assignments)
        if steps.hosts:
            for endpoint_id, host in steps.hosts.items():
                if host is None:
                    self._state.hosts.pop(endpoint_id, None)
                else:
                    self._state.hosts[endpoint_id] = host
            await self.put_routes()
            self._put(ASSIGNMENTS, steps.assignments)
            await self._ads.settled(ASSIGNMENTS, steps.assignments)
        for kind in (CLUSTERS, ASSIGNMENTS):
            for name in steps.removed:
                self._ads.remove(kind, name)
            if steps.removed and self._ads.connected:
                await self._ads.settled(kind, steps.removed)

    def _put(self, kind: str, resources: Mapping[str, Message]) -> None:
        for name, resource in resources.items():
            self._ads.put(kind, name, resource)

    async def put_routes(self) -> None:
        """Sends the route configuration, and waits until it is in force."""
        hosts = list(self._state.hosts.values())
        # Programs see the port that clients use, and build addresses with it.
        self._ads.put(ROUTES, names.ROUTES, route_configuration(names.ROUTES, hosts, any_port=True))
        await self._ads.settled(ROUTES, (names.ROUTES,))
