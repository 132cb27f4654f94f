"""A certificate authority of no one, as users may name one."""

from __future__ import annotations

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def authority() -> str:
    """Returns its certificate in PEM."""
    key, name = Ed25519PrivateKey.generate(), x509.Name([])
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin + dt.timedelta(days=1))
    return builder.sign(key, None).public_bytes(serialization.Encoding.PEM).decode()
