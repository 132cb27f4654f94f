"""The directories of nodes that a session may mount, and their paths inside: pure checks of a request,
and of what a resource group grants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from retinue.manager.domain.session.spec import MountSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_MOUNTS, MAX_ROOTS, MAX_PROJECTS = 32, 64, 256
MAX_PATH = 1024
MAX_ID = 2**31 - 1
"""The largest number of a user and a group that files may belong to."""
# Parts of paths that stand for the owner and the project of a session.
USER, PROJECT = "{user}", "{project}"

# What a kernel is made of: nothing may be mounted within these, nor over anything they lie in.
_RESERVED_TARGETS = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home/work/.ssh",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr/bin",
    "/usr/lib",
    "/usr/local/bin",
    "/usr/sbin",
    "/var/run",
)
# These may not be hidden as a whole.
_WHOLE_TARGETS = frozenset({"/tmp", "/root"})  # noqa: S108
# No root may lie within these: they are the node's own. Nor may it be `/`.
_NODES_OWN = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var/run")

Violations = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class FileOwner:
    """Numbers on the nodes of a user and a group that files belong to; neither is root's."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class MountRoot:
    """A directory that sessions may mount, with all below it; no `projects` means every project.

    Files in it belong to `uid` and `gid`; 0 means the agents' own. With `of_account` they belong to those of the
    session owner's account, as far as they are 0.
    """

    path: str
    writable: bool = False
    projects: tuple[str, ...] = ()
    of_account: bool = False
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class NotGranted:
    """A mount that no root grants; or, with `without_owner`, one whose root takes numbers that the session owner's
    account does not have.
    """

    mount: MountSpec
    without_owner: bool = False


def check_mounts(mounts: Sequence[MountSpec], path: str, violations: Violations) -> None:
    """Checks the mounts of a request, whatever is granted; `path` is that of their field."""
    if len(mounts) > MAX_MOUNTS:
        violations.append((path, f"must be at most {MAX_MOUNTS} entries"))
        return
    targets: list[PurePosixPath] = []
    for position, mount in enumerate(mounts):
        if not _is_path(mount.source):
            violations.append((f"{path}[{position}].source", f"must be an absolute path of at most {MAX_PATH} bytes"))
        field = f"{path}[{position}].target"
        if not _is_path(mount.target) or not _is_plain(mount.target):
            violations.append(
                (field, f"must be an absolute path of at most {MAX_PATH} bytes without `.`, `..` and `//`")
            )
            continue
        target = PurePosixPath(mount.target)
        if _touches(target, _RESERVED_TARGETS) or mount.target in _WHOLE_TARGETS:
            violations.append((field, "is a place of the kernel's own"))
        if any(target.is_relative_to(other) or other.is_relative_to(target) for other in targets):
            violations.append((field, "is the target of another mount, or lies in one, or around one"))
        targets.append(target)


def check_roots(roots: Sequence[MountRoot], path: str, violations: Violations) -> None:
    """Checks the roots of a resource group; `path` is that of their field."""
    if len(roots) > MAX_ROOTS:
        violations.append((path, f"must be at most {MAX_ROOTS} entries"))
        return
    for position, root in enumerate(roots):
        field = f"{path}[{position}]"
        if not _is_path(root.path) or not _is_plain(root.path):
            violations.append(
                (f"{field}.path", f"must be an absolute path of at most {MAX_PATH} bytes without `.`, `..` and `//`")
            )
        elif any(("{" in part or "}" in part) and part not in {USER, PROJECT} for part in root.path.split("/")):
            violations.append((f"{field}.path", f"has braces, which are for parts that are {USER} or {PROJECT}"))
        elif root.path == "/" or _within(PurePosixPath(root.path), _NODES_OWN):
            violations.append((f"{field}.path", "is the node's own"))
        if len(root.projects) > MAX_PROJECTS:
            violations.append((f"{field}.projects", f"must be at most {MAX_PROJECTS} entries"))
        _check_owner(root, f"{field}.owner", violations)


def check_file_owner(owner: FileOwner, path: str, violations: Violations) -> None:
    """Checks the numbers of an account; `path` is that of their field."""
    for name, number in (("uid", owner.uid), ("gid", owner.gid)):
        _check_number(number, f"{path}.{name}", violations)


def _check_owner(root: MountRoot, path: str, violations: Violations) -> None:
    if root.of_account:
        if root.uid:
            violations.append((f"{path}.uid", "is that of the account already"))
        if root.gid:
            _check_number(root.gid, f"{path}.gid", violations)
    elif root.uid or root.gid:
        check_file_owner(FileOwner(root.uid, root.gid), path, violations)


def _check_number(number: int, path: str, violations: Violations) -> None:
    if not 1 <= number <= MAX_ID:
        violations.append((path, f"must be from 1 to {MAX_ID}: nothing in a mount is root's"))


def granted(
    mounts: Iterable[MountSpec], roots: Iterable[MountRoot], project: str, owner: str, account: FileOwner | None
) -> list[MountSpec] | NotGranted:
    """Returns the mounts, each with the innermost root that grants it to the project and owner, and with whom its files
    belong to; or the first one that no root grants. `account` has the numbers of the owner's account.

    `{user}` and `{project}` as parts of paths stand for these.
    """
    names = {USER: owner, PROJECT: project}
    known = [replace(root, path=_filled(root.path, names)) for root in roots]
    found = []
    for mount in (replace(mount, source=_filled(mount.source, names)) for mount in mounts):
        fitting = [
            root
            for root in known
            if (not root.projects or project in root.projects)
            and (root.writable or not mount.writable)
            and _is_plain(mount.source)
            and PurePosixPath(mount.source).is_relative_to(root.path)
        ]
        if not fitting:
            return NotGranted(mount)
        root = max(fitting, key=lambda root: len(root.path))
        if (files := _files_of(root, account)) is None:
            return NotGranted(mount, without_owner=True)
        found.append(replace(mount, root=root.path, uid=files.uid, gid=files.gid))
    return found


def _files_of(root: MountRoot, account: FileOwner | None) -> FileOwner | None:
    """Returns whom files in a root belong to, with 0 for the agents' own; None where the account has no numbers."""
    if not root.of_account:
        return FileOwner(root.uid, root.gid)
    return None if account is None else FileOwner(account.uid, root.gid or account.gid)


def _filled(path: str, names: Mapping[str, str]) -> str:
    return "/".join(names.get(part, part) for part in path.split("/"))


def _is_path(text: str) -> bool:
    return text.startswith("/") and "\0" not in text and len(text.encode(errors="replace")) <= MAX_PATH


def _is_plain(path: str) -> bool:
    """Returns whether a path can be read in only one way."""
    return path == "/" or all(part not in {"", ".", ".."} for part in path[1:].split("/"))


def _within(path: PurePosixPath, others: Iterable[str]) -> bool:
    return any(path.is_relative_to(other) for other in others)


def _touches(path: PurePosixPath, others: Iterable[str]) -> bool:
    return any(path.is_relative_to(other) or PurePosixPath(other).is_relative_to(path) for other in others)
