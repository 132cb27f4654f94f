"""What the resolver of a C library makes of a kernel's resolv.conf."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from retinue.agent.inside.provision import WITHOUT_RESOLVER
from retinue.agent.network.name_servers import resolver_text
from retinue.devtools import nodes
from retinue.rpc import network_namespaces
from tests.integration.agent.network.nodes import Tap

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVER = "127.0.0.9"
NODE = f"rt-test-names-{secrets.token_hex(4)}"
A = 1
ITSELF = ipaddress.IPv4Address("127.0.0.1")


@pytest.fixture
def node() -> Iterator[str]:
    """A network of its own."""
    network_namespaces.create(NODE, exclusive=True)
    try:
        subprocess.run(["ip", "-n", NODE, "link", "set", "lo", "up"], check=True)  # noqa: S607
        yield NODE
    finally:
        network_namespaces.delete(NODE)


@pytest.fixture
def server(node: str) -> Iterator[socket.socket]:
    """A name server that is asked and never answers."""

    def listen() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        made.bind((SERVER, 53))
        return made

    with nodes.run_in(node, listen) as made:
        yield made


def look_up(directory: Path, resolver: str, *command: str) -> str:
    """What a command prints that runs with this resolv.conf and the names of a session."""
    files = {"resolv.conf": resolver, "hosts": "10.128.0.1\tmain1\n10.128.0.2\tsub1\n"}
    for name, content in files.items():
        (directory / name).write_text(content)
    binds = "; ".join(f"mount --bind {directory / name} /etc/{name}" for name in files)
    ran = subprocess.run(
        ["ip", "netns", "exec", NODE, "sh", "-c", f'{binds}; exec "$@"', "sh", *command],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout


def asked(server: socket.socket) -> list[int]:
    """Types of the addresses that were asked for since."""
    found: list[int] = []
    while True:
        try:
            query = server.recv(512)
        except BlockingIOError:
            return found
        end = query.index(0, 12)
        found.append(int.from_bytes(query[end + 1 : end + 3]))


def test_servers_that_do_not_answer_delay_no_query_for_long(server: socket.socket, tmp_path: Path) -> None:
    resolver = resolver_text((SERVER,))
    # Names of the session are never asked for by who takes any address.
    found = look_up(tmp_path, resolver, "getent", "ahosts", "sub1")
    assert found.startswith("10.128.0.2 ")
    assert asked(server) == []
    found = look_up(tmp_path, resolver, "getent", "hosts", "sub1")
    assert found.split() == ["10.128.0.2", "sub1"]
    # It is asked for twice, as by default, and each answer is waited for two seconds, where five are the default.
    assert "timeout:2" in resolver.split()
    assert asked(server) == [A, A]


def test_without_egress_a_kernel_asks_itself_only(node: str, tmp_path: Path) -> None:
    """At its own loopback address, where nothing listens, so that the answer comes at once."""
    with Tap(node, "lo") as tap:
        for resolver in (WITHOUT_RESOLVER, resolver_text(())):
            assert look_up(tmp_path, resolver, "getent", "hosts", "sub1").split() == ["10.128.0.2", "sub1"]
        assert {ipaddress.IPv4Address(frame[30:34]) for frame in tap.frames() if is_question(frame)} == {ITSELF}


def is_question(frame: bytes) -> bool:
    """Whether a frame goes to a name server, over IPv4."""
    return frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_UDP and frame[36:38] == struct.pack("!H", 53)
