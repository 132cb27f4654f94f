"""References of images, and the registries that they are of. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_REGISTRY = "docker.io"
_ALIASES = {"index.docker.io": DEFAULT_REGISTRY, "registry-1.docker.io": DEFAULT_REGISTRY}


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference, `[REGISTRY/]REPOSITORY[:TAG][@DIGEST]`, in parts; `repository` is as given, registry included."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def wanted(self) -> str:
        """Returns the tag or digest to ask for: a digest says more."""
        return self.digest or self.tag or "latest"


def parse_reference(text: str) -> Reference:
    """Returns the parts of a reference, which is as an engine takes it or is refused by that."""
    name, _, digest = text.partition("@")
    head, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    repository = f"{head}{slash}{last}"
    first, slash, _ = repository.partition("/")
    return Reference(host_of(first) if slash and _is_host(first) else DEFAULT_REGISTRY, repository, tag, digest)


def _is_host(first: str) -> bool:
    return "." in first or ":" in first or first == "localhost" or first != first.lower()


def host_of(name: str) -> str:
    """Returns the host of a registry, from the ways to write it: `https://index.docker.io/v1/` is Docker's own."""
    host = name.removeprefix("https://").removeprefix("http://").partition("/")[0].lower()
    return _ALIASES.get(host, host)


def canonical(text: str) -> str:
    """Returns a reference without tag and digest in the one form that engines know it by:
    `docker.io/library/busybox` for `busybox`.
    """
    parts = parse_reference(text)
    first, slash, rest = parts.repository.partition("/")
    path = rest if slash and _is_host(first) else parts.repository
    official = parts.registry == DEFAULT_REGISTRY and "/" not in path
    return f"{parts.registry}/{'library/' if official else ''}{path}"


def is_named(found: Mapping[str, Any], reference: str) -> bool:
    """Returns whether an image that an engine found for a reference has that name there, and was not found by an id."""
    parts = parse_reference(reference)
    names = found.get("RepoDigests" if parts.digest else "RepoTags") or []
    others = ((canonical(str(name)), parse_reference(str(name)).wanted) for name in names)
    return (canonical(reference), parts.wanted) in set(others)
