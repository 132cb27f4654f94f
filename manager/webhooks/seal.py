"""Seals secrets in rows with a key that is not in the database: a reader of rows learns nothing."""

from __future__ import annotations

import secrets

from retinue.manager.identity.sealing import Sealer

_sealer = Sealer(secrets.token_bytes(32))


def use_key(key: bytes) -> None:
    """Seals with a key of 32 bytes from now on, which every replica shares; until then, with one of this process."""
    global _sealer  # noqa: PLW0603  # set once, when the manager starts
    _sealer = Sealer(key)


def seal(text: str) -> bytes:
    """Returns a text as it is stored; nothing for an empty one."""
    return _sealer.seal(text.encode()) if text else b""


def unseal(sealed: bytes) -> str:
    """Returns the text that `seal` was given. Raises ValueError on what was sealed with another key."""
    return _sealer.open(sealed).decode() if sealed else ""
