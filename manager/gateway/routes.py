"""What the engine has of the accesses of browsers: a route, a listener and two clusters each,
in force before a request is sent that way.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

from retinue.manager.gateway.core import connections, resources
from retinue.manager.gateway.core.resources import Granted
from retinue.proxy.ads import CLUSTERS, LISTENERS, ROUTES, AdsServer, RefusedError
from retinue.proxy.core.fields import route_configuration

if TYPE_CHECKING:
    from collections.abc import Callable

    from envoy.config.route.v3.route_components_pb2 import Route, VirtualHost

    from retinue.manager.gateway.core.rules import Address, Target

_SECONDS, _CUT_SECONDS = 5.0, 1.0


class Routes:
    """All routes of a gateway; belongs on one event loop."""

    def __init__(self, ads: AdsServer, address: Address, console: str | None = None) -> None:
        """The engine has no route of a browser yet: it asks about each request, but for those for the web console,
        which go to the socket of an abstract name.
        """
        self._ads = ads
        self._address = address
        self._granted: dict[bytes, Granted] = {}
        # Those of accesses, and the hosts that have them: one access makes its own only.
        self._routes: dict[Target, dict[bytes, list[Route]]] = defaultdict(dict)
        self._changed: set[Target] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._hosts: dict[Target, VirtualHost] = {}
        self._fixed = [resources.other_hosts()]
        if console is not None:
            ads.put(CLUSTERS, connections.CONSOLE_CLUSTER, connections.console_cluster(console))
            self._fixed.insert(0, resources.console_host(address))
        self._put()

    async def grant(  # noqa: PLR0917  # what an access is, and where it leads
        self, key: bytes, target: Target, secret: str, socket: str, leased: tuple[str, int] | None, host: str = ""
    ) -> str:
        """Sends requests with a secret to a leased port, or the relay's socket, with `host` where it is not empty;
        returns the cluster's name once the engine has it.

        Raises TimeoutError when it does not follow, and RefusedError.
        """
        granted = Granted(target, secret, connections.access_name(key), host)
        self.direct(key, socket, leased)
        if self._granted.get(key) != granted:
            self._granted[key] = granted
            self._ads.put(CLUSTERS, granted.cluster, connections.access_cluster(key, host))
            self._ads.put(LISTENERS, granted.cluster, connections.access_listener(key))
            self._routes[target][key] = resources.granted_routes(self._address, granted)
            self._changed.add(target)
            self._flush()
        async with asyncio.timeout(_SECONDS):
            await self._ads.settled(CLUSTERS, (granted.cluster, connections.kernel_name(key)))
            await self._ads.settled(LISTENERS, (granted.cluster,))
            await self._ads.settled(ROUTES, (resources.ROUTES,))
        return granted.cluster

    def direct(self, key: bytes, socket: str, leased: tuple[str, int] | None) -> None:
        """Has new connections of an access go to a leased port, else to the relay's socket."""
        self._ads.put(CLUSTERS, connections.kernel_name(key), connections.kernel_cluster(key, socket, leased))

    def withdraw(self, key: bytes, then: Callable[[], None]) -> None:
        """Sends nothing there any more; when that is in force, or the engine takes too long to follow,
        cuts connections and calls `then`.
        """
        granted = self._granted.pop(key, None)
        if granted is None:
            then()
            return
        self._routes[granted.target].pop(key, None)
        self._changed.add(granted.target)
        task = asyncio.create_task(self._remove(key, granted.cluster, then), name="end of an access")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Gives up what is still to be done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _remove(self, key: bytes, cluster: str, then: Callable[[], None]) -> None:
        # Of many that end together, the first removes the routes of all.
        self._flush()
        try:
            # Until then, requests would meet what is gone, and not the page that says so.
            with contextlib.suppress(TimeoutError, RefusedError):
                async with asyncio.timeout(_CUT_SECONDS):
                    await self._ads.settled(ROUTES, (resources.ROUTES,))
        finally:
            then()
            if key not in self._granted:
                self._ads.remove(LISTENERS, cluster)
                for name in (cluster, connections.kernel_name(key)):
                    self._ads.remove(CLUSTERS, name)

    def _flush(self) -> None:
        """Sends routes that have changed."""
        if not self._changed:
            return
        for target in self._changed:
            if granted := self._routes[target]:
                routes = itertools.chain.from_iterable(granted.values())
                self._hosts[target] = resources.virtual_host(self._address, target, routes)
            else:
                del self._routes[target]
                self._hosts.pop(target, None)
        self._changed.clear()
        self._put()

    def _put(self) -> None:
        hosts = [*self._hosts.values(), *self._fixed]
        self._ads.put(ROUTES, resources.ROUTES, route_configuration(resources.ROUTES, hosts))
