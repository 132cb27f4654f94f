"""A directory of the node with files of several of its users and groups, and what a kernel finds there that has nothing
of theirs, whatever its image names.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from retinue.agent.attempts import Owner

if TYPE_CHECKING:
    from pathlib import Path

OWNER = Owner(60_000, 60_000)
FILES = (
    ("group-root", 0, 0, 0o640),
    ("group-disk", 0, 6, 0o640),
    ("group-web", 0, 99, 0o640),
    ("user-app", 1234, 1234, 0o600),
    ("open", 1234, 6, 0o666),
)
SCRIPT = """
cat /data/* 2>/dev/null
stat -c %u:%g /data/own | grep -qx "$(id -u):$(id -g)" && echo own
echo more >>/data/open && echo >/data/new && mkdir /data/kept && echo wrote
chmod 600 /data/new && stat -c %u /data/group-root
"""
FOUND = ["open", "own", "own", "wrote", "0"]
"""The lines that the script prints in a kernel that has them at /data."""


def make_files(root: Path, owner: Owner = OWNER) -> Path:
    """Makes the files, one of them the owner's, in a directory that any user may write to."""
    root.chmod(0o777)
    for name, uid, gid, mode in (*FILES, ("own", owner.uid, owner.gid, 0o600)):
        (root / name).write_text(f"{name}\n")
        os.chown(root / name, uid, gid)
        (root / name).chmod(mode)
    return root


def made_by(root: Path) -> set[Owner]:
    """Returns whom the files belong to that the script made."""
    found = [(root / name).stat() for name in ("new", "kept")]
    return {Owner(status.st_uid, status.st_gid) for status in found}
