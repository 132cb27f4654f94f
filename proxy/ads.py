"""Delta ADS: the engine's stream, on which it gets what differs from what it has, and acknowledges it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from retinue.proxy.core.fields import pack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping

    from google.protobuf.any_pb2 import Any as AnyMessage
    from google.protobuf.message import Message

_log = logging.getLogger(__name__)

_TYPES = "type.googleapis.com/envoy."
CLUSTERS = f"{_TYPES}config.cluster.v3.Cluster"
ASSIGNMENTS = f"{_TYPES}config.endpoint.v3.ClusterLoadAssignment"
LISTENERS = f"{_TYPES}config.listener.v3.Listener"
ROUTES = f"{_TYPES}config.route.v3.RouteConfiguration"
SECRETS = f"{_TYPES}extensions.transport_sockets.tls.v3.Secret"
_POLL_SECONDS = 1.0
# From one try to bind a listener to the next: what has its port may end.
_BIND_SECONDS = 2.0
# In the order in which they are sent: nothing refers to what comes later.
_ORDER = (CLUSTERS, ASSIGNMENTS, SECRETS, LISTENERS, ROUTES)
# All of these are subscribed to, by a request that names none.
_WILDCARD = frozenset((CLUSTERS, LISTENERS))


class RefusedError(Exception):
    """The engine refused a resource; the text is the engine's."""


@dataclass(frozen=True, slots=True)
class _Resource:
    """A resource as it is sent; equal content has an equal version, also after a restart."""

    version: str
    body: AnyMessage


@dataclass(slots=True)
class _Sent:
    """A response that has not been acknowledged."""

    versions: Mapping[str, str]
    removed: Collection[str]


@dataclass(slots=True)
class _Subscription:
    """One type on one stream, by resource names: versions that were sent and that are acknowledged."""

    wildcard: bool = False
    names: set[str] = field(default_factory=set)
    sent: dict[str, str] = field(default_factory=dict)
    acknowledged: dict[str, str] = field(default_factory=dict)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    waiting: dict[str, _Sent] = field(default_factory=dict)
    # The first response is sent even when it is empty: the engine waits for it before it asks for anything else.
    answered: bool = False

    def forget(self, resource_names: Iterable[str]) -> None:
        """Makes these be sent again."""
        for name in resource_names:
            self.sent.pop(name, None)
            self.acknowledged.pop(name, None)


@dataclass(slots=True, eq=False)
class _Stream:
    """An engine's stream: its subscriptions by type."""

    types: dict[str, _Subscription] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def refused_listeners(self) -> Collection[str]:
        """Returns the names of the listeners that the engine could not make."""
        subscription = self.types.get(LISTENERS)
        return tuple(subscription.refused) if subscription is not None else ()


class AdsServer(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    """Holds all resources and serves them to the engine, and to a former one that still has connections:
    both have to follow.
    """

    def __init__(self, running: Callable[[], int] = lambda: 1) -> None:
        """`running` is how many engines there are, of which each has to follow."""
        self._running = running
        self._resources: dict[str, dict[str, _Resource]] = {kind: {} for kind in _ORDER}
        self._streams: list[_Stream] = []
        self._moved = asyncio.Condition()
        self._nonces = itertools.count(1)
        self._notifying: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Returns whether the engine has a stream."""
        return bool(self._streams)

    def put(self, kind: str, name: str, message: Message) -> None:
        """Sets a resource; it is sent when the engine has another version of it."""
        body = pack(message)
        self._resources[kind][name] = _Resource(hashlib.sha256(body.value).hexdigest()[:16], body)
        self._wake()

    def remove(self, kind: str, name: str) -> None:
        """Removes a resource."""
        self._resources[kind].pop(name, None)
        self._wake()

    def _wake(self) -> None:
        for stream in self._streams:
            stream.wake.set()

    async def settled(self, kind: str, resource_names: Collection[str]) -> None:
        """Waits until the engine has acknowledged these resources as they are now, or that they are gone.

        Without an engine it waits for the next one. Raises RefusedError.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                # Again and again: an engine may end that never had a stream.
                async with asyncio.timeout(_POLL_SECONDS), self._moved:
                    await self._moved.wait_for(lambda: self._is_settled(kind, resource_names))
                    return

    def _is_settled(self, kind: str, resource_names: Collection[str]) -> bool:
        # Nothing can be left over on an engine without a stream; what exists waits for one.
        if len(self._streams) < max(1, self._running()):
            return not resource_names
        return all(self._follows(stream.types.get(kind), kind, resource_names) for stream in self._streams)

    def _follows(self, subscription: _Subscription | None, kind: str, resource_names: Collection[str]) -> bool:
        """Returns whether one engine does. Raises RefusedError."""
        if subscription is None:
            return not resource_names
        wanted = self._resources[kind]
        for name in resource_names:
            resource = wanted.get(name)
            if resource is None:
                if name in subscription.acknowledged:
                    return False
                continue
            version, message = subscription.refused.get(name, ("", ""))
            if version == resource.version:
                raise RefusedError(message)
            if subscription.acknowledged.get(name) != resource.version:
                return False
        return True

    async def StreamAggregatedResources(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Refuses: the engine is told to ask for differences."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "only DeltaAggregatedResources is served")
        yield

    async def DeltaAggregatedResources(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Serves the engine; called by gRPC."""
        stream = _Stream()
        self._streams.append(stream)
        _log.info("an engine is connected")
        reader = asyncio.create_task(self._read(stream, request_iterator), name="ads reader")
        clock, bind_time = asyncio.get_running_loop().time, 0.0
        try:
            while not reader.done():
                stream.wake.clear()
                if (refused := stream.refused_listeners()) and clock() >= bind_time:
                    stream.types[LISTENERS].forget(refused)
                    bind_time = clock() + _BIND_SECONDS
                for kind in _ORDER:
                    if kind in stream.types and (response := self._difference(kind, stream.types[kind])) is not None:
                        if kind == CLUSTERS and ASSIGNMENTS in stream.types:
                            # One that was changed warms up, and is acknowledged, only with replicas that come after it.
                            stream.types[ASSIGNMENTS].forget(resource.name for resource in response.resources)
                        yield response
                waker = asyncio.create_task(stream.wake.wait())
                try:
                    pause = max(0.0, bind_time - clock()) if refused else None
                    await asyncio.wait((waker, reader), timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waker.cancel()
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
            self._streams.remove(stream)
            _log.info("an engine is disconnected")
            # What waited for this one waits for the others only.
            self._notifying = asyncio.create_task(self._notify())

    def _difference(self, kind: str, subscription: _Subscription) -> Any:
        """Returns a response with what the engine does not have, or None."""
        wanted = self._resources[kind]
        if not subscription.wildcard:
            wanted = {name: wanted[name] for name in subscription.names if name in wanted}
        changed = {
            name: resource for name, resource in wanted.items() if subscription.sent.get(name) != resource.version
        }
        removed = [name for name in subscription.sent if name not in wanted]
        if not changed and not removed and (subscription.answered or not subscription.wildcard):
            return None
        subscription.answered = True
        nonce = str(next(self._nonces))
        versions = {name: resource.version for name, resource in changed.items()}
        subscription.sent.update(versions)
        for name in removed:
            del subscription.sent[name]
        subscription.waiting[nonce] = _Sent(versions, removed)
        return discovery_pb2.DeltaDiscoveryResponse(
            type_url=kind,
            nonce=nonce,
            removed_resources=removed,
            resources=[
                discovery_pb2.Resource(name=name, version=found.version, resource=found.body)
                for name, found in changed.items()
            ],
        )

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def _read(self, stream: _Stream, requests: AsyncIterator[Any]) -> None:
        async for request in requests:
            kind = request.type_url
            if kind not in self._resources:
                _log.warning("the engine asks for %s, which there is none of", kind)
                continue
            first = kind not in stream.types
            subscription = stream.types.setdefault(kind, _Subscription())
            if first:
                subscription.wildcard = kind in _WILDCARD and not request.resource_names_subscribe
                had = dict(request.initial_resource_versions)
                subscription.sent.update(had)
                subscription.acknowledged.update(had)
                subscription.names.update(had)
            if "*" in request.resource_names_subscribe:
                subscription.wildcard = True
            for name in request.resource_names_subscribe:
                subscription.names.add(name)
                if not first:
                    # A name that is subscribed to once more is wanted once more.
                    subscription.sent.pop(name, None)
            for name in request.resource_names_unsubscribe:
                subscription.names.discard(name)
                subscription.sent.pop(name, None)
                subscription.acknowledged.pop(name, None)
            if request.response_nonce:
                self._answered(subscription, request)
            stream.wake.set()
            await self._notify()

    @staticmethod
    def _answered(subscription: _Subscription, request: Any) -> None:
        sent = subscription.waiting.pop(request.response_nonce, None)
        if sent is None:
            return
        if request.HasField("error_detail"):
            message = request.error_detail.message
            refused = {name: (version, message) for name, version in sent.versions.items()}
            # One that is tried again and again is logged once.
            if not refused.items() <= subscription.refused.items():
                _log.warning("the engine refused %s: %s", ", ".join(refused), message)
            subscription.refused |= refused
            return
        subscription.acknowledged.update(sent.versions)
        for name in sent.versions:
            subscription.refused.pop(name, None)
        for name in sent.removed:
            subscription.acknowledged.pop(name, None)
