"""The ports of a session's main kernel that can be reached from outside, and their names. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

TCP, HTTP = "tcp", "http"
LOCALHOST = "localhost"
PROTOCOLS = (TCP, HTTP)
PORTS = range(1024, 65_536)
# The server by which kernels of a session reach each other.
RESERVED = frozenset({2200})
MAX_PORTS, MAX_RANGES = 64, 16
SFTP, SFTP_PORT = "sftp", 2022
# Memory of an SFTP server by itself, and of each connection to it: some of it is pages of files on their way to a disk.
SFTP_BASE_MEMORY, SFTP_CONNECTION_MEMORY = 32 << 20, 7 << 20
# Of ssh servers that callers have started in a kernel.
SSH_PREFIX, SSH_PORTS = "ssh:", range(22_000, 23_000)

# With a letter first, no name is taken for a number.
PORT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_NUMBER = re.compile(r"[1-9][0-9]{0,4}")
_NO_NUMBER = f"must be from {PORTS.start} to {PORTS.stop - 1}"

Violations = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ServicePortSpec:
    """A port by name; the name stands for the first of its numbers. `host` is the one that the program sees of requests
    through the gateway: empty for that of the browser.
    """

    name: str
    protocol: str = TCP
    ports: tuple[int, ...] = ()
    host: str = ""


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """Where browsers reach a port: the host name that they ask for, and the URL, whose path is `/`."""

    host: str
    url: str


Addresses: TypeAlias = Callable[[uuid.UUID, int], PublicAddress]
"""Where browsers reach a port of a session."""


def local_address(_session_id: uuid.UUID, port: int) -> PublicAddress:
    """Returns where a port is reached through a local port of the same number, for a manager without a gateway."""
    return PublicAddress(LOCALHOST, f"http://{LOCALHOST}:{port}/")


def port_variables(ports: Sequence[ServicePortSpec], session_id: uuid.UUID, addresses: Addresses) -> dict[str, str]:
    """Returns the variables by which programs know the addresses of their ports that speak HTTP."""
    variables: dict[str, str] = {}
    for port in ports:
        if port.protocol == HTTP and port.ports:
            name = f"RETINUE_PORT_{re.sub('[^A-Za-z0-9]', '_', port.name).upper()}"
            address = addresses(session_id, port.ports[0])
            variables |= {f"{name}_HOST": address.host, f"{name}_URL": address.url}
    return variables


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports in a row, both ends included."""

    first: int
    last: int

    def __contains__(self, port: object) -> bool:
        return isinstance(port, int) and self.first <= port <= self.last


def check_ports(declared: Sequence[ServicePortSpec], preopen: Sequence[PortRange], violations: Violations) -> None:
    """Adds what is wrong with the ports of a request: (field path, description)."""
    if sum(max(1, len(port.ports)) for port in declared) > MAX_PORTS:
        violations.append(("spec.service_ports", f"must be at most {MAX_PORTS} ports"))
        return
    names: set[str] = set()
    numbers: set[int] = set()
    for position, port in enumerate(declared):
        path = f"spec.service_ports[{position}]"
        if not PORT_NAME.fullmatch(port.name):
            violations.append((f"{path}.name", "must be 1-63 letters, digits, -, _ and ., a letter first"))
        elif port.name in names:
            violations.append((f"{path}.name", "is given twice"))
        if port.protocol not in PROTOCOLS:
            violations.append((f"{path}.protocol", f"must be {' or '.join(PROTOCOLS)}"))
        if port.host and (port.host, port.protocol) != (LOCALHOST, HTTP):
            violations.append((f"{path}.host", f"must be empty, or {LOCALHOST} with protocol {HTTP}"))
        if not port.ports:
            violations.append((f"{path}.ports", "is required"))
        for index, number in enumerate(port.ports):
            if wrong := _wrong_number(number) or ("is given twice" if number in numbers else ""):
                violations.append((f"{path}.ports[{index}]", wrong))
            numbers.add(number)
        names.add(port.name)
    _check_ranges(preopen, violations)


def _check_ranges(preopen: Sequence[PortRange], violations: Violations) -> None:
    if len(preopen) > MAX_RANGES:
        violations.append(("spec.preopen_ports", f"must be at most {MAX_RANGES} ranges"))
        return
    for position, ports in enumerate(preopen):
        path = f"spec.preopen_ports[{position}]"
        if ports.first not in PORTS:
            violations.append((f"{path}.first", _NO_NUMBER))
        elif ports.last not in PORTS or ports.last < ports.first:
            violations.append((f"{path}.last", f"must be from {ports.first} to {PORTS.stop - 1}"))


def _wrong_number(number: int) -> str:
    if number not in PORTS:
        return _NO_NUMBER
    return f"{number} is reserved" if number in RESERVED else ""


@dataclass(frozen=True, slots=True)
class Reachable:
    """All that can be reached: named ports, those of the request before those of the image, and ranges."""

    named: tuple[ServicePortSpec, ...]
    preopen: tuple[PortRange, ...] = ()

    def find(self, wanted: str) -> int | None:
        """Returns the number of the port that a name or a number refers to; None when it is not declared."""
        for port in self.named:
            if port.name == wanted:
                return port.ports[0]
        if not _NUMBER.fullmatch(wanted):
            return None
        number = int(wanted)
        if number in RESERVED:
            return None
        named = any(number in port.ports for port in self.named)
        return number if named or any(number in ports for ports in self.preopen) else None

    def protocol(self, number: int) -> str:
        """Returns the protocol of a port that was found; empty for one of a range, for which none is declared."""
        return next((port.protocol for port in self.named if number in port.ports), "")

    def words(self) -> Iterator[str]:
        """Returns the ports for people."""
        for port in self.named:
            yield f"{port.name} ({', '.join(map(str, port.ports))})"
        for ports in self.preopen:
            yield str(ports.first) if ports.first == ports.last else f"{ports.first}-{ports.last}"


def reachable(
    asked: Sequence[ServicePortSpec], preopen: Sequence[PortRange], of_image: Sequence[ServicePortSpec]
) -> Reachable:
    """Returns what a request and the labels of `main1`'s image declare."""
    names = {port.name for port in asked}
    usable = [port for port in of_image if port.name not in names and port.ports and not RESERVED & set(port.ports)]
    return Reachable((*asked, *usable), tuple(preopen))


def sftp_connections(memory: int) -> int:
    """Returns how many connections at a time an SFTP server with so many bytes of memory has room for."""
    return max(1, (memory - SFTP_BASE_MEMORY) // SFTP_CONNECTION_MEMORY)


def ssh_port(wanted: str) -> int | None:
    """Returns the number of `ssh:NUMBER`; None for anything else."""
    number = wanted.removeprefix(SSH_PREFIX)
    found = int(number) if number != wanted and _NUMBER.fullmatch(number) else 0
    return found if found in SSH_PORTS else None
