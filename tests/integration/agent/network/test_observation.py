"""What is read of a namespace in which little is there yet."""

from __future__ import annotations

import os

from retinue.agent.network import netlink
from retinue.agent.network.observation import observe_inside
from retinue.rpc import network_namespaces


def test_a_namespace_that_never_had_a_route_has_none() -> None:
    # As an agent finds a kernel that was killed before it set up the kernel's link.
    descriptor = network_namespaces.anonymous()
    try:
        with netlink.connected(descriptor) as inside:
            observed = observe_inside(inside, "lo")
    finally:
        os.close(descriptor)
    assert set(observed.links) == {"lo"}
    assert observed.routes == frozenset()
