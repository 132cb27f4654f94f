"""Which addresses a registry may have, by what its name means on the node."""

from __future__ import annotations

import socket

import pytest

from retinue.agent.docker.registries import is_named
from retinue.agent.docker.registry_addresses import (
    RegistryAddresses,
    RegistryRefusedError,
    UnresolvedError,
    is_own,
    resolve,
)

FLEET = ("198.51.100.7", "2001:db8::7")


def checking(*addresses: str, allowed: tuple[str, ...] = (), own: str = "203.0.113.1") -> RegistryAddresses:
    return RegistryAddresses(allowed, FLEET[:1], lambda _host: addresses, lambda address: str(address) == own)


def test_managers_are_followed_and_the_fleet_stays() -> None:
    addresses = RegistryAddresses((), FLEET[:1], lambda host: [host], lambda _address: False)
    addresses.protect(["198.51.100.9"])
    addresses.keep_from(["198.51.100.8"])
    addresses.check(FLEET[0])
    for refused in ("198.51.100.8", "198.51.100.9"):
        with pytest.raises(RegistryRefusedError, match="of the fleet"):
            addresses.check(refused)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.1.2.3",
        "0.0.0.0",  # noqa: S104  # what is refused
        "169.254.169.254",
        "169.254.1.1",
        "100.100.100.200",
        "168.63.129.16",
        "224.0.0.1",
        "255.255.255.255",
        "203.0.113.1",
        "198.51.100.7",
        "2001:db8::7",
        "::1",
        "::",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:198.51.100.7",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::1",
        "fe80::1",
        "fec0::1",
        "fd00:ec2::254",
        "ff02::1",
    ],
)
def test_never(address: str) -> None:
    addresses = checking(address)
    addresses.protect(FLEET[1:])
    for registry in ("cr.example.org", "cr.example.org:5000"):
        with pytest.raises(RegistryRefusedError):
            addresses.check(registry)
    # One of several is enough: the engine picks any.
    both = checking("192.0.2.1", address)
    both.protect(FLEET)
    with pytest.raises(RegistryRefusedError):
        both.check("cr.example.org")
    checking(address, allowed=("0.0.0.0/0", "::/0")).check("cr.example.org")


@pytest.mark.parametrize(
    "address", ["192.0.2.1", "10.1.2.3", "2001:db8::1", "fd12::1", "::ffff:10.1.2.3", "64:ff9b::a01:203"]
)
def test_others_are_let_through(address: str) -> None:
    checking(address).check("cr.example.org:5000")


def test_the_fleet_is_what_was_said_last() -> None:
    addresses = checking("2001:db8::7")
    addresses.check("cr.example.org")
    addresses.protect(FLEET)
    with pytest.raises(RegistryRefusedError):
        addresses.check("cr.example.org")
    addresses.protect(())
    addresses.check("cr.example.org")
    with pytest.raises(RegistryRefusedError):
        checking(FLEET[0]).check("cr.example.org")


def test_names_that_mean_nothing() -> None:
    def fail(host: str) -> list[str]:
        raise socket.gaierror(f"no {host}")

    addresses = RegistryAddresses(resolve=fail)
    with pytest.raises(UnresolvedError):
        addresses.check("cr.example.org")
    # A mirror or proxy of the engine may know it.
    addresses.check("docker.io")


def test_what_resolvers_take_for_an_address() -> None:
    for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1"):
        with pytest.raises(RegistryRefusedError):
            RegistryAddresses(allowed=("::1/128",)).check(host)
    assert resolve("127.1") == {"127.0.0.1"}


def test_own_addresses() -> None:
    import ipaddress  # noqa: PLC0415

    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address("192.0.2.200"))


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        ("busybox", True),
        ("docker.io/library/busybox:latest", True),
        ("index.docker.io/busybox", True),
        ("busybox:1", False),
        ("cr.example.org/busybox", False),
        ("cr.example.org:5000/a/b:2", True),
        ("cr.example.org/a/b:2", False),
        ("a/b:2", False),
        (f"cr.example.org:5000/a/b@sha256:{'a' * 64}", True),
        (f"busybox@sha256:{'a' * 64}", False),
        ("a" * 64, False),
        ("a" * 12, False),
        (f"sha256:{'a' * 64}", False),
    ],
)
def test_names_of_an_image(reference: str, named: bool) -> None:
    found = {
        "Id": f"sha256:{'a' * 64}",
        "RepoTags": ["busybox:latest", "cr.example.org:5000/a/b:2"],
        "RepoDigests": [f"cr.example.org:5000/a/b@sha256:{'a' * 64}"],
    }
    assert is_named(found, reference) is named
    assert not is_named({"RepoTags": None, "RepoDigests": None}, reference)


@pytest.mark.parametrize(
    ("registry", "host"),
    [
        ("cr.example.org", "cr.example.org"),
        ("cr.example.org:5000", "cr.example.org"),
        ("[2001:db8::1]:5000", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("docker.io", "registry-1.docker.io"),
    ],
)
def test_the_host_of_a_registry_is_resolved(registry: str, host: str) -> None:
    asked = list[str]()

    def answer(name: str) -> list[str]:
        asked.append(name)
        return ["8.8.8.8"]

    RegistryAddresses((), (), answer, lambda _address: False).check(registry)
    assert asked == [host]
