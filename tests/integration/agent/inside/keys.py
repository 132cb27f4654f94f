"""The keys of a session, in every form in which they might be written down somewhere."""

from __future__ import annotations

import base64
import datetime as dt
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.kernel.core.ssh import ssh_files
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.identity.authority import Authority

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from retinue.agent.kernel.core.ssh import SshFiles
    from retinue.client.aio import Session
    from retinue.devtools.cluster import Cluster

# Bytes of what `st_blocks` counts.
_BLOCK = 512


class Keys:
    """What must be nowhere but in the kernels of a session."""

    def __init__(self, cluster: Cluster, session: Session) -> None:
        """Works them out of the manager's own key, as the manager does. Blocks."""
        (authority_key,) = cluster.directory.rglob("ca.key")
        authority = Authority.load(authority_key.parent, lambda: dt.datetime.now(dt.UTC))
        secret = SessionSecrets(authority.derive_key("sessions")).of(session.id, 1)
        self.files: SshFiles = ssh_files(secret, [kernel.hostname for kernel in session.kernels])
        private = self.files.host_key[-64:-32]
        self._forms = [secret, private, self.files.identity.splitlines()[3]]
        self._forms += [form for key in (secret, private) for form in (key.hex().encode(), base64.b64encode(key))]

    def are_in(self, content: bytes) -> bool:
        """Whether one of them is there."""
        return any(form in content for form in self._forms)

    def found(self, *directories: Path) -> list[str]:
        """Files beneath the directories, and environments and arguments of all processes, that hold one. Blocks."""
        places = [path for directory in directories for path in directory.rglob("*")]
        places = [path for path in places if path.is_file() and not path.is_symlink()]
        places += [path for name in ("environ", "cmdline") for path in Path("/proc").glob(f"[0-9]*/{name}")]
        return [str(path) for path in places if self.are_in(_content(path))]


def host_keys(files: Iterable[Path]) -> set[bytes]:
    """What the files hold; those that are not there are left out, as others may have kernels too, which come and go."""
    return {content for path in files if (content := _content(path))}


def _content(path: Path) -> bytes:
    """Returns what a file holds, without its holes: that of a file system is as large as a disk."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_blocks * _BLOCK >= status.st_size:
                return file.read()
            return b"".join(_parts(file.fileno()))
    except OSError:
        return b""


def _parts(descriptor: int) -> Iterator[bytes]:
    offset = 0
    while True:
        try:
            begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            # Nothing but a hole is left.
            if error.errno == errno.ENXIO:
                return
            raise
        offset = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield os.pread(descriptor, offset - begin, begin)
