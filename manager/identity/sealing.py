"""Seals what others keep for the manager, in rows or in tokens: only holders of the key read it or make it."""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


class Sealer:
    """Seals contents by Fernet, with a key for each binding. Replicas that share a key open what each other sealed."""

    def __init__(self, key: bytes) -> None:
        """`key` has at least 32 bytes."""
        self._key = key

    def seal(self, content: bytes, binding: bytes = b"") -> bytes:
        """Returns URL-safe ASCII that opens for the same binding only; a second call returns something else."""
        return self._fernet(binding).encrypt(content)

    def open(self, sealed: bytes, binding: bytes = b"") -> bytes:
        """Returns the content. Raises ValueError on what was sealed otherwise, or changed in any character."""
        try:
            # Fernet ignores characters that are not base64, and the last bits of the last one:
            # only one spelling counts.
            if base64.urlsafe_b64encode(base64.urlsafe_b64decode(sealed)) == sealed:
                return self._fernet(binding).decrypt(sealed)
        except (ValueError, InvalidToken):
            pass
        raise ValueError("it was sealed with another key")

    def _fernet(self, binding: bytes) -> Fernet:
        key = HKDF(hashes.SHA256(), 32, salt=None, info=binding).derive(self._key)
        return Fernet(base64.urlsafe_b64encode(key))
