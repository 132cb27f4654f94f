"""The authority for SFTP: certificates of users and of hosts, and the keys of hosts.
Pure, but for the random numbers in certificates.

As with the keys between kernels, nothing is stored: all keys follow from one of the installation,
so that every replica has the same.
"""

from __future__ import annotations

import functools
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    SSHCertificateBuilder,
    SSHCertificateType,
)

if TYPE_CHECKING:
    import uuid

    from retinue.manager.domain.session.ssh_keys import Key

FOR_EVER = 2**64 - 1
# Clocks of nodes may be behind.
_EARLIER_SECONDS = 60
_KNOWN_HOSTS = 4096


@dataclass(frozen=True, slots=True)
class Host:
    """The identity of a session's SFTP servers: the private key in OpenSSH's format,
    its public half and a certificate of it as lines.
    """

    key: bytes = field(repr=False)
    public_line: str
    certificate: str


class SshAuthority:
    """Signs certificates with a key of the installation."""

    def __init__(self, key: bytes) -> None:
        """`key` is the installation's, for this purpose only."""
        self._key = key
        self._authority = self._derive("authority")
        self.public_line = _line(self._authority)
        self.host = functools.lru_cache(_KNOWN_HOSTS)(self._host)

    def known_hosts(self, session_id: uuid.UUID) -> str:
        """Returns the line of a file of known hosts by which clients recognise the servers of a session."""
        return f"@cert-authority {host_name(session_id)} {self.public_line}"

    def certify(self, key: Key, session_id: uuid.UUID, user: str, now: float, seconds: float) -> str:
        """Returns a certificate that lets a user in to the SFTP servers of a session from `now` on,
        in seconds since 1970, for so long.
        """
        builder = (
            SSHCertificateBuilder()
            .public_key(key)
            .serial(secrets.randbits(63))
            .type(SSHCertificateType.USER)
            .key_id(user.encode())
            .valid_principals([principal(session_id).encode()])
            .valid_after(int(now) - _EARLIER_SECONDS)
            .valid_before(int(now + seconds))
        )
        return builder.sign(self._authority).public_bytes().decode()

    def _host(self, session_id: uuid.UUID, epoch: int) -> Host:
        """Returns the identity of the servers of a session's placement;
        a session that is placed again has another key.
        """
        key = self._derive(f"host {session_id}.{epoch}")
        builder = (
            SSHCertificateBuilder()
            .public_key(key.public_key())
            .serial(epoch)
            .type(SSHCertificateType.HOST)
            .key_id(str(session_id).encode())
            .valid_principals([host_name(session_id).encode()])
            .valid_after(0)
            .valid_before(FOR_EVER)
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        return Host(private, _line(key), builder.sign(self._authority).public_bytes().decode())

    def _derive(self, purpose: str) -> Ed25519PrivateKey:
        seed = HKDF(hashes.SHA256(), 32, salt=None, info=purpose.encode()).derive(self._key)
        return Ed25519PrivateKey.from_private_bytes(seed)


def principal(session_id: uuid.UUID) -> str:
    """Returns what certificates for a session have to name."""
    return f"sftp:{session_id}"


def host_name(session_id: uuid.UUID) -> str:
    """Returns the name that a session's servers are certified for."""
    return f"{session_id}.sftp.retinue"


def _line(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
