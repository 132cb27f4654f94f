"""The private networks that one agent keeps on its node.

Each session's network is a network namespace of its own, named after the agent and the session. What is asked for is
compared with what is there and only the difference is applied, so that every call may be repeated after a crash at any
point, and calls for one session wait for each other. Nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import re
import uuid
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from retinue.agent.host.lanes import NETWORK
from retinue.agent.network import namespaces, netlink
from retinue.agent.network.core.labels import agent_label
from retinue.agent.network.core.operations import BringUp, CreateTunnel, CreateVeth, DeleteLink, DropEntry, Namespace
from retinue.agent.network.core.plan import BRIDGE, PROBE_LINK, TUNNEL, plan_attachment, plan_network, port_name
from retinue.agent.network.core.topology import check, session_key
from retinue.agent.network.errors import InvalidNetworkError, NetworkError
from retinue.agent.network.observation import observe_kernel, observe_port, observe_session
from retinue.agent.network.rtnl_encode import delete_named, encode
from retinue.agent.network.rules_guard import Counters
from retinue.agent.network.underlay import find_uplink
from retinue.rpc import failpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from retinue.agent.network.core.operations import Operation, Step
    from retinue.agent.network.core.topology import Network
    from retinue.agent.network.namespaces import NetworkNamespace
    from retinue.agent.network.rules_guard import Guard

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

_LOOPBACK = "lo"
_PROCESS_NAMESPACE = "/proc/self/ns/net"
# In place of a descriptor, where no step may name one.
_NO_KERNEL = -1

# A session's namespace switches frames, and answers the probes of other nodes. Packets of kernels to its address are
# dropped: they have sources that no route of it leads to.
_SESSION_SETTINGS = {
    "ipv4/ip_forward": "0",
    "ipv4/conf/all/rp_filter": "1",
    "ipv4/conf/default/rp_filter": "1",
    "ipv4/icmp_echo_ignore_all": "0",
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
    "bridge/bridge-nf-call-iptables": "0",
    "bridge/bridge-nf-call-ip6tables": "0",
    "bridge/bridge-nf-call-arptables": "0",
}
# A session's network is IPv4; an interface with a link-local IPv6 address would speak unasked. The loopback keeps ::1.
_KERNEL_SETTINGS = {"ipv6/conf/default/disable_ipv6": "1"}

_ALREADY_GONE = {errno.ENODEV, errno.ENOENT, errno.EADDRNOTAVAIL, errno.ESRCH}


class SessionNetworks:
    """All session networks of one agent; agents of other names on the same host are not touched."""

    def __init__(self, agent_id: str, underlay_address: str | None, guard: Guard) -> None:
        """`underlay_address` is where other nodes send VXLAN to; None leaves the choice to `find_uplink`.

        `guard` receives the nodes from which each network takes VXLAN.
        """
        label = agent_label(agent_id)
        self._prefix = f"rt-{label}-"
        self._pattern = re.compile(rf"rt-{re.escape(label)}-([0-9a-f]{{32}})")
        self._underlay_address = underlay_address
        self._guard = guard
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def namespace(self, session_id: str) -> str:
        """Returns the name of the session's namespace, as `ip netns` lists it.
        Raises InvalidNetworkError if the id is no UUID.
        """
        return self._prefix + session_key(session_id)

    async def ensure(self, network: Network) -> int:
        """Makes the session's network what it should be; the answer is how many steps that took, 0 when it was.

        Kernels are attached one by one, later. Raises NetworkError.
        """
        check(network)
        return await self._exclusively(network.session_id, lambda: self._ensure(network))

    async def attach(self, network: Network, kernel_id: str, namespace: NetworkNamespace) -> int:
        """Attaches a kernel to a network that was ensured.

        `namespace` is the kernel's. The answer is how many steps that took.
        Raises NetworkError, also when the kernel is gone already.
        """
        check(network)
        return await self._exclusively(network.session_id, lambda: self._attach(network, kernel_id, namespace))

    async def detach(self, network: Network, kernel_id: str) -> None:
        """Removes a kernel's port, if it has one. Raises NetworkError."""
        check(network)
        await self._exclusively(network.session_id, lambda: self._detach(network, kernel_id))

    async def remove(self, session_id: str) -> None:
        """Removes the session's network, whatever is left of it; kernels that are still dying do not hold it up.

        When it is done, nothing goes to other nodes any more and the VNI may be used again; Linux clears the rest away
        a moment later. Raises NetworkError.
        """
        await self._exclusively(session_id, lambda: self._remove(session_id))

    async def observed(self) -> set[str]:
        """Sessions of which there is a network here, half-made ones included. Raises NetworkError."""
        found = await NETWORK.run(namespaces.names)
        return {str(uuid.UUID(match[1])) for name in found if (match := self._pattern.fullmatch(name))}

    async def carried(self) -> dict[str, Counters]:
        """Returns what the networks that exist here carry to other nodes, by session. Raises NetworkError."""
        sessions = await self.observed()
        return await NETWORK.run(lambda: {session_id: self._carried(session_id) for session_id in sessions})

    async def _exclusively(self, session_id: str, function: Callable[[], _Result]) -> _Result:
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        async with lock:
            work = asyncio.ensure_future(NETWORK.run(function))
            interruption: asyncio.CancelledError | None = None
            while not work.done():
                try:
                    await asyncio.wait([work])
                except asyncio.CancelledError as error:
                    # A thread cannot be cancelled, and the next one must not start before it is done.
                    interruption = error
            if interruption is None:
                return work.result()
            if not work.cancelled() and (failure := work.exception()) is not None:
                _log.warning("after a cancellation, session %s: %s", session_id, failure)
            raise interruption

    @failpoints.blocking("network.session", NetworkError)
    def _ensure(self, network: Network) -> int:
        name = self.namespace(network.session_id)
        uplink = find_uplink(self._underlay_address) if network.vni else None
        namespaces.create(name, _SESSION_SETTINGS)
        if network.vni:
            remote = frozenset(member.underlay_address for member in network.members if not member.local)
            self._guard.admit(network.session_id, Counters(network.vni, remote, network.vxlan_port))
        with namespaces.opened_name(name) as session, netlink.connected(session) as connection:
            assert session is not None  # noqa: S101  # it has just been made, and nothing else may remove it
            steps = plan_network(network, uplink, observe_session(connection, BRIDGE, PROBE_LINK))
            with netlink.connected() as node, _port_named(network.vxlan_port):
                # The link for probes has both ends in the session's namespace.
                apply(steps, {Namespace.SESSION: connection, Namespace.NODE: node}, session, session)
        return len(steps)

    @failpoints.blocking("network.session", NetworkError)
    def _attach(self, network: Network, kernel_id: str, namespace: NetworkNamespace) -> int:
        member = network.member(kernel_id)
        with (
            namespaces.opened_name(self.namespace(network.session_id)) as session,
            namespace.opened() as kernel,
        ):
            if session is None:
                raise NetworkError(f"there is no network yet for session {network.session_id}")
            if namespaces.same(kernel, _PROCESS_NAMESPACE) or namespaces.same(kernel, session):
                raise InvalidNetworkError(f"{namespace} is not a namespace of a kernel's own")
            namespaces.run_inside(kernel, lambda: namespaces.write_settings(_KERNEL_SETTINGS))
            with netlink.connected(session) as outside, netlink.connected(kernel) as inside:
                port = observe_port(outside, BRIDGE, port_name(network, member))
                steps = plan_attachment(network, member, port, observe_kernel(inside))
                apply(steps, {Namespace.SESSION: outside, Namespace.KERNEL: inside}, session, kernel)
        return len(steps)

    @failpoints.blocking("network.session", NetworkError)
    def _detach(self, network: Network, kernel_id: str) -> None:
        name = port_name(network, network.member(kernel_id))
        with namespaces.opened_name(self.namespace(network.session_id)) as session:
            if session is None:
                return
            with netlink.connected(session) as connection:
                port = observe_port(connection, BRIDGE, name).links.get(name)
                if port is not None:
                    _send([DeleteLink(port.index)], connection, session, _NO_KERNEL)

    @failpoints.blocking("network.session", NetworkError)
    def _remove(self, session_id: str) -> None:
        name = self.namespace(session_id)
        with namespaces.opened_name(name) as session:
            if session is not None:
                # A namespace ends some time after its last user, and all that is in it; the VNI has to be free now.
                with netlink.connected(session) as connection:
                    connection.send([delete_named(TUNNEL)], _tolerate_absence)
        namespaces.delete(name)
        self._guard.dismiss(session_id)

    @failpoints.blocking("network.session", NetworkError)
    def _carried(self, session_id: str) -> Counters:
        with namespaces.opened_name(self.namespace(session_id)) as session:
            if session is None:
                return Counters(0, frozenset())
            with netlink.connected(session) as connection:
                observed = observe_session(connection, BRIDGE, PROBE_LINK)
        tunnel = observed.links.get(TUNNEL)
        settings = None if tunnel is None else tunnel.tunnel
        if settings is None:
            return Counters(0, frozenset())
        return Counters(settings.vni, frozenset(entry.destination for entry in observed.tunnels), settings.port)


@contextlib.contextmanager
def _port_named(port: int) -> Iterator[None]:
    """Says of a VXLAN device that does not come up, for want of its port, which port that is and what to do."""
    try:
        yield
    except NetworkError as error:
        if not isinstance(error.__cause__, netlink.RequestError) or error.__cause__.code != errno.EADDRINUSE:
            raise
        raise NetworkError(
            f"UDP port {port}, for VXLAN between nodes, is in use on this node: `retinue doctor --vxlan-port {port}` says by"
            " what, and managers have --vxlan-port for another"
        ) from error


def apply(steps: Iterable[Step], sockets: Mapping[Namespace, netlink.Netlink], session: int, kernel: int) -> None:
    """Sends each run of steps for one namespace as one batch, in order."""
    for namespace, run in itertools.groupby(steps, key=lambda step: step.namespace):
        _send([step.operation for step in run], sockets[namespace], session, kernel)


def _send(operations: list[Operation], connection: netlink.Netlink, session: int, kernel: int) -> None:
    def failed(position: int, error: netlink.RequestError) -> None:
        operation = operations[position]
        if isinstance(operation, DeleteLink | DropEntry) and error.code in _ALREADY_GONE:
            return
        raise NetworkError(f"{_purpose(operation)}: {error}") from error

    messages = [encode(operation, session=session, kernel=kernel) for operation in operations]
    netlink.send_steps(connection, operations, messages, failed)


def _purpose(operation: Operation) -> str:
    match operation:
        case CreateTunnel(settings=settings):
            return f"cannot make the VXLAN device with VNI {settings.vni}"
        case CreateVeth(name=name):
            return f"cannot make the kernel's interface behind {name}"
        case BringUp(index=index):
            return f"cannot bring up interface {index}"
        case _:
            return f"cannot apply {operation}"


def _tolerate_absence(_: int, error: netlink.RequestError) -> None:
    if error.code not in _ALREADY_GONE:
        raise error


def remove_links(namespace: NetworkNamespace) -> None:
    """Removes all links of a namespace but the loopback interface: what made it has given it a network. Blocks.
    Raises NetworkError.

    Fallback devices of tunnels, which Linux makes in every namespace and does not remove,
    stay while they are down and have no address.
    """
    with namespace.opened() as descriptor, netlink.connected(descriptor) as connection:
        found = observe_kernel(connection)
        addressed = {entry.link for entry in found.addresses}
        for name, link in found.links.items():
            if name == _LOOPBACK:
                continue
            try:
                connection.request(delete_named(name))
            except netlink.RequestError as error:
                if link.up or link.index in addressed:
                    raise NetworkError(f"the interface {name} cannot be removed: {error}") from error
