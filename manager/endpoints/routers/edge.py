"""All routers of a leader: the table that they serve, their links, and the sum of what they measure."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from retinue.manager.dispatch.protected_addresses import HostAddresses, resolve_all
from retinue.manager.endpoints.routers.core.table import EdgeTable, difference
from retinue.manager.endpoints.routers.core.traffic import Reading, summed
from retinue.manager.endpoints.routers.messages import endpoint_message
from retinue.manager.endpoints.routers.router_link import RouterLink
from retinue.manager.store.endpoints import endpoint_tokens
from retinue.manager.store.fleet import routers
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.repeats import Repeats
from retinue.manager.store.postgres.writes import QUIET_SECONDS
from retinue.router.v1 import router_service_pb2 as pb
from retinue.rpc.cancellation import cancellable
from retinue.rpc.core.addresses import is_address

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping, Sequence

    from retinue.manager.agent_rpc.dialer import Dialer
    from retinue.manager.domain.endpoints.model import RoutedEndpoint, Traffic
    from retinue.manager.identity.endpoint_tokens import EndpointDomain

_log = logging.getLogger(__name__)

# Pause between two looks at which routers there are, and which tokens were revoked.
_POLL_SECONDS = 0.5
# Pause between two records of which routers were heard.
_RECORD_SECONDS = 5.0


# For the first answer to a name; what comes later counts from then on.
_NAME_SECONDS = 2.0


class RouterEdge:
    """The edge of a leader; belongs on one event loop."""

    def __init__(
        self,
        database: Database,
        dialer: Dialer,
        incarnation: str,
        term: int,
        domain: EndpointDomain,
        *,
        moved: Callable[[], None] = lambda: None,
        check_lease: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`moved` is called when a router acknowledged a table, or holds a first request for an endpoint."""
        self._database = database
        self._dialer = dialer
        self._incarnation = incarnation
        self._term = term
        self._domain = domain
        self._moved = moved
        self._check_lease = check_lease
        self._clock = clock
        self._table = EdgeTable()
        self._published: Sequence[RoutedEndpoint] | None = None
        self._revoked: Mapping[uuid.UUID, tuple[str, ...]] = {}
        self._links: dict[str, tuple[RouterLink, asyncio.Task[None]]] = {}
        # By host name, with the task that looks it up.
        self._names: dict[str, tuple[HostAddresses, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        self._recorded = clock()
        self._looked = False

    def _common(self) -> pb.Common:
        certificate = self._domain.own.current()
        return pb.Common(
            token_key=self._domain.public_key,
            certificate=certificate.certificate.decode(),
            private_key=certificate.key.decode(),
        )

    def publish(self, endpoints: Sequence[RoutedEndpoint]) -> int:
        """Takes all endpoints as they are to be served from now on; returns the revision of the table that has them."""
        self._published = tuple(endpoints)
        return self._make_table()

    def traffic(self) -> Traffic:
        """Returns what is known of the routers now."""
        # One that has said nothing yet is waited for as long as one that fell silent.
        # So is whatever there is, before it is known which.
        readings = [link.reading or Reading(link.began) for link, _ in self._links.values()]
        if not self._looked:
            readings.append(Reading(self._clock()))
        return summed(readings, newest=self._table.revision, now=self._clock())

    def refusals(self) -> dict[uuid.UUID, str]:
        """Returns endpoints that a router refuses, with its words."""
        return {key: text for link, _ in self._links.values() for key, text in link.refusals.items()}

    def addresses(self) -> frozenset[str]:
        """Returns the addresses of all routers, by which agents know them;
        those of names as they were looked up last.
        """
        literal = (host for link, _ in self._links.values() if is_address(host := _host(link.address)))
        return frozenset(literal).union(*(found.addresses() for found, _ in self._names.values()))

    def refresh(self) -> None:
        """Routers may have come or gone, or tokens were revoked."""
        self._changed.set()

    async def run(self) -> None:
        """Keeps links to all routers until cancelled. Ends with TermOverError only."""
        repeats = Repeats()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    seen = self._database.writes.number
                    try:
                        await self._look(group)
                    except StoreUnavailable as error:
                        if repeats.is_due(str(error), asyncio.get_running_loop().time()):
                            _log.warning("routers are not looked after: %s", error)
                    longest = _RECORD_SECONDS if self._links else QUIET_SECONDS
                    await self._database.writes.rest(self._changed, seen, _POLL_SECONDS, longest)
        finally:
            self._links.clear()
            self._names.clear()
            # Until it runs again, nothing is known of any router.
            self._looked = False

    def _make_table(self) -> int:
        """Makes the table of what was published and what is revoked.
        Before the first list there is none: a new leader knows no endpoint.
        """
        if self._published is None:
            return 0
        table = self._table.after(self._published, self._revoked, max(1, self.traffic().live))
        if table is not self._table:
            self._table = table
            for link, _ in self._links.values():
                link.wake()
        return self._table.revision

    async def _look(self, group: asyncio.TaskGroup) -> None:
        async with self._database.transaction() as tx:
            targets = {target.id: target for target in await routers.read_targets(tx)}
            self._revoked = await endpoint_tokens.read_revoked(tx)
            now = self._clock()
            if now - self._recorded >= _RECORD_SECONDS and (heard := self._heard_since(self._recorded)):
                await routers.record_heard(tx, heard)
                self._recorded = now
        for router_id, (link, task) in list(self._links.items()):
            if router_id not in targets or targets[router_id].address != link.address:
                task.cancel()
                del self._links[router_id]
        for router_id, target in targets.items():
            if router_id not in self._links:
                link = self._link(router_id, target.address)
                self._links[router_id] = link, group.create_task(cancellable(link.run), name=f"router {router_id}")
        hosts = {_host(target.address) for target in targets.values()}
        await self._follow_names(group, {host for host in hosts if not is_address(host)})
        self._looked = True
        self._make_table()

    async def _follow_names(self, group: asyncio.TaskGroup, names: set[str]) -> None:
        """Keeps the addresses of these names current, and of no others."""
        for name in self._names.keys() - names:
            self._names.pop(name)[1].cancel()
        for name in names - self._names.keys():
            found = HostAddresses([name], resolve_all)
            self._names[name] = found, group.create_task(cancellable(found.run), name=f"addresses of {name}")
            # Agents of a new leader are not to lose a router that the former one knew.
            await found.wait_answered(_NAME_SECONDS)

    def _heard_since(self, then: float) -> list[str]:
        """Returns the routers that said something since."""
        links = self._links.items()
        return [key for key, (link, _) in links if link.reading is not None and link.reading.heard > then]

    def _link(self, router_id: str, address: str) -> RouterLink:
        return RouterLink(
            router_id,
            address,
            incarnation=self._incarnation,
            term=self._term,
            dialer=self._dialer,
            table=lambda: (self._table, self._common()),
            endpoints=self._messages,
            welcomed=self._welcomed,
            moved=self._moved,
            clock=self._clock,
            check_lease=self._check_lease,
        )

    def _messages(self, before: EdgeTable, after: EdgeTable) -> tuple[list[pb.Endpoint], list[str]]:
        change = difference(before, after)
        changed = []
        for endpoint in change.changed:
            try:
                changed.append(endpoint_message(endpoint, self._domain.domain))
            except (ArithmeticError, TypeError, ValueError) as error:
                # Routers serve its former state, and the others as they are.
                _log.error("endpoint %s of project %s stays as it was: %s", endpoint.name, endpoint.project, error)
        return changed, list(map(str, change.removed))

    async def _welcomed(self, router_id: str, url: str) -> None:
        _log.info("router %s is connected; clients reach it at %s", router_id, url)
        try:
            async with self._database.transaction() as tx:
                await routers.record_url(tx, router_id, url[:256])
        except StoreUnavailable as error:
            _log.warning("the address of router %s is not recorded: %s", router_id, error)


def _host(address: str) -> str:
    """Returns the host of `host:port`."""
    return address.rpartition(":")[0].strip("[]")
