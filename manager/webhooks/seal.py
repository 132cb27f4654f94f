"""Secrets that are kept in rows: sealed with a key that is not in the database, so that who reads rows reads nothing."""

from __future__ import annotations

import os
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12
_key = secrets.token_bytes(32)


def use_key(key: bytes) -> None:
    """Every replica uses the same key of 32 bytes; without it, each its own."""
    global _key  # noqa: PLW0603  # set once, when the manager starts
    _key = key


def seal(text: str) -> bytes:
    """A text as it is kept; an empty one is kept as nothing."""
    if not text:
        return b""
    nonce = os.urandom(_NONCE)
    return nonce + AESGCM(_key).encrypt(nonce, text.encode(), None)


def unseal(sealed: bytes) -> str:
    """The inverse of `seal`. Raises ValueError on what was sealed with another key."""
    if not sealed:
        return ""
    try:
        return AESGCM(_key).decrypt(sealed[:_NONCE], sealed[_NONCE:], None).decode()
    except InvalidTag:
        raise ValueError("it was sealed with another key") from None
