"""Secrets of sessions: nothing of them is stored, because they follow from a key of the installation. Pure."""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from retinue.manager.domain.session.ssh_authority import SshAuthority

SECRET_BYTES = 32


class SessionSecrets:
    """Derives one secret for each placement of each session; every replica of the manager derives the same."""

    def __init__(self, key: bytes) -> None:
        """`key` is the installation's, for this purpose only."""
        self._key = key
        # No session has this name.
        self.ssh = SshAuthority(self.of("ssh", 0))

    def of(self, session_id: object, epoch: int) -> bytes:
        """Returns the secret of a session's kernels in their attempts of an epoch;
        a session that is placed again has another.
        """
        info = f"{session_id}.{epoch}".encode()
        return HKDF(hashes.SHA256(), SECRET_BYTES, salt=None, info=info).derive(self._key)
