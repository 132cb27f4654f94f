"""Mounts and ports as they are typed here, and as users of Docker type them. Pure.

What Docker writes is taken where it means the same, and else refused with what to write in its place.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from retinue.client.errors import UsageError

Mount: TypeAlias = tuple[str, str, bool]
"""Source, target, and whether it is writable."""
Port: TypeAlias = tuple[str, str, int] | tuple[str, str, int, str]
"""Name, protocol, number, and the host that the program sees where that is not the browser's."""

_FORM = "SRC:DST[:rw], as /data/imagenet:/data or /scratch/me:/scratch:rw"
_KEYS = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}
_TRUTH = {"": True, "true": True, "1": True, "false": False, "0": False}
_DOCKER_PORT = re.compile(
    r"(?:(?:\[[0-9A-Fa-f:.]+\]|[0-9]+(?:\.[0-9]+){3}):)?(?:(?P<here>[0-9]*):)?(?P<port>[0-9]+)(?:-[0-9]+)?(?:/(?P<protocol>tcp|udp|sctp))?",
)


def parse_mount(text: str) -> Mount:
    """Returns a mount from `SRC:DST[:rw]`, which is read-only without `rw`, or from the words of Docker's `--mount`,
    which is writable without `readonly`. Raises UsageError.
    """
    if not text.startswith("/") and "=" in text.partition(",")[0]:
        return _docker_mount(text)
    source, _, rest = text.partition(":")
    target, _, how = rest.partition(":")
    if not source.startswith("/"):
        raise UsageError(f"{text!r}: there are no volumes; a mount is a directory of the nodes: {_FORM}")
    if not target or how not in {"", "ro", "rw"}:
        raise UsageError(f"{text!r} is not {_FORM}")
    return source, target, how == "rw"


def _docker_mount(text: str) -> Mount:
    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        found[_KEYS.get(name, name)] = value
    kind, readonly = found.pop("type", "bind"), found.pop("readonly", "false")
    source, target = found.pop("source", ""), found.pop("target", "")
    if kind != "bind":
        raise UsageError(f"{text!r}: only type=bind has a counterpart: {_FORM}")
    if found:
        raise UsageError(f"{text!r}: {next(iter(found))} has no counterpart: {_FORM}")
    if not source or not target or readonly not in _TRUTH:
        raise UsageError(f"{text!r} is not type=bind,source=SRC,target=DST[,readonly]")
    return source, target, not _TRUTH[readonly]


def parse_port(text: str) -> Port:
    """Returns the name, protocol and number of `NAME:[PROTOCOL:]NUMBER[:host=localhost]`, and the host if there is one.
    Raises UsageError.
    """
    if (docker := _DOCKER_PORT.fullmatch(text)) is not None:
        if docker["protocol"] in ("udp", "sctp"):
            raise UsageError(f"{text!r}: only TCP is carried to a session")
        forward = f"`retinue port-forward SESSION web{':' + docker['here'] if docker['here'] else ''}`"
        raise UsageError(
            f"{text!r}: nothing is published on a node; give the port a name, -p web:{docker['port']}, and {forward}"
        )
    declared, named, host = text.partition(":host=")
    name, *protocol, number = declared.rsplit(":", 2) if ":" in declared else ("", declared)
    if not name or ":" in name or not is_port(number) or (named and not host):
        example = f"such as web:{number if is_port(number) else 8000}"
        raise UsageError(f"{text!r} is not NAME:[PROTOCOL:]NUMBER[:host=localhost], {example}")
    port = name, protocol[0] if protocol else "", int(number)
    return (*port, host) if host else port


def is_port(text: str) -> bool:
    """Returns whether a text is the number of a port."""
    return text.isascii() and text.isdecimal() and int(text) in range(1, 65_536)
