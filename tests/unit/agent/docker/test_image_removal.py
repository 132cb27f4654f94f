"""Images that may be removed: those that the agent fetched, not used for long, and under no name of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.docker.core.image_removal import (
    DAY,
    FetchedImage,
    RemovalPolicy,
    data_directories,
    due,
    removable_names,
)
from retinue.agent.docker.fetched_images import FILE, FetchedImages

if TYPE_CHECKING:
    from pathlib import Path

NOW = 100 * DAY


def image(identifier: str, days: float, *names: str) -> FetchedImage:
    """Returns an image that was used so many days ago."""
    return FetchedImage(identifier, frozenset(names), NOW - days * DAY)


def test_the_longest_unused_goes_first_and_what_is_used_stays() -> None:
    images = [image("a", 4), image("b", 90), image("c", 2.9), image("used", 50), image("d", 3)]
    assert due(images, {"used"}, NOW, RemovalPolicy()) == ["b", "a", "d"]
    assert due(images, {"used"}, NOW, RemovalPolicy(unused_days=30)) == ["b"]
    assert due(images, set(), NOW, RemovalPolicy(unused_days=0)) == []


@pytest.mark.parametrize(
    ("names", "tags", "digests", "removable"),
    [
        (("busybox:1",), ["busybox:1"], ["busybox@sha256:1"], ["busybox:1"]),
        (("docker.io/library/busybox",), ["busybox:latest"], None, ["busybox:latest"]),
        (("r:5/a:1", "r:5/a:2"), ["r:5/a:1", "r:5/a:2"], ["r:5/a@sha256:1"], ["r:5/a:1", "r:5/a:2"]),
        (("r:5/a@sha256:1",), [], ["r:5/a@sha256:1"], ["r:5/a@sha256:1"]),
        # Its tag has moved on, and nothing is left of its name.
        (("r:5/a:1",), [], None, ["i"]),
        # Others have given it a name, or fetched it by another.
        (("r:5/a:1",), ["r:5/a:1", "mine:1"], ["r:5/a@sha256:1"], []),
        (("r:5/a:1",), ["r:5/a:1", "r:5/a:keep"], ["r:5/a@sha256:1"], []),
        (("r:5/a:1",), ["r:5/a:1"], ["r:5/a@sha256:1", "other/a@sha256:1"], []),
    ],
)
def test_an_image_with_a_name_of_others_is_not_removed(
    names: tuple[str, ...], tags: list[str], digests: list[str] | None, removable: list[str]
) -> None:
    assert removable_names(image("i", 9, *names), {"RepoTags": tags, "RepoDigests": digests}) == removable


SNAPSHOTTER = [["Backing Filesystem", "extfs"], ["driver-type", "io.containerd.snapshotter.v1"]]


@pytest.mark.parametrize(
    ("info", "directories"),
    [
        ({"DockerRootDir": "/var/lib/docker"}, ("/var/lib/docker",)),
        ({"DockerRootDir": "/d", "DriverStatus": SNAPSHOTTER}, ("/d",)),
        (
            {
                "DockerRootDir": "/d",
                "DriverStatus": SNAPSHOTTER,
                "Containerd": {"Address": "/run/containerd/containerd.sock"},
            },
            ("/d", "/var/lib/containerd"),
        ),
        # The engine's own, below its directory.
        (
            {
                "DockerRootDir": "/d",
                "DriverStatus": SNAPSHOTTER,
                "Containerd": {"Address": "/var/run/docker/containerd/containerd.sock"},
            },
            ("/d",),
        ),
        ({"DockerRootDir": None, "DriverStatus": None}, ()),
    ],
)
def test_where_an_engine_keeps_images(info: dict[str, Any], directories: tuple[str, ...]) -> None:
    assert data_directories(info) == directories


async def test_the_list_outlives_the_agent_and_a_damaged_one_names_nothing(tmp_path: Path) -> None:
    now = 1000.0
    images = FetchedImages(tmp_path, lambda: now)
    images.fetched("a", "r/a:1")
    images.fetched("a", "r/a:2")
    images.used(["a", "not-fetched"])
    await images.save()
    again = FetchedImages(tmp_path)
    assert again.all() == {"a": FetchedImage("a", frozenset({"r/a:1", "r/a:2"}), 1000.0)}
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes().replace(b"r/a:1", b"r/b:1"))
    assert FetchedImages(tmp_path).all() == {}
