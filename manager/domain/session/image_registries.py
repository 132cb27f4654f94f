"""From which registries a resource group lets images come: the registry of a reference, and the patterns of a group.
Pure.

An engine of a node makes the connection, so a reference is an address that a user has a node connect to. A group lists
the registries that are allowed; an empty list allows `docker.io`, which is also where names without a registry belong,
and with them the images that are on the node already. Addresses in numbers, and names of the node itself, are allowed
only where they are listed as they are: `*` does not mean them. What a name resolves to is checked by the agent,
whatever is listed here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from retinue.manager.domain.session.image_references import DEFAULT_REGISTRY, registry_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_PATTERNS = 64
_LABEL = r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?"
_ADDRESS = r"\[[0-9a-f:.]{2,45}\]"
_PATTERN = re.compile(rf"(?:\*|(?:(?:\*\.)?{_LABEL}(?:\.{_LABEL})*|{_ADDRESS})(?::(?:[0-9]{{1,5}}|\*))?)")
# What resolvers take for an address, in whatever base.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

Violations = list[tuple[str, str]]


def check_patterns(patterns: Sequence[str], path: str, violations: Violations) -> None:
    """Finds what is wrong with the patterns of a resource group; `path` is that of their field."""
    if len(patterns) > MAX_PATTERNS:
        violations.append((path, f"must be at most {MAX_PATTERNS} entries"))
        return
    for position, pattern in enumerate(patterns):
        if not _PATTERN.fullmatch(pattern):
            violations.append((f"{path}[{position}]", "must be HOST, HOST:PORT, HOST:*, *.DOMAIN or *, in lower case"))


def is_allowed(registry: str, patterns: Iterable[str]) -> bool:
    """Returns whether a group with these patterns lets images come from a registry."""
    return any(_matches(registry, pattern) for pattern in tuple(patterns) or (DEFAULT_REGISTRY,))


def denied_image(images: Iterable[str], patterns: Iterable[str]) -> str:
    """Returns the first of some references that a group with these patterns does not allow;
    empty when there is none.
    """
    known = tuple(patterns)
    return next((image for image in images if not is_allowed(registry_of(image), known)), "")


def _matches(registry: str, pattern: str) -> bool:
    if registry == pattern:
        return True
    host, port = _host_and_port(registry)
    wanted, wanted_port = _host_and_port(pattern)
    if pattern != "*" and wanted_port not in {"*", port}:
        return False
    if wanted == host:
        return True
    if _is_own(host):
        return False
    return wanted == "*" or (wanted.startswith("*.") and host.endswith(wanted[1:]))


def _host_and_port(text: str) -> tuple[str, str]:
    """Returns the host, an IPv6 address with its brackets, and the port; empty for none."""
    host, bracket, rest = text.rpartition("]")
    if bracket:
        return host + bracket, rest.removeprefix(":")
    host, _, port = text.partition(":")
    return host, port


def _is_own(host: str) -> bool:
    """Returns whether a host is a numeric address, or a name of the node itself."""
    last = host.rpartition(".")[2]
    return host.startswith("[") or bool(_NUMBER.fullmatch(last)) or last in {"localhost", "localdomain"}
