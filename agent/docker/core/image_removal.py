"""Which images of an engine an agent may remove, and where the engine keeps what it has. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retinue.agent.docker.registries import canonical, parse_reference

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

DAY = 86_400.0
CONTAINERD_ROOT = "/var/lib/containerd"
"""Where a containerd that the engine did not start itself keeps its images, unless it is configured otherwise."""


@dataclass(frozen=True, slots=True)
class FetchedImage:
    """An image that the agent fetched, by the `names` it was fetched by; `used` is in seconds since the epoch."""

    id: str
    names: frozenset[str]
    used: float


@dataclass(frozen=True, slots=True)
class RemovalPolicy:
    """When images are removed: after so many days without use, while less than `free_percent` of the engine's disk is
    free. Never with 0 days.
    """

    unused_days: int = 3
    free_percent: int = 20


def due(fetched: Iterable[FetchedImage], in_use: Collection[str], now: float, policy: RemovalPolicy) -> list[str]:
    """Returns the ids of the images that may be removed, the longest unused first; `in_use` are ids."""
    if not policy.unused_days:
        return []
    unused = [image for image in fetched if image.id not in in_use and now - image.used >= policy.unused_days * DAY]
    return [image.id for image in sorted(unused, key=lambda image: (image.used, image.id))]


def removable_names(image: FetchedImage, found: Mapping[str, Any]) -> list[str]:
    """Returns the names to remove an image by; none when it has another tag than the agent fetched it by."""
    tags, digests = (list(map(str, found.get(key) or ())) for key in ("RepoTags", "RepoDigests"))
    own = {_name(name) for name in image.names}
    repositories = {repository for repository, _ in own}
    if not {_name(tag) for tag in tags} <= own or any(_name(digest)[0] not in repositories for digest in digests):
        return []
    return tags or digests or [image.id]


def _name(reference: str) -> tuple[str, str]:
    return canonical(reference), parse_reference(reference).wanted


def data_directories(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the directories that an engine writes to, by its own answer to `GET /info`."""
    root = str(info.get("DockerRootDir") or "")
    containerd = info.get("Containerd")
    address = str(containerd.get("Address") or "") if isinstance(containerd, dict) else ""
    # An engine that starts containerd itself has it below its own directories.
    stored_by_containerd = any(
        pair[:2] == ["driver-type", "io.containerd.snapshotter.v1"] for pair in info.get("DriverStatus") or ()
    )
    others = [CONTAINERD_ROOT] if stored_by_containerd and address.endswith("/run/containerd/containerd.sock") else []
    return tuple(directory for directory in (root, *others) if directory.startswith("/"))
