"""The Sync stream: desired sets come down, reports go up, and one stream at a time is listened to."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import Gauge

from retinue.agent.api.convert import (
    attempt_status,
    attempt_usage,
    desired_attempt,
    network_from_message,
    node_conditions,
    runtime_status,
)
from retinue.agent.api.errors import internal, invalid
from retinue.agent.api.status_diff import SentStatus, StatusDiff, Trouble
from retinue.agent.network.errors import InvalidNetworkError
from retinue.agent.v1 import agent_service_pb2
from retinue.rpc import failpoints, times
from retinue.rpc.core.errors import ApiError, Code, ServiceError
from retinue.rpc.core.reasons import ErrorReason
from retinue.rpc.core.terms import StaleIncarnationError, StaleTermError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence

    from retinue.agent.api.terms import Terms
    from retinue.agent.attempts import ObservedAttempt
    from retinue.agent.conditions import Condition
    from retinue.agent.probes.prober import RoutedStatus
    from retinue.agent.probes.scraper import Scraper
    from retinue.agent.reconcile.loop import Reconciler
    from retinue.agent.resources.sampler import Sampler
    from retinue.agent.runtime.contract import RuntimeStatus

_log = logging.getLogger(__name__)

_CONNECTED = Gauge("retinue_agent_connected", "1 while a leader is connected to the agent, else 0.")

SHORTEST_HEARTBEAT, LONGEST_HEARTBEAT = 0.05, 60.0
"""Seconds between two messages that a manager may ask for; what is outside is brought to the nearest."""
SILENT_INTERVALS = 4
"""A manager that was silent for so many heartbeat intervals is taken for gone."""
HELLO_TIMEOUT = 10.0
"""Seconds to wait for the first step."""
MAX_STATUSES = 500
"""Attempts in one report: what a manager commits at once."""
SHORTEST_USAGE_INTERVAL = 0.1
"""Seconds between two looks at what attempts use, at the least."""
MAX_WATCHED, MAX_METRICS = 10_000, 8
"""Attempts whose metrics a manager may watch, and metrics of each."""
ACK_TIMEOUT = 0.25
"""Seconds that a report waits for the ack of the one before, so that a busy manager gets fewer and larger ones."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node can run, and how much of it."""

    available: frozenset[RuntimeStatus]
    capacity: Mapping[str, int]


class SyncService:
    """All Sync streams of an agent: at most one is open, the newest."""

    def __init__(
        self,
        reconciler: Reconciler,
        terms: Terms,
        *,
        about: agent_service_pb2.Welcome,
        runtimes: Callable[[], Sequence[RuntimeStatus]],
        capacity: Callable[[], Mapping[str, int]],
        protect: Callable[[frozenset[str]], None],
        route: Callable[[frozenset[str]], None],
        routed: Callable[[str, ObservedAttempt | None], RoutedStatus],
        answered: Callable[[Iterable[str]], None],
        sampler: Sampler,
        scraper: Scraper,
        reachable: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`about` is a Welcome with what does not change of the node while the agent runs; `runtimes` are those that it
        has or could have, and `capacity` the amounts that it offers, both as they are now. `protect` is sent all
        addresses that no kernel may reach, `route` those of routers, each time they change. `routed` says what routers
        have to know of an attempt, `answered` is sent the attempts that routers had answers from. `reachable` are
        private networks that kernels may reach.
        """
        self.reconciler = reconciler
        self.terms = terms
        self.about = about
        self.runtimes = runtimes
        self.capacity = capacity
        self.protect = protect
        self.route = route
        self.routed = routed
        self.answered = answered
        self.sampler = sampler
        self.scraper = scraper
        self.reachable = reachable
        self._current: _Stream | None = None
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_idle(self) -> None:
        """Returns when no stream is open."""
        await self._idle.wait()

    def stop(self) -> None:
        """Ends the open stream and lets no other begin."""
        self._stopping = True
        if self._current is not None:
            self._current.cut(_unavailable())

    async def serve(
        self, requests: AsyncIterator[agent_service_pb2.SyncRequest]
    ) -> AsyncGenerator[agent_service_pb2.SyncResponse, None]:
        """Serves one stream to its end."""
        hello = await _first(requests)
        agent_id = self.about.agent_id
        if hello.agent_id != agent_id:
            message = f"this is agent {agent_id}"
            raise ServiceError(Code.PERMISSION_DENIED, ErrorReason.METHOD_DENIED, message, agent_id=agent_id)
        try:
            await self.terms.accept(_incarnation(hello.incarnation), hello.term)
        except StaleIncarnationError as error:
            message = (
                f"a manager of the later incarnation {error.current} was here: its database was restored from a backup"
            )
            raise ServiceError(
                Code.FAILED_PRECONDITION, ErrorReason.STALE_INCARNATION, message, incarnation=error.current
            ) from error
        except StaleTermError as error:
            term = str(error.highest)
            message = f"a leader of term {term} was here before"
            raise ServiceError(Code.FAILED_PRECONDITION, ErrorReason.STALE_TERM, message, term=term) from error
        if self._stopping:
            raise _unavailable()
        stream = _Stream(self, hello)
        if self._current is not None:
            self._current.cut(
                ServiceError(Code.ABORTED, ErrorReason.UNAVAILABLE, "another stream took this one's place")
            )
        self._current = stream
        self._idle.clear()
        _CONNECTED.set(1)
        _log.info("a manager of term %d is connected", hello.term)
        try:
            async with contextlib.aclosing(stream.run(requests)) as responses:
                async for response in responses:
                    await _pass("send", response.WhichOneof("step"))
                    yield response
        finally:
            if self._current is stream:
                self._current = None
                self.scraper.watch({}, 0.0)
                self._idle.set()
                _CONNECTED.set(0)
            _log.info("a manager of term %d is gone", hello.term)


async def _pass(direction: str, kind: str | None) -> None:
    """Passes the point of a message."""
    await failpoints.reach(f"sync.{direction}.{kind}", _broken)


def _broken(text: str) -> ServiceError:
    return ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, text)


class _Stream:
    """One Sync stream: a reader that applies what comes, and a generator of what goes."""

    def __init__(self, service: SyncService, hello: agent_service_pb2.Hello) -> None:
        self._service = service
        self._reconciler = service.reconciler
        seconds = times.seconds(hello.heartbeat_interval)
        self._interval = min(LONGEST_HEARTBEAT, max(SHORTEST_HEARTBEAT, seconds))
        self._wake = asyncio.Event()
        self._end: ApiError | None = None
        self._closed = False
        self._complete = False
        self._sequence = 0
        self._unacked: deque[tuple[int, list[str]]] = deque()
        self._sent: dict[str, SentStatus] = {}
        self._sent_ends: set[str] = set()
        self._sent_networks: frozenset[str] = frozenset()
        self._conditions = service.reconciler.conditions
        self._sent_conditions: tuple[Condition, ...] = ()
        # When the welcome and the heartbeats were sent, by the fence's clock.
        self._welcomed: float | None = None
        self._beats: dict[int, float] = {}
        self._beat = 0
        self._protected: frozenset[str] = frozenset()
        self._routers: frozenset[str] = frozenset()
        # As the welcome had it.
        self._offer = Offer(frozenset(), {})
        # Seconds between two reports of usage, 0 for none, and when the next one is due.
        self._usage_interval = 0.0
        self._usage_due = 0.0

    def cut(self, error: ApiError) -> None:
        """Ends the stream; later messages of the manager are ignored."""
        self._end = self._end or error
        self._wake.set()

    async def run(
        self, requests: AsyncIterator[agent_service_pb2.SyncRequest]
    ) -> AsyncGenerator[agent_service_pb2.SyncResponse, None]:
        stop_listening = self._reconciler.listen(self._wake.set)
        loop = asyncio.get_running_loop()
        # Conditions change in threads, too.
        stop_listening_conditions = self._conditions.listen(lambda: loop.call_soon_threadsafe(self._wake.set))
        reader = asyncio.create_task(self._read(requests), name="sync reader")
        try:
            yield self._welcome()
            clock = asyncio.get_running_loop().time
            spoke = reported = clock()
            # When the status diff has to be sent.
            due = math.inf
            while self._end is None and not self._closed:
                self._wake.clear()
                now = clock()
                waits = bool(self._unacked) and now < reported + ACK_TIMEOUT
                if not waits:
                    diff = self._diff()
                    due = diff.due(due, now)
                    if now >= due:
                        yield agent_service_pb2.SyncResponse(report=self._report(diff))
                        reported, due = clock(), math.inf
                        continue
                if (conditions := self._conditions.all()) != self._sent_conditions:
                    self._sent_conditions = conditions
                    yield agent_service_pb2.SyncResponse(node_conditions=node_conditions(conditions))
                    continue
                if now >= spoke + self._interval:
                    yield self._heartbeat()
                    spoke = clock()
                    continue
                if self._usage_interval and now >= self._usage_due:
                    self._usage_due = now + self._usage_interval
                    for usage in await self._usage():
                        yield usage
                        spoke = clock()
                    continue
                if _offer(self._service.runtimes(), self._service.capacity()) != self._offer:
                    # A Docker engine that came up after the agent, or other amounts that its cluster leaves:
                    # only a welcome carries them, and a new stream begins with one.
                    raise ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, "what this agent can run has changed")
                until = min(
                    spoke + self._interval,
                    reported + ACK_TIMEOUT if waits else due,
                    self._usage_due if self._usage_interval else math.inf,
                )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(until):
                        await self._wake.wait()
            if self._end is not None:
                raise self._end
        finally:
            stop_listening()
            stop_listening_conditions()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[agent_service_pb2.SyncRequest]) -> None:
        try:
            while True:
                async with asyncio.timeout(self._interval * SILENT_INTERVALS):
                    request = await anext(requests)
                await _pass("receive", request.WhichOneof("step"))
                if self._end is not None:
                    return
                self._apply(request)
        except StopAsyncIteration:
            self._closed = True
            self._wake.set()
        except TimeoutError:
            self.cut(ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, "nothing was received for too long"))
        except ApiError as error:
            self.cut(error)
        except InvalidNetworkError as error:
            self.cut(invalid("networks", str(error)))
        except Exception:  # noqa: BLE001  # logged by internal()
            self.cut(internal())
        finally:
            # Without a reader nothing would notice that the manager is silent.
            if not self._closed:
                self.cut(_broken("nothing is read any more"))

    def _apply(self, request: agent_service_pb2.SyncRequest) -> None:
        step = request.WhichOneof("step")
        if step == "snapshot" and not self._complete:
            attempts = [desired_attempt(attempt) for attempt in request.snapshot.attempts]
            networks = [network_from_message(network) for network in request.snapshot.networks]
            # An ack means that the manager received the welcome.
            self._confirm(self._welcomed)
            self._protect(frozenset(request.snapshot.protected_addresses), frozenset())
            self._route(frozenset(request.snapshot.router_addresses), frozenset())
            self._reconciler.set_desired(
                attempts,
                networks,
                request.snapshot.removed_attempt_ids,
                request.snapshot.removed_network_session_ids,
                # A restored database may know less than this node: what the manager does not know is for it to name.
                absence_removes=False,
            )
            self._complete = True
        elif step == "change" and self._complete:
            change = request.change
            if change.attempts:
                _log.debug("wanted: %s", " ".join(attempt.id for attempt in change.attempts))
            if change.added_protected_addresses or change.removed_protected_addresses:
                self._protect(
                    frozenset(change.added_protected_addresses), frozenset(change.removed_protected_addresses)
                )
            if change.added_router_addresses or change.removed_router_addresses:
                self._route(frozenset(change.added_router_addresses), frozenset(change.removed_router_addresses))
            self._reconciler.change_desired(
                [desired_attempt(attempt) for attempt in change.attempts],
                change.removed_attempt_ids,
                [network_from_message(network) for network in change.networks],
                change.removed_network_session_ids,
            )
        elif step == "ack" and self._complete:
            self._acknowledge(request.ack.sequence)
        elif step == "heartbeat":
            self._confirm_heartbeat(request.heartbeat.number)
        elif step == "responsive_attempts":
            self._service.answered(request.responsive_attempts.attempt_ids)
        elif step == "watch_usage":
            self._watch_usage(request.watch_usage)
        else:
            raise invalid("step", f"{step} is out of place here")

    def _watch_usage(self, watched: agent_service_pb2.WatchUsage) -> None:
        if len(watched.metrics) > MAX_WATCHED:
            raise invalid("watch_usage.metrics", f"must be at most {MAX_WATCHED}")
        seconds = watched.interval.ToNanoseconds() / 1e9
        self._usage_interval = max(SHORTEST_USAGE_INTERVAL, seconds) if seconds > 0 else 0.0
        names = {item.attempt_id: frozenset(item.names[:MAX_METRICS]) for item in watched.metrics}
        self._service.scraper.watch(names if self._usage_interval else {}, self._usage_interval)
        self._usage_due = asyncio.get_running_loop().time()
        self._wake.set()

    async def _usage(self) -> list[agent_service_pb2.SyncResponse]:
        """Returns the usage of attempts, in portions; none when nothing runs."""
        samples = list((await self._service.sampler.sample(self._reconciler.attempts())).items())
        return [
            agent_service_pb2.SyncResponse(
                usage=agent_service_pb2.Usage(
                    attempts=[
                        attempt_usage(key, sample, self._service.scraper.values(key))
                        for key, sample in samples[first : first + MAX_STATUSES]
                    ]
                )
            )
            for first in range(0, len(samples), MAX_STATUSES)
        ]

    def _route(self, added: frozenset[str], removed: frozenset[str]) -> None:
        _check_addresses("router_addresses", added)
        self._routers = (self._routers - removed) | added
        self._service.route(self._routers)

    def _protect(self, added: frozenset[str], removed: frozenset[str]) -> None:
        _check_addresses("protected_addresses", added)
        self._protected = (self._protected - removed) | added
        self._service.protect(self._protected)

    def _acknowledge(self, sequence: int) -> None:
        if sequence > self._sequence:
            raise invalid("ack.sequence", f"{sequence} was not sent yet")
        while self._unacked and self._unacked[0][0] <= sequence:
            self._reconciler.settle(self._unacked.popleft()[1])
        # Changes made in the meantime may be sent now.
        self._wake.set()

    def _welcome(self) -> agent_service_pb2.SyncResponse:
        welcome = agent_service_pb2.Welcome()
        welcome.CopyFrom(self._service.about)
        statuses = self._service.runtimes()
        self._offer = _offer(statuses, self._service.capacity())
        welcome.capacity.update(self._offer.capacity)
        welcome.available_runtimes.extend(status.name for status in statuses if status.available)
        welcome.runtimes.extend(map(runtime_status, statuses))
        welcome.reachable_networks.extend(self._service.reachable())
        self._welcomed = None if self._reconciler.fence is None else self._reconciler.fence.now()
        self._sent = {key: self._status_of(key, attempt) for key, attempt in self._reconciler.attempts().items()}
        self._sent_networks = self._reconciler.networks()
        self._sent_conditions = self._conditions.all()
        welcome.node_conditions.CopyFrom(node_conditions(self._sent_conditions))
        welcome.attempts.extend(sent.status for sent in self._sent.values())
        welcome.network_session_ids.extend(sorted(self._sent_networks))
        return agent_service_pb2.SyncResponse(welcome=welcome)

    def _heartbeat(self) -> agent_service_pb2.SyncResponse:
        self._beat += 1
        if (fence := self._reconciler.fence) is not None:
            self._beats[self._beat] = fence.now()
        return agent_service_pb2.SyncResponse(heartbeat=agent_service_pb2.Heartbeat(number=self._beat))

    def _confirm_heartbeat(self, number: int) -> None:
        if number:
            self._confirm(self._beats.get(number))
            self._beats = {beat: sent for beat, sent in self._beats.items() if beat > number}

    def _confirm(self, sent: float | None) -> None:
        """Confirms to the fence that the manager received what was sent at that time."""
        fence = self._reconciler.fence
        if fence is not None and sent is not None:
            fence.confirm(sent)

    def _status_of(self, attempt_id: str, attempt: ObservedAttempt | None) -> SentStatus:
        trouble, routed = self._trouble(attempt_id), self._service.routed(attempt_id, attempt)
        paths = self._reconciler.paths(attempt)
        status = attempt_status(attempt_id, attempt, trouble[0], routed, trouble[1], paths=paths)
        return SentStatus(attempt, trouble, routed, status, paths)

    def _trouble(self, attempt_id: str) -> Trouble:
        return self._reconciler.trouble(attempt_id), self._reconciler.failing_steps(attempt_id)

    def _diff(self) -> StatusDiff:
        """Returns the changes since the last report. Each end of an attempt is in at least one report."""
        attempts, settled = self._reconciler.attempts(), self._reconciler.settled
        changed: dict[str, SentStatus] = {}
        ends: list[str] = []
        for key, attempt in attempts.items():
            sent = self._sent.get(key)
            end = attempt is not None and attempt.phase.ended and key not in self._sent_ends and key not in settled
            if (
                sent is not None
                and not end
                and sent.is_same(
                    attempt,
                    self._trouble(key),
                    self._service.routed(key, attempt),
                    self._reconciler.paths(attempt),
                )
            ):
                continue
            latest = self._status_of(key, attempt)
            if sent is not None and not end and latest.status == sent.status:
                self._sent[key] = latest
            elif len(changed) == MAX_STATUSES:
                # The rest follows this one's ack.
                break
            else:
                changed[key] = latest
                if end:
                    ends.append(key)
        networks = self._reconciler.networks()
        return StatusDiff(
            changed, sorted(ends), sorted(self._sent.keys() - attempts.keys()), networks, self._sent_networks
        )

    def _report(self, diff: StatusDiff) -> agent_service_pb2.Report:
        self._sent |= diff.changed
        for key in diff.removed:
            del self._sent[key]
            self._sent_ends.discard(key)
        self._sent_networks = diff.networks
        self._sequence += 1
        self._sent_ends.update(diff.ends)
        self._unacked.append((self._sequence, diff.ends))
        return agent_service_pb2.Report(
            sequence=self._sequence,
            attempts=[sent.status for sent in diff.changed.values()],
            removed_attempt_ids=diff.removed,
            removed_network_session_ids=diff.removed_networks,
        )


async def _first(requests: AsyncIterator[agent_service_pb2.SyncRequest]) -> agent_service_pb2.Hello:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT):
            request = await anext(requests)
    except (StopAsyncIteration, TimeoutError) as error:
        raise invalid("hello", "did not come") from error
    if request.WhichOneof("step") != "hello":
        raise invalid("step", "the first one is not hello")
    return request.hello


def _offer(statuses: Iterable[RuntimeStatus], amounts: Mapping[str, int]) -> Offer:
    return Offer(frozenset(status for status in statuses if status.available), dict(amounts))


def _check_addresses(field: str, addresses: Iterable[str]) -> None:
    for address in addresses:
        try:
            ipaddress.ip_address(address)
        except ValueError as error:
            raise invalid(field, str(error)) from error


def _incarnation(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise invalid("hello.incarnation", "is not a UUID") from error


def _unavailable() -> ApiError:
    return ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, "the agent is stopping")
