"""The table of endpoints that routers serve, with a revision that rises with each difference."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from retinue.manager.domain.endpoints.model import RoutedEndpoint


@dataclass(frozen=True, slots=True)
class EdgeTable:
    """All endpoints; `revision` 0 is the empty table before the first."""

    revision: int = 0
    endpoints: Mapping[uuid.UUID, RoutedEndpoint] = field(default_factory=dict)

    def after(
        self, endpoints: Iterable[RoutedEndpoint], revoked: Mapping[uuid.UUID, tuple[str, ...]], routers: int
    ) -> EdgeTable:
        """Returns the table with these endpoints only: itself when nothing differs, the next revision otherwise."""
        served = list(endpoints)
        claimed = {host for endpoint in served if not endpoint.deleted for host in endpoint.routing.hosts}
        latest = {
            endpoint.id: replace(_without(endpoint, claimed), revoked=revoked.get(endpoint.id, ()), routers=routers)
            for endpoint in served
        }
        if self.revision and latest == self.endpoints:
            return self
        return EdgeTable(self.revision + 1, latest)


def _without(endpoint: RoutedEndpoint, claimed: Set[str]) -> RoutedEndpoint:
    """Returns an endpoint that is deleted without the host names that another one has now."""
    if not endpoint.deleted or claimed.isdisjoint(endpoint.routing.hosts):
        return endpoint
    kept = tuple(host for host in endpoint.routing.hosts if host not in claimed)
    return replace(endpoint, routing=replace(endpoint.routing, hosts=kept))


@dataclass(frozen=True, slots=True)
class TableChange:
    """A difference between two tables: endpoints that are new or changed, and those that are gone."""

    changed: tuple[RoutedEndpoint, ...]
    removed: tuple[uuid.UUID, ...]


def difference(before: EdgeTable, after: EdgeTable) -> TableChange:
    """Returns the change that makes `before` into `after`."""
    changed = (endpoint for key, endpoint in after.endpoints.items() if before.endpoints.get(key) != endpoint)
    return TableChange(tuple(changed), tuple(key for key in before.endpoints if key not in after.endpoints))
