"""Joins a machine's taps to the interfaces that networks put beside them, in QEMU's own network namespace.

Frames are redirected both ways before this Linux looks at them: neither address nor route of such an interface is used
on the node. The guest gets them instead.
"""

from __future__ import annotations

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
    from retinue.agent.network.namespaces import NetworkNamespace

TIMEOUT = 30.0


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
            if link is None or address is None:
                raise NetworkError(f"the kernel has no interface {name} with an address")
            gateway = GATEWAY if name == OUT_LINK else ""
            found.append(
                Interface(
                    device_address(number),
                    link.mac,
                    address.address,
                    address.prefix_length,
                    link.mtu,
                    gateway,
                    GATEWAY_MAC if gateway else "",
                )
            )
            commands += _joining(name, TAP.format(number), link.mtu)
        namespaces.run_inside(descriptor, lambda: _run(commands))
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
