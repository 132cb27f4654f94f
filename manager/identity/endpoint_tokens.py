"""Tokens of endpoints: JSON Web Tokens signed with a key that comes of the authority's,
so that no key is stored and all managers have the same.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from retinue.manager.identity.own_certificate import OwnCertificate

if TYPE_CHECKING:
    import datetime as dt
    import uuid

    from retinue.manager.identity.authority import Authority

ISSUER = "retinue"
_PURPOSE = "endpoint tokens"


class EndpointTokenSigner:
    """Signs tokens."""

    def __init__(self, authority: Authority) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(authority.derive_key(_PURPOSE))

    @property
    def public_key(self) -> bytes:
        """Returns the key that tokens are checked with, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, endpoint_id: uuid.UUID, token_id: uuid.UUID, *, now: dt.datetime, expire_time: dt.datetime) -> str:
        """Returns a token for an endpoint; to be shown once."""
        claims = {
            "iss": ISSUER,
            "aud": str(endpoint_id),
            "jti": str(token_id),
            "iat": int(now.timestamp()),
            "exp": int(expire_time.timestamp()),
        }
        signed = f"{_part({'alg': 'EdDSA', 'typ': 'JWT'})}.{_part(claims)}"
        return f"{signed}.{_encoded(self._key.sign(signed.encode()))}"


def _part(value: dict[str, object]) -> str:
    return _encoded(json.dumps(value, separators=(",", ":")).encode())


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class EndpointDomain:
    """What endpoints are reached by: the domain of their host names, its certificate, and the key of tokens."""

    domain: str
    public_key: bytes
    own: OwnCertificate

    @classmethod
    def make(cls, authority: Authority, domain: str) -> EndpointDomain:
        """Returns a domain with a certificate of the authority."""
        own = OwnCertificate(authority, lambda: authority.issue_gateway(domain))
        return cls(domain, EndpointTokenSigner(authority).public_key, own)
