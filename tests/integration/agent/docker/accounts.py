"""An image that has users of its own, and what each kind of kernel finds that runs as one of them."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.agent.docker.engine import TestEngine

SCRIPT = """
id -u; id -g; id -G | tr ' ' '\\n' | sort -nu | tr '\\n' ' '; echo
id -un; echo "$HOME $FROM_IMAGE"; pwd
echo written > ~/file && stat -c '%u:%g' ~/file ~
touch /own/file && echo owns
touch /any/file && echo shares
"""
FOUND = ["1234", "99", "0 6 44 99 ", "app", "/home/work yes", "/home/work", "1234:99", "1234:99", "owns", "shares"]
"""The lines that the script prints as the user `app`."""
USERS = b"root:x:0:0::/root:/bin/sh\napp:x:1234:99::/app:/bin/sh\ntoor:x:0:0::/:/bin/sh\n"
GROUPS = b"root:x:0:app\ndisk:x:6:app\nweb:x:99:\nvideo:x:44:app\n"


def make_image(engine: TestEngine, name: str, user: str) -> None:
    """Makes an image of that name that runs as `user`, with directories of its user and of the group of root."""
    own, shared = tarfile.TarInfo("own"), tarfile.TarInfo("any")
    own.type, own.mode, own.uid, own.gid = tarfile.DIRTYPE, 0o700, 1234, 99
    shared.type, shared.mode = tarfile.DIRTYPE, 0o775
    engine.make_image(
        name,
        changes=[f"USER {user}", "ENV FROM_IMAGE=yes", "ENV HOME=/app"],
        entries=(own, shared),
        files={"etc/passwd": USERS, "etc/group": GROUPS},
    )
