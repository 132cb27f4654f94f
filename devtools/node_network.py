"""Tries on this machine what a node does for kernels: sends packets the way of theirs, and takes the port of VXLAN.

Rules of a firewall are judged by what they do to a packet, since what they mean together is known to the kernel only. A
namespace stands for a kernel: it has an egress link and the rules of an agent, and sends to an address that is nobody's
(RFC 5737). A chain behind all others counts what gets so far, as it leaves by the node's own uplink, and drops it: no
packet leaves the machine. The namespace has no name and ends with this process, its link with it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.agent.network.core.rules import EGRESS_PREFIX, Guarded, whole_table
from retinue.rpc import network_namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = "192.0.2.1"
"""The address that packets are sent to: of a network for documentation, which nobody has."""
_SENT_SECONDS = 2.0
_COMMAND_SECONDS = 10.0
_TABLE_PREFIX = "retinue-doctor-"
# Of the range of egress links, the last ones: agents choose theirs at random among 65,536.
_OUTER, _INNER = "198.19.255.254", "198.19.255.255"
_PORTS = {"TCP": 443, "UDP": 443}
_REFUSALS = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.ECONNRESET})
_VNI = (1 << 24) - 1


class ProbeError(Exception):
    """Something could not be tried; the text says why."""


@dataclass(frozen=True, slots=True)
class EgressPath:
    """The egress of kernels: the node's uplink, the protocols that do not get there and how each ends, and whether
    the node forwards packets now: at all, and those that come in by the uplink. `problem` says why nothing was tried.
    """

    problem: str = ""
    uplink: str = ""
    blocked: tuple[tuple[str, str], ...] = ()
    forwards: bool = True
    takes_answers: bool = True


@dataclass(frozen=True, slots=True)
class VxlanPort:
    """Whether the port of VXLAN can be used, and who has it if not: devices and programs."""

    port: int
    usable: bool = True
    holders: tuple[str, ...] = ()
    problem: str = ""


def try_egress() -> EgressPath:
    """Sends packets the way of a kernel's; blocks for up to some seconds. Never raises."""
    try:
        return _egress()
    except (ProbeError, OSError) as error:
        return EgressPath(problem=str(error))


def try_vxlan_port(port: int) -> VxlanPort:
    """Makes a VXLAN device as agents do, and removes it. Never raises."""
    try:
        with _namespace() as inside:
            name = f"rtd{os.getpid() % 100_000}"
            of_device = ("type", "vxlan", "id", str(_VNI), "dstport", str(port), "local", "127.0.0.1", "nolearning")
            _run("ip", "link", "add", name, "netns", inside.path, *of_device)
            in_namespace = ("nsenter", f"--net={inside.path}", "ip", "link")
            try:
                # Its socket is opened in the namespace that it was made from, once it is up.
                _run(*in_namespace, "set", name, "up")
            except ProbeError as error:
                if os.strerror(errno.EADDRINUSE) in str(error):
                    return VxlanPort(port, usable=False, holders=tuple(_holders(port)))
                raise
            finally:
                # Linux removes namespaces some time after they end, and the socket is in the way of others until then.
                _run_anyway(*in_namespace, "del", name)
    except (ProbeError, OSError) as error:
        return VxlanPort(port, problem=str(error))
    return VxlanPort(port)


@dataclass(frozen=True, slots=True)
class _Inside:
    """A network namespace without a name, by its descriptor."""

    descriptor: int

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def open(self, kind: socket.SocketKind) -> socket.socket:
        def make() -> socket.socket:
            network_namespaces.enter(self.descriptor)
            return socket.socket(socket.AF_INET, kind)

        return network_namespaces.in_thread(make)


@contextmanager
def _namespace() -> Iterator[_Inside]:
    descriptor = network_namespaces.anonymous()
    try:
        yield _Inside(descriptor)
    finally:
        os.close(descriptor)


def _egress() -> EgressPath:
    uplink = _uplink()
    _remove_stale_tables()
    table, link = f"{_TABLE_PREFIX}{os.getpid()}", f"{EGRESS_PREFIX}-d{os.getpid() % 100_000}"
    with ExitStack() as stack:
        inside = stack.enter_context(_namespace())
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "out0", "netns", inside.path)
        stack.callback(_run_anyway, "ip", "link", "del", link)
        _run("ip", "addr", "add", f"{_OUTER}/31", "dev", link)
        _run("ip", "link", "set", link, "up")
        # As the whole node does with the first kernel; other links are left as they are.
        Path(f"/proc/sys/net/ipv4/conf/{link}/forwarding").write_text("1")
        for command in (f"addr add {_INNER}/31 dev out0", "link set out0 up", f"route add default via {_OUTER}"):
            _run("nsenter", f"--net={inside.path}", "ip", *command.split())
        stack.callback(_run_anyway, "nft", "delete", "table", "inet", table)
        _run("nft", "-f", "-", text=whole_table(Guarded(table, link)) + _proof(table, uplink))
        blocked = _send_all(inside, table)
    return EgressPath("", uplink, tuple(blocked.items()), _is_on("ip_forward"), _is_on(f"conf/{uplink}/forwarding"))


def _proof(table: str, uplink: str) -> str:
    """Commands for the chain behind all others."""
    lines = [f"add chain inet {table} proof {{ type filter hook postrouting priority 500; policy accept; }}"]
    for protocol, port in _PORTS.items():
        word = protocol.lower()
        lines += [
            f"add counter inet {table} seen_{word}",
            f'add rule inet {table} proof oifname "{uplink}" ip daddr {NOBODY} {word} dport {port}'
            f" counter name seen_{word} drop",
        ]
    return "\n".join(lines) + "\n"


def _send_all(inside: _Inside, table: str) -> dict[str, str]:
    """Returns the protocols that do not get to the uplink, and how each ends: `dropped` or `refused`."""
    kinds = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}
    with ExitStack() as stack:
        opened = {protocol: stack.enter_context(inside.open(kind)) for protocol, kind in kinds.items()}
        refused = set()
        for protocol, sender in opened.items():
            sender.setblocking(False)
            if sender.connect_ex((NOBODY, _PORTS[protocol])) in _REFUSALS:
                refused.add(protocol)
        with contextlib.suppress(OSError):
            opened["UDP"].send(b"retinue doctor")
        until = time.monotonic() + _SENT_SECONDS
        missing = set(opened)
        while missing and time.monotonic() < until:
            missing -= {protocol for protocol in missing if _seen(table, protocol)}
            refused |= {protocol for protocol in missing if _refusal(opened[protocol])}
            if missing <= refused:
                break
            select.select([], [], [], 0.05)
    return {protocol: "refused" if protocol in refused else "dropped" for protocol in kinds if protocol in missing}


def _refusal(sender: socket.socket) -> bool:
    return sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _REFUSALS


def _seen(table: str, protocol: str) -> bool:
    found = _listed("nft", "-j", "list", "counter", "inet", table, f"seen_{protocol.lower()}")
    entries = found.get("nftables", ()) if isinstance(found, dict) else ()
    return any(entry.get("counter", {}).get("packets") for entry in entries if isinstance(entry, dict))


def _uplink() -> str:
    try:
        routes = json.loads(_run("ip", "-j", "-4", "route", "get", NOBODY))
        return str(routes[0]["dev"])
    except (ProbeError, ValueError, LookupError, TypeError) as error:
        raise ProbeError("there is no route to the outside") from error


def _is_on(setting: str) -> bool:
    try:
        return Path(f"/proc/sys/net/ipv4/{setting}").read_text().strip() == "1"
    except OSError:
        return False


def _remove_stale_tables() -> None:
    """Removes tables of processes that were killed."""
    found = _listed("nft", "-j", "list", "tables")
    for entry in found.get("nftables", ()) if isinstance(found, dict) else ():
        name = str(entry.get("table", {}).get("name", "")) if isinstance(entry, dict) else ""
        owner = name.removeprefix(_TABLE_PREFIX)
        if name.startswith(_TABLE_PREFIX) and owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            _run_anyway("nft", "delete", "table", "inet", name)


def _holders(port: int) -> Iterator[str]:
    """Yields who has a UDP port: VXLAN devices by their names, programs by theirs."""
    links = _listed("ip", "-d", "-j", "link", "show", "type", "vxlan")
    for link in links if isinstance(links, list) else ():
        data = link.get("linkinfo", {}).get("info_data", {}) if isinstance(link, dict) else {}
        if data.get("port") == port:
            yield f"the VXLAN device {link.get('ifname')}"
    sockets = {f"socket:[{inode}]" for inode in _udp_inodes(port)}
    for process in Path("/proc").iterdir() if sockets else ():
        if process.name.isdecimal() and not sockets.isdisjoint(_descriptors(process)):
            with contextlib.suppress(OSError):
                yield f"{(process / 'comm').read_text().strip()} (process {process.name})"


def _descriptors(process: Path) -> Iterator[str]:
    """Yields what descriptors of a process lead to; those that are closed meanwhile are left out."""
    with contextlib.suppress(OSError):
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield os.readlink(entry)


def _udp_inodes(port: int) -> Iterator[str]:
    for table in ("udp", "udp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/thread-self/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                # Those of the kernel itself have none.
                if len(words) > 9 and words[1].rpartition(":")[2] == f"{port:04X}" and words[9] != "0":  # noqa: PLR2004
                    yield words[9]


def _listed(*command: str) -> Any:
    try:
        return json.loads(_run(*command) or "[]")
    except (ProbeError, ValueError):
        return []


def _run(*command: str, text: str | None = None) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(  # noqa: S603  # our own words
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False, input=text, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(f"{command[0]}: {error}") from error
    if done.returncode:
        why = re.sub(r"\s+", " ", done.stderr).strip()
        raise ProbeError(f"{command[0]}: {why or f'exit code {done.returncode}'}")
    return done.stdout


def _run_anyway(*command: str) -> None:
    with contextlib.suppress(ProbeError):
        _run(*command)
