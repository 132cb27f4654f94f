"""Watches the connections to this process's ports, and ends those that `strangers` says.

Below the calls there is the library, which says nothing of its connections. So this looks at the sockets themselves, in
a thread of its own: the event loop may be what strangers keep busy.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import ipaddress
import logging
import os
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Gauge

from retinue.manager.server.penalties import Penalties
from retinue.manager.server.source_filter import source_filter
from retinue.manager.server.strangers import (
    REASONS,
    Accounts,
    Key,
    Reason,
    Sight,
    Strangers,
    Talk,
    Traffic,
)
from retinue.manager.server.wrong_tokens import Endpoint, endpoint_of, network_of, plain_address
from retinue.rpc.descriptors import soft_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_log = logging.getLogger(__name__)

_OPEN = Gauge(
    "retinue_manager_connections",
    "Open connections to the manager's gRPC ports: `authenticated`, or `stranger` before that.",
    ["caller"],
)
_ENDED = Counter(
    "retinue_manager_connections_ended",
    "Connections that were ended before their caller had authenticated, by reason: `flood`, `silent`, `streams` or "
    "`connections`.",
    ["reason"],
)
_KEPT_OUT = Gauge(
    "retinue_manager_networks_kept_out",
    "Addresses, or IPv6 networks of 64 bits, that may open no connections for a while, since strangers there flooded.",
)
for _reason in Reason:
    _ENDED.labels(_reason)

# Seconds between two looks: beside strangers that have just come or sent something, otherwise, and at most. A flood
# lasts for one. All looks together take no more than a part of one core.
_BUSY_PAUSE, _IDLE_PAUSE, _LONGEST_PAUSE, _LOOKING = 0.01, 0.05, 1.0, 1 / 50
# Without strangers, so often it is asked whether there are more descriptors than before, and connections are looked at
# so often in any case: one may take the place of another.
_QUIET_PAUSE, _QUIET_SECONDS = 0.1, 1.0
# tcp(7), `struct tcp_info`: tcpi_bytes_received and tcpi_segs_in.
_TRAFFIC = struct.Struct("=128xQ4xI")
# asm/socket.h; `struct sock_fprog` has a length and a pointer.
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
_PROGRAM = struct.Struct("@HP")
_INSTRUCTION_BYTES = 8
# More than `struct sockaddr_in6`.
_ADDRESS_BYTES = 32
# How many looks it takes until the highest descriptor is asked for, and so many beyond it are looked at.
_LOOKS_FOR_HIGHEST, _NEW_DESCRIPTORS = 64, 64
# Without another thread's turn at each call.
_LIBRARY = ctypes.PyDLL(None)
_DIRECTORY = "/proc/self/fd"


class ConnectionCalls:
    """Counts calls by their connection: those of one event loop, read by the watch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._talks: dict[Endpoint, Talk] = {}
        # How many looks in a row did not see a connection that has had calls.
        self._absent: dict[Endpoint, int] = {}
        # Addresses of callers that have authenticated since they were taken: a connection may be over before a look.
        self._known: set[str] = set()

    @contextlib.contextmanager
    def calling(self, peer: str, *, authenticated: bool = False) -> Iterator[Callable[[], None]]:
        """Counts a call for as long as the block lasts. Yields what is to be called once its caller has authenticated;
        `authenticated` says that the connection itself did so.
        """
        with self._lock:
            endpoint = _endpoint_of(peer)
            talk = Talk() if endpoint is None else self._talks.setdefault(endpoint, Talk())
            talk.calls += 1
            talk.open += 1
        if authenticated:
            self._authenticate(talk, endpoint)
        try:
            yield functools.partial(self._authenticate, talk, endpoint)
        finally:
            talk.open -= 1

    def _authenticate(self, talk: Talk, endpoint: Endpoint | None) -> None:
        talk.authenticated = True
        if endpoint is not None:
            with self._lock:
                self._known.add(endpoint[0])

    def take_known(self) -> set[str]:
        """Returns the addresses of callers that have authenticated since the last time."""
        with self._lock:
            known, self._known = self._known, set()
        return known

    def talks(self, peers: Collection[Endpoint]) -> dict[Endpoint, Talk]:
        """Returns the calls of connections, and forgets those of connections that twice were not among `peers`."""
        with self._lock:
            absent = {peer: self._absent.get(peer, 0) + 1 for peer in self._talks.keys() - peers}
            gone = [peer for peer, looks in absent.items() if looks > 1 and not self._talks[peer].open]
            for peer in gone:
                del self._talks[peer], absent[peer]
            self._absent = absent
            return dict(self._talks)

    def authenticated(self, peer: Endpoint) -> bool:
        """Returns whether the caller of a connection has authenticated."""
        talk = self._talks.get(peer)
        return talk is not None and talk.authenticated

    def __len__(self) -> int:
        return len(self._talks)


@functools.lru_cache(maxsize=4096)
def _endpoint_of(peer: str) -> Endpoint | None:
    return endpoint_of(peer)


class Sockets:
    """The connections that this process has accepted at its TCP ports; belongs on one thread.

    Python lets other threads run at each call to the system, and beside a busy one a thread gets its turn again after
    5 ms only: a look would take as many times as long as there are descriptors. So it calls the C library by itself.
    """

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = frozenset(ports)
        # None: it is connected, but not at our ports.
        self._places: dict[Key, Endpoint | None] = {}
        self._networks: dict[str, str] = {}
        self._address = ctypes.create_string_buffer(_ADDRESS_BYTES)
        self._information = ctypes.create_string_buffer(_TRAFFIC.size)
        self._size = ctypes.c_uint32()
        self._looks = 0
        self._highest = 0
        # Found when they are needed first: they stay for as long as the server does.
        self._listeners: list[int] = []

    def look(self, authenticated: Callable[[Endpoint], bool]) -> list[Sight]:
        """Returns all that are open; those that are `authenticated` without their traffic. Raises OSError."""
        before, self._places = self._places, {}
        networks, self._networks = self._networks, {}
        sights = []
        for descriptor in range(self._end_of_descriptors()):
            raw = self._name(_LIBRARY.getpeername, descriptor)
            if raw is None:
                continue
            key = descriptor, raw
            place = before[key] if key in before else self._place(descriptor, raw)
            self._places[key] = place
            if place is not None:
                network = networks.get(place[0]) or network_of(place[0])
                self._networks[place[0]] = network
                traffic = None if authenticated(place) else self._traffic(descriptor)
                sights.append(Sight(key, place, network, traffic))
        return sights

    def keep_out(self, networks: Collection[str]) -> None:
        """Has Linux drop what these networks send to open a connection; connections that there are stay.
        Raises OSError where it has no filters of sockets.
        """
        if not self._listeners:
            self._listeners = [found for found in range(self._end_of_descriptors()) if self._is_listener(found)]
        code = ctypes.create_string_buffer(source_filter(networks))
        program = _PROGRAM.pack(len(code.raw) // _INSTRUCTION_BYTES, ctypes.addressof(code))
        option = _ATTACH_FILTER if networks else _DETACH_FILTER
        refused = [
            descriptor
            for descriptor in self._listeners
            if self._is_listener(descriptor)
            and _LIBRARY.setsockopt(descriptor, socket.SOL_SOCKET, option, program, len(program))
        ]
        # One that has no filter refuses to detach it.
        if refused and networks:
            raise OSError("no filter can be attached to a listening socket")

    def _is_listener(self, descriptor: int) -> bool:
        own = endpoint_of_socket(self._name(_LIBRARY.getsockname, descriptor) or b"")
        if own is None or own[1] not in self._ports:
            return False
        listening, self._size.value = ctypes.c_int(), ctypes.sizeof(ctypes.c_int)
        refused = _LIBRARY.getsockopt(
            descriptor, socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(listening), ctypes.byref(self._size)
        )
        return not refused and bool(listening.value)

    def end(self, key: Key, *, at_once: bool) -> None:
        """Ends a connection, if it is still there: the library reads its end, and closes it. `at_once`, it does not
        first read what has arrived, which may be megabytes.
        """
        # The library closes descriptors, and others open the same ones, at any time: not so the copy.
        copy = _LIBRARY.dup(key[0])
        if copy < 0:
            return
        if self._name(_LIBRARY.getpeername, copy) == key[1]:
            if at_once:
                # connect(2): an address of no family takes the connection of a TCP socket away.
                _LIBRARY.connect(copy, bytes(_ADDRESS_BYTES), _ADDRESS_BYTES)
            else:
                _LIBRARY.shutdown(copy, socket.SHUT_RDWR)
        _LIBRARY.close(copy)

    def _end_of_descriptors(self) -> int:
        """Returns a number that no descriptor reaches but for some that were opened since the last look.

        A new descriptor is the lowest that is free, so that few are beyond those that were there.
        """
        if self._looks % _LOOKS_FOR_HIGHEST == 0:
            self._highest = max(map(int, os.listdir(_DIRECTORY)))
        self._looks += 1
        if self._places:
            self._highest = max(self._highest, max(self._places)[0])
        return self._highest + _NEW_DESCRIPTORS

    def _name(self, function: Any, descriptor: int) -> bytes | None:
        """Returns the address of one of a socket's ends; None if there is none."""
        self._size.value = _ADDRESS_BYTES
        if function(descriptor, self._address, ctypes.byref(self._size)) != 0:
            return None
        return self._address.raw[: self._size.value]

    def _place(self, descriptor: int, raw: bytes) -> Endpoint | None:
        """Returns the peer of a connection; None unless it is to one of the ports."""
        own = endpoint_of_socket(self._name(_LIBRARY.getsockname, descriptor) or b"")
        return endpoint_of_socket(raw) if own is not None and own[1] in self._ports else None

    def _traffic(self, descriptor: int) -> Traffic:
        self._size.value = _TRAFFIC.size
        refused = _LIBRARY.getsockopt(
            descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, self._information, ctypes.byref(self._size)
        )
        # Linux before 4.2 does not count it.
        if refused or self._size.value < _TRAFFIC.size:
            return Traffic(0, 0)
        return Traffic(*_TRAFFIC.unpack(self._information.raw))


def endpoint_of_socket(raw: bytes) -> Endpoint | None:
    """Returns what a `struct sockaddr` of TCP says; None of others."""
    family = int.from_bytes(raw[:2], sys.byteorder)
    sizes = {int(socket.AF_INET): slice(4, 8), int(socket.AF_INET6): slice(8, 24)}
    if family not in sizes:
        return None
    return plain_address(str(ipaddress.ip_address(raw[sizes[family]]))), int.from_bytes(raw[2:4])


@contextlib.contextmanager
def watching(calls: ConnectionCalls, ports: Collection[int], of_network: int) -> Iterator[None]:
    """Watches the connections to `ports` for as long as the block lasts. An address may have `of_network` of them whose
    callers have not authenticated.
    """
    stopping = threading.Event()
    strangers = Strangers(of_network, soft_limit())
    guard = Guard(calls, Sockets(ports), strangers)
    thread = threading.Thread(target=guard.watch, args=[stopping], name="connections", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def count_descriptors() -> int:
    """Returns how many descriptors this process has open. Raises OSError."""
    # Linux before 6.2 does not say it so.
    return os.stat(_DIRECTORY).st_size or len(os.listdir(_DIRECTORY))


class Guard:
    """Looks at the connections again and again, and ends and keeps out what is to be."""

    def __init__(self, calls: ConnectionCalls, sockets: Sockets, strangers: Strangers) -> None:
        """Has looked at nothing yet."""
        # How many descriptors there were at the last look, and when that was.
        self._descriptors, self._looked_at = 0, float("-inf")
        self._calls = calls
        self._sockets = sockets
        self._strangers = strangers
        self._accounts = Accounts()
        self._penalties = Penalties()
        self._kept_out: frozenset[str] = frozenset()

    def watch(self, stopping: threading.Event) -> None:
        """Looks until it is stopped."""
        pause = _IDLE_PAUSE
        while not stopping.wait(pause):
            began, busy = time.monotonic(), time.thread_time()
            try:
                if self.is_quiet(began):
                    pause = _QUIET_PAUSE
                    continue
                self.look(began)
            except OSError as error:
                # No descriptor is left; the library ends handshakes that take too long.
                _log.debug("cannot look at connections: %s", error)
            for network, ended in self._accounts.due(began).items():
                said = ", ".join(f"{count} that {REASONS[reason]}" for reason, count in ended.items())
                _log.warning("ended connections of %s without credentials: %s", network, said)
            shortest = _BUSY_PAUSE if self._strangers.busy else _IDLE_PAUSE
            pause = min(max(shortest, (time.thread_time() - busy) / _LOOKING), _LONGEST_PAUSE)

    def is_quiet(self, now: float) -> bool:
        """Returns whether a look would find what the last one found, no strangers, as far as the number of descriptors
        says. Raises OSError.
        """
        return (
            now - self._looked_at < _QUIET_SECONDS
            and len(self._strangers) == 0
            and not self._strangers.flooding
            and not self._kept_out
            and count_descriptors() == self._descriptors
        )

    def look(self, now: float) -> None:
        """Looks once. Raises OSError."""
        self._descriptors, self._looked_at = count_descriptors(), now
        sights = self._sockets.look(self._calls.authenticated)
        endings = self._strangers.judge(sights, self._calls.talks({sight.peer for sight in sights}), now)
        self._penalties.know({network_of(address) for address in self._calls.take_known()}, now)
        self._penalties.know({sight.network for sight in sights if sight.traffic is None}, now)
        # First: each connection that ends is followed by the next.
        self._keep_out(now)
        for ending in endings:
            self._sockets.end(ending.key, at_once=ending.reason is Reason.FLOOD)
            _ENDED.labels(ending.reason).inc()
        self._accounts.add(endings)
        _OPEN.labels("stranger").set(len(self._strangers))
        _OPEN.labels("authenticated").set(len(sights) - len(self._strangers))

    def _keep_out(self, now: float) -> None:
        for network, seconds in self._penalties.add(self._strangers.flooding, now).items():
            _log.warning("%s opens no connections for %g s: it flooded without credentials", network, seconds)
        kept_out = self._penalties.kept_out(now)
        if kept_out != self._kept_out:
            try:
                self._sockets.keep_out(kept_out)
            except OSError as error:
                # Floods are ended one by one, as before; the next look tries again.
                _log.debug("cannot keep networks out: %s", error)
                return
            self._kept_out = kept_out
            _KEPT_OUT.set(len(kept_out))
