"""Public keys of users in OpenSSH's format: which are taken, and what they are called. Pure."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LINE, MAX_COMMENT = 8192, 256
SHORTEST_RSA = 3072
_FIELDS = 2
SECURITY_KEYS = ("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com")
"""Types of keys that stay in a device, which has to be touched."""
_MAX_APPLICATION = 256

Key = Ed25519PublicKey | EllipticCurvePublicKey | RSAPublicKey


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key: the key itself, its line without comment, its fingerprint as OpenSSH prints it, and its comment.

    Of a key in a device, `key` is None: no certificate of it can be made here.
    """

    key: Key | None
    line: str
    fingerprint: str
    comment: str = ""


def parse_public_key(text: str) -> PublicKey:
    """Reads a line of OpenSSH's format, `TYPE BASE64 [COMMENT]`. Raises ValueError that says what is wrong,
    whatever the text.
    """
    line = text.strip()
    if len(line) > MAX_LINE or not line.isprintable():
        raise ValueError("must be one line of OpenSSH's format")
    fields = line.split(maxsplit=_FIELDS)
    comment = fields[_FIELDS][:MAX_COMMENT] if len(fields) > _FIELDS else ""
    if fields[:1] and fields[0] in SECURITY_KEYS:
        made = _security_key(fields[0], fields[1] if len(fields) > 1 else "")
        return PublicKey(None, made, fingerprint(made), comment)
    try:
        key = load_ssh_public_key(" ".join(fields[:_FIELDS]).encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("is not a public key in OpenSSH's format, as in a file id_ed25519.pub") from None
    if not isinstance(key, Key) or (isinstance(key, RSAPublicKey) and key.key_size < SHORTEST_RSA):
        raise ValueError(f"must be an Ed25519 or ECDSA key, or RSA of at least {SHORTEST_RSA} bits")
    made = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return PublicKey(key, made, fingerprint(made), comment)


def readable_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Returns those that are public keys, without comments: a damaged one could be more lines than one,
    with options of their own.
    """
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(parse_public_key(line).line)
    return tuple(found)


def _security_key(kind: str, text: str) -> str:
    """Returns the line of a key in a device: `TYPE BASE64` of its type, the key,
    and the application that it is for. Raises ValueError.
    """
    try:
        rest = base64.b64decode(text, validate=True)
        parts = []
        while rest:
            size = int.from_bytes(rest[:4])
            parts.append(rest[4 : 4 + size])
            if len(rest) < 4 + size:
                raise ValueError("it ends too early")
            rest = rest[4 + size :]
        named, *curve, point, application = parts
        if kind == SECURITY_KEYS[0]:
            Ed25519PublicKey.from_public_bytes(point)
            sound = not curve
        else:
            EllipticCurvePublicKey.from_encoded_point(SECP256R1(), point)
            sound = curve == [b"nistp256"]
        name = application.decode("ascii")
        if not sound or named != kind.encode() or not name.isprintable() or not 0 < len(name) <= _MAX_APPLICATION:
            raise ValueError("its parts are not those of its type")
    except ValueError:
        raise ValueError("is not a public key in OpenSSH's format, as in a file id_ed25519_sk.pub") from None
    return f"{kind} {base64.b64encode(base64.b64decode(text)).decode()}"


def fingerprint(line: str) -> str:
    """Returns `SHA256:…` of a key's line."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
