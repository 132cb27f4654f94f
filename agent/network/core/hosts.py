"""Text of /etc/hosts for the kernels of a network. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retinue.agent.network.core.topology import Network

LOCALHOST = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
"""The lines every kernel has, with a network or without."""


def hosts_text(network: Network) -> str:
    """Returns the whole file: the local host's lines, then one line for every member, in the order of the members."""
    return LOCALHOST + "".join(f"{member.address}\t{member.hostname}\n" for member in network.members)
