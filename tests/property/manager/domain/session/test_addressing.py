"""Subnets never overlap and have room; addresses and MACs in them are unique."""

from __future__ import annotations

import ipaddress
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.manager.domain.session.ipam import (
    POOL,
    AddressSpaceExhaustedError,
    SubnetPool,
    choose_vni,
    inner_mtu,
    kernel_address,
    parse_pool,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(2, 1024), max_size=40), st.data())
def test_subnets_do_not_overlap(sizes: list[int], data: st.DataObject) -> None:
    pool = SubnetPool(())
    first = [ipaddress.IPv4Network(pool.take(size)) for size in sizes]
    kept = [network for network in first if data.draw(st.booleans())]
    again = SubnetPool(map(str, kept))
    taken = kept + [ipaddress.IPv4Network(again.take(size)) for size in sizes]
    assert all(network.subnet_of(POOL) for network in taken)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(taken, 2))


@pytest.mark.parametrize("size", [2, 13, 14, 29, 30, 1024])
def test_every_kernel_has_its_own_address(size: int) -> None:
    subnet = SubnetPool(()).take(size)
    addresses = [kernel_address(subnet, rank) for rank in range(size)]
    hosts = set(ipaddress.ip_network(subnet).hosts())
    assert {ipaddress.ip_address(address.address) for address in addresses} <= hosts
    assert len({address.address for address in addresses}) == len({address.mac for address in addresses}) == size
    assert all(int(address.mac[:2], 16) & 3 == 2 for address in addresses), "locally administered, not multicast"


def test_an_exhausted_pool_says_so() -> None:
    with pytest.raises(AddressSpaceExhaustedError):
        SubnetPool([str(POOL)]).take(2)


def test_another_pool_leaves_the_subnets_of_the_first_alone() -> None:
    pool = SubnetPool(["10.128.0.0/28", "172.20.0.0/28"], parse_pool("172.20.0.0/16"))
    assert [pool.take(2), pool.take(30)] == ["172.20.0.16/28", "172.20.0.64/26"]
    pool.give_back("10.128.0.0/28")
    pool.give_back("172.20.0.0/28")
    assert pool.take(2) == "172.20.0.0/28"


@pytest.mark.parametrize("text", ["10.0.0.0/28", "8.8.0.0/16", "127.0.0.0/16", "fd00::/64", "10.0.0.1/16", "x"])
def test_what_is_no_pool_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"room|private|Expected|host bits"):
        parse_pool(text)


def test_vnis_are_free_ones() -> None:
    source = random.Random(1)  # a fixed seed
    taken: set[int] = set()
    for _ in range(1000):
        vni = choose_vni(taken, source)
        assert vni not in taken
        assert 0 < vni < 2**24
        taken.add(vni)


def test_mtu_is_the_smallest_underlay_less_the_header() -> None:
    v4, v6 = "192.0.2.1", "2001:db8::1"
    assert inner_mtu([(v4, 1500), (v4, 9000)], vxlan=True) == 1450
    assert inner_mtu([(v4, 9000), (v6, 9000)], vxlan=True) == 8930
    assert inner_mtu([(v4, 9000)], vxlan=False) == 9000
    assert inner_mtu([(v4, 0)], vxlan=True) == 1450
    assert inner_mtu([(v4, 65_536)], vxlan=False) == 65_521
    assert inner_mtu([(v4, 65_536), (v6, 65_536)], vxlan=True) == 65_451


def test_subnets_are_outside_what_kernels_are_to_reach() -> None:
    pool = SubnetPool(())
    site, name_server = ipaddress.IPv4Network("10.128.0.0/20"), ipaddress.IPv4Network("10.128.16.53")
    assert pool.take(2, [site, name_server]) == "10.128.16.0/28"
    assert pool.take(30, [site, name_server]) == "10.128.16.64/26"
    assert pool.take(2) == "10.128.0.0/28", "others may have those"
    assert pool.take(2, [site, name_server]) == "10.128.16.16/28"


def test_what_holds_the_whole_pool_is_no_obstacle() -> None:
    everything, name_server = ipaddress.IPv4Network("10.0.0.0/8"), ipaddress.IPv4Network("10.128.0.3")
    assert SubnetPool(()).take(2, [everything, name_server]) == "10.128.0.16/28"


def test_a_pool_of_which_all_is_to_be_reached_is_exhausted() -> None:
    halves = list(POOL.subnets(1))
    with pytest.raises(AddressSpaceExhaustedError, match="--session-subnets"):
        SubnetPool(()).take(2, halves)
