"""Decides which connections are ended whose callers have not authenticated: strangers. Pure, with the time passed in.

The library takes whatever frames a connection brings, as fast as they come, and holds as many connections as there are
descriptors. So strangers have an allowance, and a part of the connections. A caller who has authenticated is none of
them: agents, routers, and users however many are behind one address. The oldest strangers go first, since one who means
to authenticate does so in the first second.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from retinue.manager.server.wrong_tokens import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Addresses that may have as many as that at a time: all strangers hold less than 50 MB.
_NETWORKS = 4
# Strangers have one descriptor in so many, since each other connection of the manager is one, too.
_DESCRIPTORS = 4
# Seconds until the first call begins: more than the handshake of a slow client may take, which is 10.
SILENT_SECONDS = 15.0
# In its first seconds a connection cannot have a call: it is not ended for those that have one.
NEW_SECONDS = 2.0
# Calls that are open at a time, once there was time to authenticate, also with a database that does not answer: as many
# as `Health.Watch` of one address.
STREAMS, STREAM_SECONDS = 64, 30.0


class Reason(StrEnum):
    """The reasons for which a connection is ended."""

    FLOOD = "flood"
    SILENT = "silent"
    STREAMS = "streams"
    CONNECTIONS = "connections"


REASONS: Mapping[Reason, str] = {
    Reason.FLOOD: "sent more than a caller has to say before authenticating",
    Reason.SILENT: f"began no call within {SILENT_SECONDS:g} s",
    Reason.STREAMS: f"had more than {STREAMS} calls open",
    Reason.CONNECTIONS: "were the oldest of too many",
}
"""What connections did that are ended, in words."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """`burst` at once, and `rate` more a second."""

    burst: int
    rate: float

    def left(self, before: float, seconds: float, used: float) -> float:
        """Returns what is left of `before` after so many seconds; below 0 when more was used than there was."""
        return min(float(self.burst), before + seconds * self.rate - used)


# A handshake with certificates has 5 KB, a certificate request 2 KB, a check of health 100 bytes. But before a busy
# event loop begins the first call, a client may have filled the windows of several.
BYTES = Allowance(512 << 10, 16 << 10)
# What comes with a handshake, and seconds after which more than that has begun a call, unless the event loop is stuck.
# A flood of small frames is slow: the library takes 0.1 ms of a processor for each ping, so that it uses the allowance
# up in many seconds, and a whole core meanwhile.
EARLY_BYTES, EARLY_SECONDS = 64 << 10, 1.0
# What a client may send of a request before it reads that it is refused: a stream's window in HTTP/2. Of the requests
# that it takes back, one call in hundreds gets as far as to be counted: so many calls explain a window, as many as most
# clients have open on a connection, and the others a usual request.
BYTES_OF_CALL, BYTES_OF_MORE_CALLS = 64 << 10, 4 << 10
WINDOWS = Allowance(100, 2)
# The bytes above in segments of a poor network; more are single bytes, each of which wakes the library up.
SEGMENTS, SEGMENTS_OF_CALL = Allowance(4096, 256), 128
# Calls that have ended without credentials: those that are open may be about to authenticate, hundreds at once. A node
# that enrols makes a few, a load balancer one or two a second. A script with a token that has expired repeats its call
# with pauses.
CALLS = Allowance(200, 20)
# New connections of a network: a handshake takes a millisecond of a processor. Where many are behind one address, the
# first who authenticates makes it known (`penalties`), and this does not count there.
CONNECTIONS = Allowance(256, 20)

Key: TypeAlias = tuple[int, bytes]
"""Names a connection while it lasts: its descriptor, and the address of its peer."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What has arrived on a connection since it was opened."""

    received: int
    segments: int


@dataclass(frozen=True, slots=True)
class Sight:
    """A connection as it is seen at a time; its traffic is not looked at once its caller has authenticated."""

    key: Key
    peer: Endpoint
    network: str
    traffic: Traffic | None


@dataclass(slots=True)
class Talk:
    """What is known by the calls of a connection: how many there were and are, and whether one had credentials."""

    calls: int = 0
    open: int = 0
    authenticated: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """A connection to end."""

    key: Key
    network: str
    reason: Reason


@dataclass(slots=True)
class _Stranger:
    since: float
    looked: float
    traffic: Traffic = Traffic(0, 0)
    calls: int = 0
    refused: int = 0
    windows_left: float = float(WINDOWS.burst)
    bytes_left: float = float(BYTES.burst)
    segments_left: float = float(SEGMENTS.burst)
    calls_left: float = float(CALLS.burst)
    # It is seen until the library has noticed.
    ended: bool = False

    def look(self, traffic: Traffic, talk: Talk, now: float) -> None:
        seconds, more = now - self.looked, talk.calls - self.calls
        refused = talk.calls - talk.open
        windows = min(float(more), self.windows_left)
        explained = windows * BYTES_OF_CALL + (more - windows) * BYTES_OF_MORE_CALLS
        received = traffic.received - self.traffic.received - explained
        self.windows_left = WINDOWS.left(self.windows_left, seconds, windows)
        segments = traffic.segments - self.traffic.segments - more * SEGMENTS_OF_CALL
        self.bytes_left = BYTES.left(self.bytes_left, seconds, received)
        self.segments_left = SEGMENTS.left(self.segments_left, seconds, segments)
        self.calls_left = CALLS.left(self.calls_left, seconds, refused - self.refused)
        self.looked, self.traffic, self.calls, self.refused = now, traffic, talk.calls, refused


class Strangers:
    """Remembers what strangers have used of their allowances."""

    def __init__(self, of_network: int, descriptors: int) -> None:
        """Lets a network have `of_network` connections, and all networks four times as many, but no more than a quarter
        of the `descriptors` that there are.
        """
        self._of_network = of_network
        self._in_all = min(_NETWORKS * of_network, descriptors // _DESCRIPTORS)
        self._strangers: dict[Key, _Stranger] = {}
        # By network with strangers, or that had some of late: what is left of its connections, and when that was so.
        self._connections: dict[str, tuple[float, float]] = {}
        self.flooding: set[str] = set()
        """The networks that flooded at the last look: by a connection, or by opening too many one after the other."""
        self.busy = False
        """Whether a stranger was there for less than a second, or had sent anything, at the last look."""

    def judge(self, sights: Iterable[Sight], talks: Mapping[Endpoint, Talk], now: float) -> list[Ending]:
        """Returns which connections are to be ended. `sights` are all that there are, `talks` those with calls,
        and `now` is in seconds, not before that of the last look.
        """
        endings: list[Ending] = []
        patient: list[tuple[bool, float, Sight]] = []
        before, self._strangers = self._strangers, {}
        new: Counter[str] = Counter()
        self.busy = False
        for sight in sights:
            talk = talks.get(sight.peer) or Talk()
            if talk.authenticated or sight.traffic is None:
                continue
            stranger = self._strangers[sight.key] = before.get(sight.key) or _Stranger(now, now)
            new[sight.network] += sight.key not in before
            if stranger.ended:
                continue
            self.busy |= now - stranger.since < 1 or sight.traffic != stranger.traffic
            stranger.look(sight.traffic, talk, now)
            if (reason := _reason(stranger, talk, now)) is not None:
                endings.append(Ending(sight.key, sight.network, reason))
            else:
                # Those without a call go before those with one.
                patient.append((talk.open > 0 or now - stranger.since < NEW_SECONDS, stranger.since, sight))
        self.flooding = {ending.network for ending in endings if ending.reason is Reason.FLOOD} | self._opening(
            new, now
        )
        endings += self._crowd(patient)
        for ending in endings:
            self._strangers[ending.key].ended = True
        return endings

    def _crowd(self, patient: list[tuple[bool, float, Sight]]) -> list[Ending]:
        """Returns the oldest of the networks that have too many, then the oldest of all that are too many."""
        patient.sort(key=lambda one: one[:2])
        surplus = Counter(sight.network for *_, sight in patient)
        for network in surplus:
            surplus[network] -= self._of_network
        endings, rest = [], []
        for *_, sight in patient:
            if surplus[sight.network] > 0:
                surplus[sight.network] -= 1
                endings.append(sight)
            else:
                rest.append(sight)
        endings += rest[: max(0, len(rest) - self._in_all)]
        return [Ending(sight.key, sight.network, Reason.CONNECTIONS) for sight in endings]

    def _opening(self, new: Counter[str], now: float) -> set[str]:
        """Returns the networks that have opened more connections than they may."""
        full, flooding = float(CONNECTIONS.burst), set()
        for network in new.keys() | self._connections.keys():
            before, then = self._connections.get(network, (full, now))
            left = CONNECTIONS.left(before, now - then, new[network])
            if left < 0:
                flooding.add(network)
            self._connections[network] = max(left, 0.0), now
            if left >= full and not new[network]:
                del self._connections[network]
        return flooding

    def __len__(self) -> int:
        """Returns how many strangers the last look had."""
        return len(self._strangers)


def _reason(stranger: _Stranger, talk: Talk, now: float) -> Reason | None:
    if min(stranger.bytes_left, stranger.segments_left, stranger.calls_left) < 0:
        return Reason.FLOOD
    if talk.calls == 0 and stranger.traffic.received > EARLY_BYTES and now - stranger.since > EARLY_SECONDS:
        return Reason.FLOOD
    if talk.calls == 0 and now - stranger.since > SILENT_SECONDS:
        return Reason.SILENT
    if talk.open > STREAMS and now - stranger.since > STREAM_SECONDS:
        return Reason.STREAMS
    return None


class Accounts:
    """Sums up what was ended, for a line of the log a minute and network."""

    def __init__(self, seconds: float = 60.0) -> None:
        self._seconds = seconds
        self._quiet_until: dict[str, float] = {}
        self._ended: defaultdict[str, Counter[Reason]] = defaultdict(Counter)

    def add(self, endings: Iterable[Ending]) -> None:
        """Counts connections that were ended."""
        for ending in endings:
            self._ended[ending.network][ending.reason] += 1

    def due(self, now: float) -> dict[str, Counter[Reason]]:
        """Returns what was ended by network, of those of which nothing was returned for a minute."""
        self._quiet_until = {network: until for network, until in self._quiet_until.items() if until > now}
        due = {network: self._ended.pop(network) for network in list(self._ended) if network not in self._quiet_until}
        self._quiet_until |= dict.fromkeys(due, now + self._seconds)
        return due
