"""Keeps the egress links of this agent's kernels on its node: compares the desired with the observed state."""

from __future__ import annotations

import contextlib
import errno
import random
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.host.lanes import NETWORK
from retinue.agent.network import namespaces, netlink, nftables
from retinue.agent.network.core.egress_plan import (
    OUT_LINK,
    SLOTS,
    EgressLink,
    link_name,
    link_prefix,
    plan_egress_link,
    slot_of,
)
from retinue.agent.network.core.labels import agent_label
from retinue.agent.network.core.operations import CreateVeth, DeleteLink, Namespace
from retinue.agent.network.core.plan import KERNEL_LINK
from retinue.agent.network.core.rules import INNER_TABLE, TRANSLATION_TABLE, inner_table, link_translation
from retinue.agent.network.errors import InvalidNetworkError, NetworkError
from retinue.agent.network.observation import find_link, observe_inside, observe_kernel, observe_outside
from retinue.agent.network.rtnl_encode import encode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from retinue.agent.network.core.observed import Link, Observed
    from retinue.agent.network.core.operations import Operation, Step
    from retinue.agent.network.namespaces import NetworkNamespace

_TRIES = 8
_PROCESS_NAMESPACE = "/proc/self/ns/net"
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
# A kernel is no router: what comes to it from its session is not forwarded to the outside, nor vice versa.
_KERNEL_SETTINGS = {"ipv6/conf/default/disable_ipv6": "1", "ipv4/ip_forward": "0"}


class Egress:
    """All egress links of one agent's kernels. The caller has put the agent's rules in place before."""

    def __init__(self, agent_id: str, mtu: int, source: random.Random | None = None) -> None:
        """`mtu` is that of the underlay, in bytes; `source` chooses addresses."""
        self._label = agent_label(agent_id)
        self._mtu = mtu
        self._source = source or random.SystemRandom()
        # By the name of a link: the slot that it had, so that one that is made again has its address.
        self._slots: dict[str, int] = {}
        # By attempt and table: the rules in the kernel's namespace, as listed after they were put there.
        self._listings: dict[tuple[str, str], tuple[str, str]] = {}

    async def open(self, attempt_ids: Collection[str]) -> None:
        """Removes egress links of attempts other than these. Raises NetworkError."""
        await NETWORK.run(self._open, attempt_ids)

    async def attach(self, attempt_id: str, namespace: NetworkNamespace, session_address: str = "") -> int:
        """Creates the egress link of an attempt; `namespace` is its own network namespace,
        `session_address` its address in its session's network, if it has one.

        The answer is how many steps that took, 0 when it had one. Raises NetworkError, also when the kernel is gone
        already.
        """
        return await NETWORK.run(self._attach, attempt_id, namespace, session_address)

    async def remove(self, attempt_id: str) -> None:
        """Removes an attempt's egress link, if it is not gone with its namespace. Raises NetworkError.

        A namespace outlives its last process while a connection that was open then has not informed its peer that it is
        over; Linux tries to for minutes when the peer does not answer.
        """
        await NETWORK.run(self._remove, attempt_id)

    async def redirect(self, attempt_id: str, namespace: NetworkNamespace, ports: Mapping[int, int]) -> None:
        """Has these ports of the namespace's egress link, and no others, lead to ports at its loopback address.
        Raises NetworkError.
        """
        await NETWORK.run(self._redirect, attempt_id, namespace, ports)

    async def observed(self) -> set[str]:
        """Returns the names of the node's ends of egress links. Raises NetworkError."""
        return {link.name for link in await NETWORK.run(self._links)}

    async def addresses(self, attempt_ids: Collection[str]) -> dict[str, str]:
        """Returns the addresses of attempts that have an egress link. Raises NetworkError."""
        links = {link.name: slot for link in await NETWORK.run(self._links) if (slot := slot_of(link)) is not None}
        names = {attempt_id: link_name(self._label, attempt_id) for attempt_id in attempt_ids}
        return {key: EgressLink(name, links[name], self._mtu).address for key, name in names.items() if name in links}

    def _open(self, attempt_ids: Collection[str]) -> None:
        wanted = {link_name(self._label, attempt_id) for attempt_id in attempt_ids}
        with netlink.connected() as node:
            strangers = [DeleteLink(link.index) for link in self._links() if link.name not in wanted]
            _send(strangers, node, -1)

    def _remove(self, attempt_id: str) -> None:
        name = link_name(self._label, attempt_id)
        self._forget(attempt_id, name)
        with netlink.connected() as node:
            link = find_link(node, name)
            if link is not None:
                _send([DeleteLink(link.index)], node, -1)

    def _links(self) -> list[Link]:
        prefix = link_prefix(self._label)
        with netlink.connected() as node:
            return [link for name, link in observe_kernel(node).links.items() if name.startswith(prefix)]

    def _attach(self, attempt_id: str, namespace: NetworkNamespace, session_address: str) -> int:
        name = link_name(self._label, attempt_id)
        _forward()
        with namespace.opened() as kernel:
            if namespaces.same(kernel, _PROCESS_NAMESPACE):
                raise InvalidNetworkError(f"{namespace} is not a namespace of a kernel's own")
            namespaces.run_inside(kernel, lambda: namespaces.write_settings(_KERNEL_SETTINGS))
            with netlink.connected() as outside, netlink.connected(kernel) as inside:
                for _ in range(_TRIES):
                    node = observe_outside(outside, name)
                    link = self._desired(name, node, session_address)
                    steps = plan_egress_link(link, node, observe_inside(inside, OUT_LINK))
                    try:
                        _apply(steps, outside, inside, kernel)
                    except _TakenError:
                        continue
                    self._slots[name] = link.slot
                    repaired = 0
                    if session_address:
                        commands = link_translation(OUT_LINK, KERNEL_LINK, session_address, link.address)
                        repaired = self._put_table(attempt_id, TRANSLATION_TABLE, commands, kernel)
                    return len(steps) + repaired
        raise NetworkError("no free address for the kernel's egress link was found")

    def _redirect(self, attempt_id: str, namespace: NetworkNamespace, ports: Mapping[int, int]) -> None:
        # Else Linux takes nothing for a loopback address from a link.
        settings = {f"ipv4/conf/{OUT_LINK}/route_localnet": "1"}
        with namespace.opened() as kernel:
            if namespaces.same(kernel, _PROCESS_NAMESPACE):
                raise InvalidNetworkError(f"{namespace} is not a namespace of a kernel's own")
            namespaces.run_inside(kernel, lambda: namespaces.write_settings(settings))
            self._put_table(attempt_id, INNER_TABLE, inner_table(OUT_LINK, ports), kernel)

    def _put_table(self, attempt_id: str, table: str, commands: str, kernel: int) -> int:
        """Puts a table into a kernel's namespace unless it is there as it was left; returns the number of changes."""

        def listing() -> str:
            return nftables.run(f"list table ip {table}")

        def put() -> str:
            nftables.run(commands)
            return listing()

        key = attempt_id, table
        if (known := self._listings.get(key)) is not None and known[0] == commands:
            with contextlib.suppress(NetworkError):
                if namespaces.run_inside(kernel, listing) == known[1]:
                    return 0
        self._listings[key] = commands, namespaces.run_inside(kernel, put)
        return 1

    def _forget(self, attempt_id: str, name: str) -> None:
        self._slots.pop(name, None)
        for table in (INNER_TABLE, TRANSLATION_TABLE):
            self._listings.pop((attempt_id, table), None)

    def _desired(self, name: str, node: Observed, session_address: str) -> EgressLink:
        outer = node.links.get(name)
        slot = self._slots.pop(name, None) if outer is None else slot_of(outer)
        return EgressLink(name, self._source.randrange(SLOTS) if slot is None else slot, self._mtu, session_address)


def _forward() -> None:
    """Enables IP forwarding on the node. It is never disabled: other programs may rely on it by then."""
    try:
        if _FORWARDING.read_text().strip() != "1":
            _FORWARDING.write_text("1")
    except OSError as error:
        raise NetworkError(f"this node cannot be made to forward: {_FORWARDING}: {error.strerror}") from error


class _TakenError(Exception):
    """The index that was chosen belongs to another interface."""


def _apply(steps: Sequence[Step], outside: netlink.Netlink, inside: netlink.Netlink, kernel: int) -> None:
    node = [step.operation for step in steps if step.namespace is Namespace.NODE]
    # A batch continues after a failure, and what follows the link must not be done to another one with its index.
    links = [operation for operation in node if isinstance(operation, DeleteLink | CreateVeth)]
    _send(links, outside, kernel)
    _send([operation for operation in node if operation not in links], outside, kernel)
    _send([step.operation for step in steps if step.namespace is Namespace.KERNEL], inside, kernel)


def _send(operations: Sequence[Operation], connection: netlink.Netlink, kernel: int) -> None:
    def failed(number: int, error: netlink.RequestError) -> None:
        operation = operations[number]
        if isinstance(operation, DeleteLink) and error.code == errno.ENODEV:
            # The other end's removal, or the kernel's, was faster.
            return
        if isinstance(operation, CreateVeth) and error.code in {errno.EEXIST, errno.EBUSY}:
            raise _TakenError
        raise NetworkError(f"cannot create the kernel's egress link: {operation}: {error}") from error

    messages = [encode(operation, session=kernel, kernel=kernel) for operation in operations]
    netlink.send_steps(connection, operations, messages, failed)
