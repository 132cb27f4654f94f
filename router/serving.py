"""Everything of a router but its link to the leader: engine, gate, resources, and the table that they follow."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc.aio
from envoy.service.auth.v3 import external_auth_pb2_grpc
from envoy.service.discovery.v3 import ads_pb2_grpc

from retinue.proxy.ads import LISTENERS, SECRETS, AdsServer
from retinue.router.core import names
from retinue.router.core.listener import Listening, listener, secret
from retinue.router.core.names import cluster_name
from retinue.router.core.resources import EndpointResources, endpoint_resources
from retinue.router.core.table import Common, Endpoint, Revision, Table
from retinue.router.envoy.bootstrap import bootstrap
from retinue.router.envoy.process import Engine
from retinue.router.gate.gate import Gate
from retinue.router.picker_addresses import NOWHERE, Located, PickerAddresses
from retinue.router.updater import Updater
from retinue.rpc.core.addresses import PUBLIC_ONLY, AddressPolicy
from retinue.rpc.descriptors import soft_limit
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

_log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
"""Pause before a table that could not be applied is applied again."""
_UNLIMITED_STREAMS = 1_000_000
_UNLIMITED_SECONDS = 3600
# The gate says itself how many requests it holds; a burst of them waits for this process,
# and is not turned away by gRPC.
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_concurrent_streams", _UNLIMITED_STREAMS),
    ("grpc.server.max_pending_requests", _UNLIMITED_STREAMS),
    ("grpc.server.max_pending_requests_hard_limit", _UNLIMITED_STREAMS),
    ("grpc.server_max_unrequested_time_in_server", _UNLIMITED_SECONDS),
)
_NO_TABLE = Table(0, {})


@dataclass(frozen=True, slots=True)
class _Applied:
    """An endpoint as the engine has it, where its picker is, and the revisions of it that are kept for requests that
    are held.
    """

    endpoint: Endpoint
    gated: bool
    picker: Located = NOWHERE
    kept: tuple[Revision, ...] = ()


class Serving:
    """Serves a table; belongs on one event loop."""

    def __init__(
        self,
        router_id: str,
        directory: Path,
        program: Path,
        listening: Listening,
        picker_addresses: AddressPolicy = PUBLIC_ONLY,
    ) -> None:
        """Sockets and files are in `directory`."""
        self._directory = directory
        self.listening = listening
        self._ads = AdsServer(lambda: self.engine.running)
        self._updater = Updater(self._ads)
        self._table = _NO_TABLE
        self._applied: dict[str, _Applied] = {}
        self._common = Common()
        self._changed = asyncio.Event()
        self._pickers = PickerAddresses(picker_addresses, self._changed.set)
        self._listeners: list[Callable[[], None]] = []
        # The engine gets the limit that this process has.
        configuration = functools.partial(bootstrap, router_id, directory, soft_limit())
        self.engine = Engine(program, directory, configuration, listening.port)
        self.gate = Gate(self._in_progress, first_held=self._notify, emptied=self._changed.set)
        self.revision = 0
        """Revision of the table that the engine follows."""
        self.applied = 0
        """How many of the tables that were set the engine has followed: two leaders may use one number."""
        self._set = 0
        self.refusals: dict[str, str] = {}
        """Endpoints that the engine refused, with its words."""

    @property
    def tables(self) -> int:
        """Returns how many tables were set."""
        return self._set

    @property
    def table(self) -> Table:
        """Returns the newest table, which the engine may not follow yet."""
        return self._table

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` whenever a table is in force or a first request is held; returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def set_table(self, table: Table) -> None:
        """Makes the engine follow a table, as soon as it can."""
        self._table = table
        self._set += 1
        self._changed.set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serves while the block lasts; the engine runs on after it."""
        servers = []
        adders: dict[str, Callable[[grpc.aio.Server], None]] = {
            "ads": functools.partial(ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server, self._ads),
            "gate": functools.partial(external_auth_pb2_grpc.add_AuthorizationServicer_to_server, self.gate),
        }
        for name, add_to in adders.items():
            server = grpc.aio.server(options=_OPTIONS)
            add_to(server)
            path = self._directory / f"{name}.sock"
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            path.chmod(0o600)
            servers.append(server)
        tasks = [
            asyncio.create_task(self.engine.run(), name="engine"),
            asyncio.create_task(self.gate.run(), name="gate"),
            asyncio.create_task(self._follow(), name="table"),
        ]
        try:
            yield
        finally:
            self._pickers.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for server in servers:
                await server.stop(0)

    def _notify(self) -> None:
        for notify in self._listeners:
            notify()

    async def _follow(self) -> None:
        """Applies the newest table again and again."""
        applying = Retrying("the table cannot be applied", _log, level=logging.ERROR, part="table")
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if applying.retries is None else AGAIN_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            try:
                number = self._set
                await self._apply(self._table)
                if self.applied != number:
                    self.applied = number
                    self._notify()
                applying.succeed()
            except Exception as error:  # noqa: BLE001  # logged whole; it is tried again, or the next one is
                applying.fail(f"{self._table.revision}: {error!r}", unforeseen=error)

    async def _apply(self, table: Table) -> None:
        if table is _NO_TABLE:
            return
        self._put_common(table.common)
        pickers = (endpoint.routing.picker for endpoint in table.endpoints.values())
        self._pickers.follow(picker.host for picker in pickers if picker is not None)
        wanted = self._wanted(table)
        self.gate.set_endpoints(self._during(table, wanted))
        resources: dict[str, EndpointResources | None] = {}
        refused: dict[str, str] = {}
        for key, state in wanted.items():
            try:
                resources[key] = None if state is None else _resources(state)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                _log.exception("endpoint %s stays as it was", key)
                refused[key] = f"the router has no resources for it: {error!r}"
        refused |= await self._updater.apply(resources)
        if not self.revision and not self._applied:
            # The first table: the listener waits for routes even when there is no endpoint.
            await self._updater.put_routes()
        for key, state in wanted.items():
            self.refusals.pop(key, None)
            if key in refused:
                self.refusals[key] = refused[key]
            elif state is None:
                self._applied.pop(key, None)
            else:
                self._applied[key] = state
                if state.picker.refusal:
                    self.refusals[key] = state.picker.refusal
        if self.gate.held():
            await self.engine.wait_followed()
        self.gate.set_endpoints({key: state.endpoint for key, state in self._applied.items()})
        self.revision = table.revision

    def _wanted(self, table: Table) -> dict[str, _Applied | None]:
        """Returns the endpoints that are to change, None for those that go."""
        held = self.gate.held()
        wanted: dict[str, _Applied | None] = {key: None for key in self._applied if key not in table.endpoints}
        for key, endpoint in table.endpoints.items():
            before = self._applied.get(key)
            gated = not endpoint.deleted and (endpoint.ready == 0 or key in held)
            picker = NOWHERE if endpoint.routing.picker is None else self._pickers.of(endpoint.routing.picker.host)
            if before is not None and (before.endpoint, before.gated, before.picker) == (endpoint, gated, picker):
                continue
            state = _Applied(endpoint, gated, picker, _kept(before, endpoint, held=key in held) if gated else ())
            wanted[key] = state
        return wanted

    def _during(self, table: Table, wanted: Mapping[str, _Applied | None]) -> dict[str, Endpoint]:
        """Returns the endpoints that the gate goes by until the engine has followed:
        never more ready than before or after.
        """
        during = {key: state.endpoint for key, state in self._applied.items()}
        for key, state in wanted.items():
            before = during.get(key)
            if state is not None and (before is None or state.endpoint.ready <= before.ready):
                during[key] = state.endpoint
        return during

    def _put_common(self, common: Common) -> None:
        if common == self._common:
            return
        self._common = common
        if self.listening.tls:
            self._ads.put(SECRETS, names.CERTIFICATE, secret(common.certificate, common.private_key))
        self._ads.put(LISTENERS, names.LISTENER, listener(self.listening, common.token_key))

    async def _in_progress(self, endpoint: Endpoint) -> int:
        clusters = [cluster_name(endpoint.id, found.number) for found in endpoint.serving]
        return sum([await admin.in_progress(clusters) for admin in self.engine.admins()])


def _resources(state: _Applied) -> EndpointResources:
    return endpoint_resources(state.endpoint, gated=state.gated, kept=state.kept, picker=state.picker.addresses)


def _kept(before: _Applied | None, endpoint: Endpoint, *, held: bool) -> tuple[Revision, ...]:
    """Returns revisions that are gone from an endpoint and that requests on their way to the gate may have chosen."""
    if before is None:
        return ()
    numbers = {revision.number for revision in endpoint.revisions}
    former = (*before.endpoint.revisions, *before.endpoint.chosen, *(before.kept if held else ()))
    return tuple({found.number: found for found in former if found.number not in numbers}.values())
