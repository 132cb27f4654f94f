"""Proves that packets come from the other nodes of the networks of sessions, for as long as these exist."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import Gauge

from retinue.agent.host.lanes import NETWORK
from retinue.agent.network.core.path_proof import TRIES, PathProof, PathState
from retinue.agent.network.core.path_topology import path_ends
from retinue.agent.network.core.plan import overhead
from retinue.agent.network.echo import MAX_READ, EchoSocket, namespace_inode
from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.agent.conditions import Conditions
    from retinue.agent.network.core.path_proof import PathVerdict
    from retinue.agent.network.core.path_topology import PathEnd, PathEnds
    from retinue.agent.network.core.topology import Network

_log = logging.getLogger(__name__)

_BROKEN = Gauge("retinue_agent_broken_paths", "Paths from other nodes in sessions' networks that are broken.", ["loss"])

MAX_NAMED = 8
"""Faulty paths that are told of one network."""
# Seconds without reading, after more than what probes bring.
_FLOOD_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class FaultyPath:
    """A path that packets do not come by, or, `unproved`, that cannot be proved; `since` in seconds since the epoch."""

    agent_id: str
    message: str
    since: float
    unproved: bool = False


@dataclass(frozen=True, slots=True)
class PathReport:
    """The paths of one network to this node: whether kernels may start, and what is wrong with any.

    A path from a node whose agent is not known to answer probes holds up nothing.
    """

    proved: bool
    faulty: tuple[FaultyPath, ...] = ()


NO_PATHS = PathReport(proved=True)
"""Of a network that is on one node, or of which nothing is known."""


@dataclass(slots=True)
class _Path:
    """A path from a peer with its proof, and what was told of it last."""

    peer: PathEnd
    proof: PathProof
    told: PathState = PathState.WAITING
    fault: FaultyPath | None = None


@dataclass(slots=True)
class _Proving:
    """A network whose paths are proved."""

    network: Network
    ends: PathEnds
    echo: EchoSocket
    paths: dict[str, _Path]
    report: PathReport = field(default_factory=lambda: PathReport(proved=False))
    number: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Paths:
    """The paths of all networks of this node. All methods belong on one event loop."""

    def __init__(
        self,
        namespace: Callable[[str], str],
        conditions: Conditions,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`namespace` returns the name of a session's namespace; `clock` is monotonic, `wall` counts from the epoch."""
        self._namespace = namespace
        self._conditions = conditions
        self._clock = clock
        self._wall = wall
        self._proving: dict[str, _Proving] = {}
        self._listener: Callable[[], None] = lambda: None

    def listen(self, listener: Callable[[], None]) -> None:
        """Has `listener` called whenever a report changes."""
        self._listener = listener

    def report(self, session_id: str) -> PathReport:
        """Returns what is known of the paths of a session's network."""
        proving = self._proving.get(session_id)
        return NO_PATHS if proving is None else proving.report

    async def release(self, session_id: str) -> None:
        """Closes the socket in a namespace that was a session's and was deleted: what holds it keeps its VXLAN
        device, and no other can have its VNI. Raises NetworkError.
        """
        proving = self._proving.get(session_id)
        if proving is not None and proving.echo.inode != await NETWORK.run(
            namespace_inode, self._namespace(session_id)
        ):
            self._stop(proving)

    async def follow(self, network: Network) -> None:
        """Proves the paths of a network that was made, or made again. Raises NetworkError."""
        ends = path_ends(network)
        known = self._proving.get(network.session_id)
        if ends is None:
            self.forget(network.session_id)
            return
        namespace = self._namespace(network.session_id)
        same = known is not None and (known.ends.own, known.network.mtu) == (ends.own, network.mtu)
        whole = known is not None and same and known.task is not None
        if known is not None and whole and known.echo.inode == await NETWORK.run(namespace_inode, namespace):
            self._take(known, network, ends)
            return
        echo = await NETWORK.run(EchoSocket.open, namespace, ends.own.address)
        before = {} if known is None else known.paths
        self.forget(network.session_id)
        proving = _Proving(network, ends, echo, {})
        self._proving[network.session_id] = proving
        self._take(proving, network, ends, before)
        proving.task = asyncio.create_task(self._prove(proving), name=f"paths of session {network.session_id}")

    def forget(self, session_id: str) -> None:
        """Ends the proofs of a network, which may be removed then."""
        if (proving := self._proving.pop(session_id, None)) is None:
            return
        self._stop(proving)
        self._tell_node()

    @staticmethod
    def _stop(proving: _Proving) -> None:
        if proving.task is not None:
            proving.task.cancel()
            proving.task = None
            asyncio.get_running_loop().remove_reader(proving.echo.fileno())
            proving.echo.close()

    def close(self) -> None:
        """Ends all proofs."""
        for session_id in list(self._proving):
            self.forget(session_id)

    def _take(
        self, proving: _Proving, network: Network, ends: PathEnds, before: dict[str, _Path] | None = None
    ) -> None:
        known = proving.paths if before is None else before
        proving.network, proving.ends = network, ends
        proving.paths = {
            peer.address: _Path(peer, path.proof, path.told, path.fault)
            if (path := known.get(peer.address)) is not None and path.peer.underlay_address == peer.underlay_address
            else _Path(peer, PathProof(network.mtu))
            for peer in ends.peers
        }
        proving.wake.set()
        self._judge(proving)

    async def _prove(self, proving: _Proving) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(proving.echo.fileno(), self._receive, proving)
        while True:
            proving.wake.clear()
            # What has come counts before its absence does: this process may have been held up for long.
            self._receive(proving)
            now = self._clock()
            for address, path in proving.paths.items():
                for size in path.proof.due(now):
                    proving.number += 1
                    proving.echo.send(address, size, proving.number)
            self._judge(proving)
            pause = min((path.proof.wait(now) for path in proving.paths.values()), default=None)
            try:
                async with asyncio.timeout(pause):
                    await proving.wake.wait()
            except TimeoutError:
                continue

    def _receive(self, proving: _Proving) -> None:
        arrivals = proving.echo.receive()
        now = self._clock()
        for arrival in arrivals:
            if (path := proving.paths.get(arrival.source)) is not None:
                path.proof.arrive(arrival.size, now)
        if arrivals:
            self._judge(proving)
            proving.wake.set()
        if len(arrivals) == MAX_READ:
            # No probes are that many: their sender is not to keep this process busy.
            loop = asyncio.get_running_loop()
            loop.remove_reader(proving.echo.fileno())
            loop.call_later(_FLOOD_PAUSE, self._resume, proving)

    def _resume(self, proving: _Proving) -> None:
        if proving.task is not None:
            asyncio.get_running_loop().add_reader(proving.echo.fileno(), self._receive, proving)

    def _judge(self, proving: _Proving) -> None:
        """Brings the report up to date, and tells of a change."""
        for path in proving.paths.values():
            self._judge_path(proving, path)
        paths = proving.paths.values()
        faulty = sorted((path.fault for path in paths if path.fault), key=lambda fault: (fault.agent_id, fault.message))
        proved = all(path.told is PathState.PROVED or not path.peer.proves for path in paths)
        report = PathReport(proved, tuple(faulty[:MAX_NAMED]))
        if report == proving.report:
            return
        for fault in set(report.faulty) - set(proving.report.faulty):
            _log.warning("session %s: %s", proving.network.session_id, fault.message)
        if proving.report.faulty and not report.faulty:
            _log.info("session %s: packets come from all nodes that are probed", proving.network.session_id)
        proving.report = report
        self._tell_node()
        self._listener()

    def _judge_path(self, proving: _Proving, path: _Path) -> None:
        verdict = path.proof.verdict
        if verdict.state is PathState.WAITING:
            return
        own, peer, full = proving.ends.own, path.peer, proving.network.mtu
        since = self._wall() - max(0.0, self._clock() - verdict.since)
        if verdict.state is PathState.PROVED:
            path.fault = None
        elif path.proof.never_came and not peer.proves:
            message = _describe_unproved(own, peer)
            if path.fault is None or path.fault.message != message:
                path.fault = FaultyPath(peer.agent_id, message, since, unproved=True)
        else:
            message = _describe(own, peer, verdict, full, proving.network.vxlan_port)
            if path.fault is None or path.fault.message != message:
                path.fault = FaultyPath(peer.agent_id, message, since)
        path.told = verdict.state

    def _tell_node(self) -> None:
        """Keeps the condition of the node, and the metrics."""
        broken = {
            fault.message: path.told
            for proving in self._proving.values()
            for path in proving.paths.values()
            if (fault := path.fault) is not None and not fault.unproved
        }
        counts = [path.told for proving in self._proving.values() for path in proving.paths.values() if path.fault]
        for state in (PathState.NOTHING, PathState.SMALL_ONLY):
            _BROKEN.labels("all packets" if state is PathState.NOTHING else "large packets").set(counts.count(state))
        texts = sorted(broken)
        rest = f"; and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
        self._conditions.update(AgentConditionType.PATH_BROKEN, "; ".join(texts[:MAX_NAMED]) + rest)


def _describe(own: PathEnd, peer: PathEnd, verdict: PathVerdict, full: int, port: int) -> str:
    """Returns what is wrong with the path from `peer`, in words; `full` is the MTU of the network, in bytes, `port` the
    UDP port of its VXLAN.
    """
    if verdict.state is PathState.SMALL_ONLY:
        extra = overhead(own.underlay_address)
        return (
            f"{own.name} gets no packets of {full:,} bytes from {peer.name}, and gets those of {verdict.passing:,}: the "
            f"network between the nodes carries {verdict.passing + extra:,} bytes, less than the {full + extra:,} that "
            f"its interfaces say; let it carry more, or start the agents with --underlay-mtu {verdict.passing + extra}"
        )
    return (
        f"{own.name} gets nothing from {peer.name}: small packets 0 of {TRIES}, packets of {full:,} bytes 0 of {TRIES}; "
        f"is UDP port {port} open on {own.name} for {peer.underlay_address}?"
    )


def _describe_unproved(own: PathEnd, peer: PathEnd) -> str:
    """Returns what is said of a path from a node whose agent does not answer probes, in words."""
    return f"{own.name} cannot prove that packets come from {peer.name}: the agent there is too old to answer probes"
