"""Which networks are refused, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.agent.network.core.topology import Network, check, session_key
from retinue.agent.network.errors import InvalidNetworkError
from tests.unit.agent.network.topologies import MAIN, SESSION, SUB

NETWORK = Network(SESSION, 77, "10.128.0.0/28", 1450, (MAIN, SUB))


def test_a_good_one_passes() -> None:
    check(NETWORK)
    check(replace(NETWORK, vni=0, members=(MAIN, replace(SUB, local=True, underlay_address=""))))
    check(replace(NETWORK, members=(MAIN, replace(SUB, underlay_address="2001:db8::1"))))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (replace(NETWORK, session_id="x"), "session id 'x' is not a UUID"),
        (replace(NETWORK, session_id=SESSION.upper()), "usual form"),
        (replace(NETWORK, session_id=SESSION.replace("-", "")), "usual form"),
        (replace(NETWORK, session_id=""), "is not a UUID"),
        (replace(NETWORK, vni=-1), "VNI -1"),
        (replace(NETWORK, vni=2**24), "VNI 16777216"),
        (replace(NETWORK, mtu=575), "MTU 575"),
        (replace(NETWORK, mtu=65536), "MTU 65536"),
        (replace(NETWORK, subnet="10.128.0.1/28"), "has host bits set"),
        (replace(NETWORK, subnet="2001:db8::/64"), "subnet '2001:db8::/64'"),
        (replace(NETWORK, subnet=""), "subnet ''"),
        (replace(NETWORK, vni=0), "'sub1' is on another node and the network has no VNI"),
        (replace(NETWORK, members=(MAIN, replace(SUB, kernel_id="main-kernel"))), "same kernel_id"),
        (replace(NETWORK, members=(MAIN, replace(SUB, hostname="main1"))), "same hostname"),
        (replace(NETWORK, members=(MAIN, replace(SUB, address="10.128.0.2"))), "same address"),
        (replace(NETWORK, members=(MAIN, replace(SUB, mac=MAIN.mac))), "same mac"),
        (replace(NETWORK, members=(replace(MAIN, kernel_id=""),)), "no kernel id"),
        (replace(NETWORK, members=(replace(MAIN, hostname="a b"),)), "not a host name"),
        (replace(NETWORK, members=(replace(MAIN, hostname="a\n127.0.0.1 b"),)), "not a host name"),
        (replace(NETWORK, members=(replace(MAIN, hostname="main1\n"),)), "not a host name"),
        (replace(NETWORK, members=(replace(MAIN, hostname=""),)), "not a host name"),
        (replace(NETWORK, members=(replace(MAIN, address="10.128.0.16"),)), "not a host's address in 10.128.0.0/28"),
        (replace(NETWORK, members=(replace(MAIN, address="10.128.0.0"),)), "not a host's address"),
        (replace(NETWORK, members=(replace(MAIN, address="10.128.0.15"),)), "not a host's address"),
        (replace(NETWORK, members=(replace(MAIN, address="nonsense"),)), "nonsense"),
        (replace(NETWORK, members=(replace(MAIN, mac="0a:58:0a:80:00"),)), "not a MAC address"),
        (replace(NETWORK, members=(replace(MAIN, mac="0A:58:0A:80:00:02"),)), "not a MAC address"),
        (replace(NETWORK, members=(replace(MAIN, mac="01:58:0a:80:00:02"),)), "multicast"),
        (replace(NETWORK, members=(replace(SUB, underlay_address=""),)), "underlay address"),
        (replace(NETWORK, members=(replace(SUB, underlay_address="239.0.0.1"),)), "not a node's address"),
        (replace(NETWORK, members=(replace(SUB, underlay_address="0.0.0.0"),)), "not a node's address"),  # noqa: S104
    ],
)
def test_a_bad_one_is_refused(network: Network, message: str) -> None:
    with pytest.raises(InvalidNetworkError, match=message):
        check(network)


def test_members_and_their_places() -> None:
    assert NETWORK.member("main-kernel") is MAIN
    assert NETWORK.offset(MAIN) == 2
    assert NETWORK.prefix_length == 28
    with pytest.raises(InvalidNetworkError, match="no place"):
        NETWORK.member("sub-kernel")
    assert session_key(SESSION) == "0190c8f47d2e7c3a9b1f2a5d8e4c6f01"
