"""Image registries: which one a reference is of, and what went wrong there. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_REGISTRY = "docker.io"
_ALIASES = {"index.docker.io": DEFAULT_REGISTRY, "registry-1.docker.io": DEFAULT_REGISTRY}
NOT_FOUND, DENIED, FAILED = AttemptReason.IMAGE_NOT_FOUND, AttemptReason.IMAGE_DENIED, AttemptReason.IMAGE_PULL_FAILED
# In the words of engines and registries: codes do not distinguish these.
_DENIED = ("denied", "unauthorized", "no basic auth credentials", "authentication required", "incorrect username")
_NOT_FOUND = (
    "manifest unknown",
    "name unknown",
    "not found",
    "does not exist",
    "no matching manifest",
    "invalid reference format",
    "unsupported manifest",
)


NO_SPACE, LIMITED = "no space left on device", "toomanyrequests"
# All that users read of a failed fetch: what engines and registries say of it may be anything,
# of any service that a node reaches.
_WORDS = {
    NOT_FOUND: "is not in its registry, or not for the architecture of this node",
    DENIED: "is not there, or its registry does not give it to this node",
    FAILED: "cannot be fetched: its registry is not reached or does not answer as one; the agent's log says more",
    NO_SPACE: "cannot be fetched: the node has no space for it",
    LIMITED: "cannot be fetched: its registry has limited how often this node may fetch",
}


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


def in_words(message: str) -> str:
    """Returns the text for users about a failed fetch with that message: one of a few sentences,
    to follow the image's name.
    """
    text = message.lower()
    return _WORDS[next((word for word in (NO_SPACE, LIMITED) if word in text), reason_of(message))]


def reason_of(message: str) -> str:
    """Returns the reason that goes with what an engine says on a failed fetch: two are for good, the third may pass."""
    text = message.lower()
    if any(words in text for words in _DENIED):
        return DENIED
    # A name that does not resolve is "not found" in the words of resolvers.
    if "lookup " not in text and "dial " not in text and any(words in text for words in _NOT_FOUND):
        return NOT_FOUND
    return FAILED
