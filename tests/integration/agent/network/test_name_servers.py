"""What the resolver of a C library makes of a kernel's resolv.conf."""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.agent.inside.provision import WITHOUT_RESOLVER
from retinue.agent.network.node import resolver_text
from retinue.devtools import nodes
from retinue.rpc import network_namespaces

SERVER = "127.0.0.9"
NODE = f"rt-test-names-{secrets.token_hex(4)}"
A, AAAA = 1, 28


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A name server, in a network of its own, that is asked and never answers."""
    network_namespaces.create(NODE, exclusive=True)
    try:
        subprocess.run(["ip", "-n", NODE, "link", "set", "lo", "up"], check=True)  # noqa: S607

        def listen() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            made.bind((SERVER, 53))
            return made

        with nodes.run_in(NODE, listen) as made:
            yield made
    finally:
        network_namespaces.delete(NODE)


def look_up(directory: Path, resolver: str, *command: str) -> tuple[str, float]:
    """What a command prints that runs with this resolv.conf and the names of a session,
    and how many seconds it takes.
    """
    files = {"resolv.conf": resolver, "hosts": "10.128.0.1\tmain1\n10.128.0.2\tsub1\n"}
    for name, content in files.items():
        (directory / name).write_text(content)
    binds = "; ".join(f"mount --bind {directory / name} /etc/{name}" for name in files)
    began = time.monotonic()
    ran = subprocess.run(
        ["ip", "netns", "exec", NODE, "sh", "-c", f'{binds}; exec "$@"', "sh", *command],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout, time.monotonic() - began


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
    found, _ = look_up(tmp_path, resolver, "getent", "ahosts", "sub1")
    assert found.startswith("10.128.0.2 ")
    assert asked(server) == []
    found, seconds = look_up(tmp_path, resolver, "getent", "hosts", "sub1")
    assert found.split() == ["10.128.0.2", "sub1"]
    # By default it is ten.
    assert seconds < 8
    assert asked(server) == [A, A]


def test_without_egress_no_server_is_asked(server: socket.socket, tmp_path: Path) -> None:
    for resolver in (WITHOUT_RESOLVER, resolver_text(())):
        found, seconds = look_up(tmp_path, resolver, "getent", "hosts", "sub1")
        assert found.split() == ["10.128.0.2", "sub1"]
        assert seconds < 5
    assert asked(server) == []
