"""Bearer secrets: random, recognisable by their prefix, known to the manager by their hash only.

A secret has 256 random bits, so a plain SHA-256 is enough: there is nothing to guess. Secrets are looked up by their
hash; how long that takes says nothing about the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

TOKEN_PREFIX = "rtn_"  # noqa: S105  # how secrets begin, none itself
JOIN_TOKEN_PREFIX = "rtj_"  # noqa: S105  # the same
CONSOLE_TICKET_PREFIX = "rtc_"
MAX_TOKENS = 200
"""Valid tokens of a user."""
_BYTES = 32
_BODY = re.compile(r"[A-Za-z0-9_-]{43}")


def new_secret(prefix: str) -> str:
    """A new secret: the prefix and 43 characters."""
    return prefix + secrets.token_urlsafe(_BYTES)


def is_secret(text: str, prefix: str) -> bool:
    """Returns whether a text has the form of a secret; for anything else the database need not be read."""
    return text.startswith(prefix) and _BODY.fullmatch(text, len(prefix)) is not None


def hash_secret(secret: str) -> bytes:
    """Returns the hash of a secret, which is all that is stored of it."""
    return hashlib.sha256(secret.encode()).digest()


def same_hash(first: bytes, second: bytes) -> bool:
    """Returns whether two hashes are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(first, second)
