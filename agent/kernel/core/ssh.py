"""Keys and configuration by which the kernels of a session reach each other over ssh. Pure.

All of it follows from one secret of the session, so that every node makes the same without communication: a host key
that all kernels of the session show, and a key that opens them. Nothing outside of the session is reached with either.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from retinue.agent.kernel.core.accounts import ACCOUNT
from retinue.agent.kernel.paths import FILES, PROGRAMS, SERVER

if TYPE_CHECKING:
    from collections.abc import Sequence

PORT = 2200
"""Port of the servers: kernels have no capability to listen below 1024."""
HOST_KEY, IDENTITY, KNOWN_HOSTS, CONFIG = "host_key", "id_ed25519", "known_hosts", "ssh_config"
_KEY_TYPE = b"ssh-ed25519"


@dataclass(frozen=True, slots=True)
class SshFiles:
    """The ssh files of a kernel: private keys for its user only, the rest readable by all. Texts end in a newline."""

    host_key: bytes = field(repr=False)
    identity: bytes = field(repr=False)
    known_hosts: str
    config: str
    authorized_keys: str


def ssh_files(secret: bytes, names: Sequence[str]) -> SshFiles:
    """Returns the files of a session with that secret, whose kernels have these host names."""
    host, user = _key(secret, b"host"), _key(secret, b"user")
    line = _public_line(host)
    return SshFiles(
        host_key=_dropbear_key(host),
        identity=user.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        known_hosts="".join(f"[{name}]:{PORT} {line}\n" for name in names),
        config=_config(names),
        authorized_keys=f"{_public_line(user)}\n",
    )


def host_names(hosts: str) -> list[str]:
    """Returns the names of kernels in the text of an /etc/hosts: the first of each line but those of the loopback."""
    lines = [line.split() for line in hosts.splitlines()]
    return [words[1] for words in lines if len(words) > 1 and words[1] != "localhost"]


def server_command(hostname: str) -> list[str]:
    """Returns the argument vector of the server: in the foreground, on the address of `hostname` and no other."""
    # With `-e`, sessions have the environment of the server, which is that of the kernel's command.
    return [f"{PROGRAMS}/{SERVER}", "-F", "-e", "-m", "-r", f"{FILES}/{HOST_KEY}", "-p", f"{hostname}:{PORT}"]


def _config(names: Sequence[str]) -> str:
    """Returns the configuration for clients, for these hosts only: it asks no questions, and trusts no unknown host."""
    return f"""Host {" ".join(names)}
    Port {PORT}
    User {ACCOUNT}
    IdentityFile {FILES}/{IDENTITY}
    IdentitiesOnly yes
    GlobalKnownHostsFile {FILES}/{KNOWN_HOSTS}
    StrictHostKeyChecking yes
    ConnectionAttempts 5
    HostKeyAlgorithms ssh-ed25519
    UpdateHostKeys no
    PasswordAuthentication no
    LogLevel ERROR
"""


def _key(secret: bytes, purpose: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(HKDF(hashes.SHA256(), 32, salt=None, info=purpose).derive(secret))


def _public_line(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _dropbear_key(key: Ed25519PrivateKey) -> bytes:
    """Returns a key in the format of Dropbear: the type, then the private and the public half as one string."""
    private = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return b"".join(struct.pack(">I", len(part)) + part for part in (_KEY_TYPE, private + public))
