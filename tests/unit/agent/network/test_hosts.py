"""The text of /etc/hosts."""

from __future__ import annotations

from retinue.agent.network.core.topology import Network, hosts_text
from tests.unit.agent.network.topologies import MAIN, SESSION, SUB


def test_local_host_first_then_every_member() -> None:
    assert hosts_text(Network(SESSION, 77, "10.128.0.0/28", 1450, (MAIN, SUB))) == (
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n10.128.0.2\tmain1\n10.128.0.3\tsub1\n"
    )
