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
from collections.abc import Iterable, Sequence

DEFAULT_REGISTRY = "docker.io"
MAX_PATTERNS = 64
_ALIASES = {"index.docker.io": DEFAULT_REGISTRY, "registry-1.docker.io": DEFAULT_REGISTRY}
_LABEL = r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?"
_PATTERN = re.compile(rf"(?:\*|(?:\*\.)?{_LABEL}(?:\.{_LABEL})*(?::(?:[0-9]{{1,5}}|\*))?)")
# What resolvers take for an address, in whatever base.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

Violations = list[tuple[str, str]]


def registry_of(reference: str) -> str:
    """Returns the registry of an image reference as `host` or `host:port`; engines read references the same way."""
    first, slash, _ = reference.partition("@")[0].partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return _ALIASES.get(first, first) if is_host else DEFAULT_REGISTRY


def check_patterns(patterns: Sequence[str], path: str, violations: Violations) -> None:
    """Finds what is wrong with the patterns of a resource group; `path` is that of their field."""
    if len(patterns) > MAX_PATTERNS:
        violations.append((path, f"must be at most {MAX_PATTERNS} entries"))
        return
    for position, pattern in enumerate(patterns):
        if not _PATTERN.fullmatch(pattern):
            violations.append(
                (f"{path}[{position}]", "must be HOST, HOST:PORT, HOST:*, *.DOMAIN or *, in small letters")
            )


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
    host, _, port = registry.partition(":")
    wanted, _, wanted_port = pattern.partition(":")
    if pattern != "*" and wanted_port not in {"*", port}:
        return False
    if wanted == host:
        return True
    if _is_own(host):
        return False
    return wanted == "*" or (wanted.startswith("*.") and host.endswith(wanted[1:]))


def _is_own(host: str) -> bool:
    """Returns whether a host is a numeric address, or a name of the node itself."""
    last = host.rpartition(".")[2]
    return bool(_NUMBER.fullmatch(last)) or last in {"localhost", "localdomain"}
