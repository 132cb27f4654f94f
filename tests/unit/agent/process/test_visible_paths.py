"""Which paths of the node a process kernel sees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from retinue.agent.process.core.visible_paths import VisiblePaths, check_shown
from retinue.agent.process.root_layer import RootLayer, mount_points

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_hidden_comes_before_what_is_shown() -> None:
    visible = VisiblePaths.of(("/srv/data", "/srv/data/more", "/apps", "/usr/share"), ("/opt", "/srv/data/secret"))
    assert {"/srv/data", "/apps", "/usr", "/etc/ssl", "/etc/ld.so.cache"} <= set(visible.shown)
    assert "/opt" not in visible.shown
    # Beneath what is shown, they are shown where they are mounts of their own.
    assert {"/srv/data/more", "/usr/share", "/usr/local"} == set(visible.apart)
    assert "/srv/data/secret" in visible.hidden
    assert not set(VisiblePaths.of(("/a/b",), ("/a",)).shown) & {"/a", "/a/b"}


def test_neither_data_nor_logs_nor_settings_of_services_are_usual() -> None:
    shown = VisiblePaths.of((), ()).shown
    for path in ("/", "/etc", "/var", "/var/lib", "/var/log", "/srv", "/home", "/root", "/run", "/boot", "/data"):
        assert path not in shown
    for path in ("/etc/retinue", "/etc/cron.d", "/etc/fstab", "/etc/pip.conf", "/etc/environment", "/etc/sudoers"):
        assert not [one for one in shown if path == one or path.startswith(f"{one}/")]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/data/program", "--show PATH"),
        ("/var/log/x", "--show PATH"),
        ("/data//program/", "--show PATH"),
        ("/opt/hidden/x", "--hide"),
        # It may be there.
        ("program", ""),
        ("./program", ""),
        ("/usr/bin/../../data/x", ""),
        ("/usr/bin/python3", ""),
        ("/home/work/x", ""),
        ("/proc/x", ""),
        ("/mounted/x", ""),
        ("/etc", ""),
        ("/home", ""),
        ("/", ""),
        ("", ""),
    ],
)
def test_what_is_missing_says_what_shows_it(path: str, says: str) -> None:
    why = VisiblePaths.of((), ("/opt/hidden",)).why_missing(path, ("/mounted",))
    assert (says in why) if says else why == ""


@pytest.mark.parametrize("path", ["/", "relative", "/a/../b", "/proc", "/proc/x", "/home/work", "/dev"])
def test_what_cannot_be_shown(path: str) -> None:
    with pytest.raises(ValueError, match="--show"):
        check_shown([path])


def test_the_plan_follows_links_and_what_is_added(tmp_path: Path) -> None:
    (tmp_path / "real" / "secret").mkdir(parents=True)
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    layer = RootLayer(VisiblePaths((f"{tmp_path}/late", f"{tmp_path}/link"), (), (f"{tmp_path}/real/secret",)))
    plan = layer.plan()
    # What a link leads to is not visible itself: it takes the link's place, without what is hidden.
    assert [(one.inside, one.real, one.directory, one.link) for one in plan.shown] == [
        (f"{tmp_path}/link".lstrip("/"), f"{tmp_path}/real", True, "")
    ]
    assert plan.hidden == (f"{tmp_path}/link/secret".lstrip("/"),)
    assert layer.plan() is plan
    (tmp_path / "late").symlink_to("link/file")
    os.utime(tmp_path, ns=(1, 1))
    assert next((one.real, one.directory) for one in layer.plan().shown) == (f"{tmp_path}/real/file", False)
    both = RootLayer(VisiblePaths((f"{tmp_path}/link", f"{tmp_path}/real")))
    assert [one.link for one in both.plan().shown] == ["real", ""]


def test_mounts_are_read_whatever_their_names() -> None:
    line = "36 35 8:1 / {} rw - {} /dev/x rw\n"
    text = line.format("/a\\040b\\134", "ext4") + line.format("/ü", "nfs4") + line.format("/ü", "nsfs")
    assert mount_points(text.encode()) == {"/a b\\": "ext4", "/ü": "nsfs"}
