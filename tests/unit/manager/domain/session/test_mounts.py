"""What a session may mount."""

from __future__ import annotations

import pytest

from retinue.manager.domain.session.mounts import (
    MAX_ID,
    FileOwner,
    MountRoot,
    NotGranted,
    check_mounts,
    check_roots,
    granted,
)
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.domain.session.spec import MountSpec

ROOTS = [
    MountRoot("/data"),
    MountRoot("/data/team", writable=True, projects=("p",)),
    MountRoot("/scratch", writable=True),
]


def wrong(*mounts: MountSpec) -> list[str]:
    violations: list[tuple[str, str]] = []
    check_mounts(mounts, "m", violations)
    return [path for path, _ in violations]


REFUSED = [
    "/",
    "/proc",
    "/proc/1",
    "/sys/fs/cgroup",
    "/dev/shm",  # noqa: S108  # a path to be refused, nothing is written there
    "/etc/passwd",
    "/etc",
    "/usr",
    "/home",
    "/home/work",
    "/home/work/.ssh",
    "/run/kernel/bin",
    "/run",
    "relative",
    "/a/../b",
    "/a//b",
    "/a/",
    "/tmp",  # noqa: S108  # the same
]


@pytest.mark.attack("targets-of-mounts")
@pytest.mark.parametrize("target", [*REFUSED, "", "/a\0", "/" + "a" * 1024])
def test_targets_that_are_refused(target: str) -> None:
    assert wrong(MountSpec("/data", target)) == ["m[0].target"]


@pytest.mark.parametrize("target", ["/data", "/home/work/data", "/mnt/x", "/opt", "/opt/tool", "/usr/share/x"])
def test_targets_that_are_taken(target: str) -> None:
    assert not wrong(MountSpec("/data", target))


@pytest.mark.attack("targets-of-mounts")
def test_targets_lie_apart() -> None:
    assert wrong(MountSpec("/data", "/x"), MountSpec("/b", "/x")) == ["m[1].target"]
    assert wrong(MountSpec("/data", "/x/y"), MountSpec("/b", "/x")) == ["m[1].target"]
    assert not wrong(MountSpec("/data", "/x"), MountSpec("/data", "/xy"))


def test_too_many_and_no_path() -> None:
    assert wrong(*[MountSpec("/data", f"/x{number}") for number in range(33)]) == ["m"]
    assert wrong(MountSpec("data", "/x")) == ["m[0].source"]


@pytest.mark.attack("forbidden-mounts", "files-of-others-in-a-mount")
@pytest.mark.parametrize(
    ("source", "writable", "project", "root"),
    [
        ("/data", False, "q", "/data"),
        ("/data/team/x", False, "q", "/data"),
        ("/data/team/x", True, "p", "/data/team"),
        ("/data/team/x", False, "p", "/data/team"),
        ("/data/team/x", True, "q", None),
        ("/data", True, "p", None),
        ("/database", False, "p", None),
        ("/data/../etc", False, "p", None),
        ("/data//x", False, "p", None),
        ("/", False, "p", None),
        ("/etc", False, "p", None),
        ("/var/run/docker.sock", False, "p", None),
        ("/scratch/a", True, "q", "/scratch"),
    ],
)
def test_grants(source: str, writable: bool, project: str, root: str | None) -> None:
    mount = MountSpec(source, "/x", writable)
    found = granted([mount], ROOTS, project, "ann", None)
    if root is None:
        assert found == NotGranted(mount)
    else:
        assert isinstance(found, list)
        assert found[0].root == root
        assert f"{root}/{found[0].below_root}".rstrip("/") == source


ANN = FileOwner(1500, 1501)
OWNED = [
    MountRoot("/plain"),
    MountRoot("/fixed", uid=70, gid=71),
    MountRoot("/home/{user}", writable=True, of_account=True),
    MountRoot("/home/{user}/shared", of_account=True, gid=99),
]


@pytest.mark.parametrize(
    ("source", "account", "numbers"),
    [
        ("/plain/x", ANN, (0, 0)),
        ("/fixed", ANN, (70, 71)),
        ("/fixed", None, (70, 71)),
        ("/home/ann/x", ANN, (1500, 1501)),
        ("/home/{user}/shared/x", ANN, (1500, 99)),
        ("/home/ann/x", None, None),
        ("/home/ann/shared", None, None),
    ],
)
def test_whom_files_belong_to(source: str, account: FileOwner | None, numbers: tuple[int, int] | None) -> None:
    found = granted([MountSpec(source, "/x")], OWNED, "p", "ann", account)
    if numbers is None:
        assert isinstance(found, NotGranted)
        assert found.without_owner
    else:
        assert isinstance(found, list)
        assert (found[0].uid, found[0].gid) == numbers


@pytest.mark.parametrize(
    ("root", "fields"),
    [
        (MountRoot("/d", uid=1, gid=MAX_ID), []),
        (MountRoot("/d", of_account=True, gid=5), []),
        (MountRoot("/d", uid=5), ["gid"]),
        (MountRoot("/d", gid=5), ["uid"]),
        (MountRoot("/d", uid=-1, gid=-1), ["uid", "gid"]),
        (MountRoot("/d", of_account=True, uid=5), ["uid"]),
        (MountRoot("/d", of_account=True, gid=-5), ["gid"]),
    ],
)
def test_owners_of_roots(root: MountRoot, fields: list[str]) -> None:
    violations: list[tuple[str, str]] = []
    check_roots([root], "r", violations)
    assert [field for field, _ in violations] == [f"r[0].owner.{field}" for field in fields]


@pytest.mark.parametrize("path", ["/", "/etc", "/proc/1", "/run", "x", "", "/a/../b", "/sys"])
def test_roots_that_are_refused(path: str) -> None:
    violations: list[tuple[str, str]] = []
    check_roots([MountRoot("/data"), MountRoot(path)], "r", violations)
    assert [field for field, _ in violations] == ["r[1].path"]


@pytest.mark.attack("keys-of-others")
def test_secrets_differ_by_key_session_and_attempt() -> None:
    one = SessionSecrets(b"a" * 32)
    assert one.of("s", 1) == SessionSecrets(b"a" * 32).of("s", 1)
    assert len({one.of("s", 1), one.of("s", 2), one.of("t", 1), SessionSecrets(b"b" * 32).of("s", 1)}) == 4
