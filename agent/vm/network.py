"""Joins a machine's taps to the interfaces that networks put beside them, in QEMU's own network namespace.

Frames are redirected both ways before this Linux looks at them: neither address nor route of such an interface is used
on the node. The guest gets them instead.

An egress link beside a session's network is different: the guest has no address on it, as no kernel has, and this Linux
is the router that translates the session's address into the link's.
"""

from __future__ import annotations

import ipaddress
import subprocess
from typing import TYPE_CHECKING

from retinue.agent.network import namespaces, netlink
from retinue.agent.network.core.egress_plan import GATEWAY, GATEWAY_MAC, OUT_LINK
from retinue.agent.network.core.plan import KERNEL_LINK
from retinue.agent.network.errors import NetworkError
from retinue.agent.network.observation import observe_kernel
from retinue.agent.vm.core.guest_frames import Interface
from retinue.agent.vm.core.machine import device_address
from retinue.agent.vm.sandbox import TAP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.agent.network.core.observed import Link
    from retinue.agent.network.namespaces import NetworkNamespace

TIMEOUT = 30.0
_TABLE = "100"
_INWARD, _OUTWARD, _LOCAL = "10", "11", "100"


def guest_addresses(namespace: NetworkNamespace, addresses: Sequence[str]) -> tuple[str, ...]:
    """Returns where the guest has what its node knows as these addresses of it: that of the egress link beside a
    session's network is the session's. Blocks. Raises NetworkError.
    """
    with namespace.opened() as descriptor, netlink.connected(descriptor) as connection:
        observed = observe_kernel(connection)
    link = observed.links.get(KERNEL_LINK)
    found = [entry.address for entry in observed.addresses if link is not None and entry.link == link.index]
    local = [address for address in addresses if ipaddress.ip_address(address).is_loopback]
    return tuple(addresses) if not found or len(local) == len(addresses) else (*local, *found)


def join(namespace: NetworkNamespace, *, networked: bool, egress: bool) -> list[Interface]:
    """Joins each tap to its interface, and returns what the guest has to give its own. Blocks. Raises NetworkError.

    May be repeated, after an interface was made again.
    """
    links = [name for name, wanted in ((KERNEL_LINK, networked), (OUT_LINK, egress)) if wanted]
    with namespace.opened() as descriptor:
        with netlink.connected(descriptor) as connection:
            observed = observe_kernel(connection)
        found = []
        commands = []
        for number, name in enumerate(links):
            link = observed.links.get(name)
            address = next((entry for entry in observed.addresses if link and entry.link == link.index), None)
            routed = networked and name == OUT_LINK
            if link is None or (address is None and not routed):
                raise NetworkError(f"the kernel has no interface {name} with an address")
            gateway = GATEWAY if name == OUT_LINK else ""
            found.append(
                Interface(
                    device_address(number),
                    link.mac,
                    "" if address is None else address.address,
                    0 if address is None else address.prefix_length,
                    link.mtu,
                    gateway,
                    GATEWAY_MAC if gateway else "",
                )
            )
            tap = TAP.format(number)
            commands += _routing(tap, found[0].address, link) if routed else _joining(name, tap, link.mtu)
        settings = _router_settings(TAP.format(len(links) - 1)) if networked and egress else {}
        namespaces.run_inside(descriptor, lambda: _apply(commands, settings))
    return found


def _joining(link: str, tap: str, mtu: int) -> list[list[str]]:
    commands = [["ip", "link", "set", name, "mtu", str(mtu), "up"] for name in (link, tap)]
    for one, other in ((link, tap), (tap, link)):
        # What a former process of the agent added goes with it.
        commands.append(["-", "tc", "qdisc", "del", "dev", one, "ingress"])
        commands.append(["tc", "qdisc", "add", "dev", one, "ingress"])
        selected = ["parent", "ffff:", "protocol", "all", "u32", "match", "u8", "0", "0"]
        redirected = ["action", "mirred", "egress", "redirect", "dev", other]
        commands.append(["tc", "filter", "add", "dev", one, *selected, *redirected])
    return commands


def _routing(tap: str, address: str, link: Link) -> list[list[str]]:
    """Returns the commands that lead what comes by the egress link to the guest, although its address is this
    namespace's, too: the table of local addresses comes later.
    """
    rules = [
        (_INWARD, ["iif", link.name, "lookup", _TABLE]),
        (_OUTWARD, ["iif", tap, "lookup", "main"]),
        (_LOCAL, ["lookup", "local"]),
    ]
    commands = [
        ["ip", "link", "set", tap, "address", GATEWAY_MAC, "mtu", str(link.mtu), "up"],
        ["ip", "neigh", "replace", address, "lladdr", link.mac, "nud", "permanent", "dev", tap],
        ["ip", "route", "replace", f"{address}/32", "dev", tap, "table", _TABLE],
    ]
    for preference, rule in rules:
        commands.append(["-", "ip", "rule", "del", "pref", preference])
        commands.append(["ip", "rule", "add", "pref", preference, *rule])
    return [*commands, ["-", "ip", "rule", "del", "pref", "0"]]


def _router_settings(tap: str) -> dict[str, str]:
    forwarding = {f"ipv4/conf/{name}/forwarding": "1" for name in (OUT_LINK, tap)}
    # What the guest sends has an address of this namespace.
    return {**forwarding, f"ipv4/conf/{tap}/accept_local": "1", f"ipv4/conf/{tap}/rp_filter": "0"}


def _apply(commands: list[list[str]], settings: dict[str, str]) -> None:
    _run(commands)
    namespaces.write_settings(settings)


def _run(commands: list[list[str]]) -> None:
    for command in commands:
        optional = command[0] == "-"
        words = command[1:] if optional else command
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, check=False)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            raise NetworkError(f"the machine cannot be joined to its network: {error}") from error
        if done.returncode != 0 and not optional:
            raise NetworkError(f"the machine cannot be joined to its network: {done.stderr.strip()}")
