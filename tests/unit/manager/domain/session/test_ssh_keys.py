"""Public keys as users give them, and the certificates that are made of them."""

from __future__ import annotations

import base64
import subprocess
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    load_ssh_private_key,
    load_ssh_public_identity,
)
from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.domain.session.ssh_authority import SshAuthority, host_name, principal
from retinue.manager.domain.session.ssh_keys import SECURITY_KEYS, parse_public_key, readable_lines

if TYPE_CHECKING:
    from pathlib import Path

SESSION = uuid.UUID(int=7)


def line(key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey | rsa.RSAPublicKey | dsa.DSAPublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


ED25519 = line(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key())


def test_keys_that_are_taken() -> None:
    for text in (ED25519, line(ec.generate_private_key(ec.SECP256R1()).public_key())):
        parsed = parse_public_key(f" {text} me@home (laptop)\n")
        assert (parsed.line, parsed.comment) == (text, "me@home (laptop)")
    # As `ssh-keygen -l` prints it.
    assert parse_public_key(ED25519).fingerprint == "SHA256:tAXFyTXI8xtDaujAEcwJslAYc9/6FKcUkd2Lw0xDhPo"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh-ed25519",
        f"ssh-rsa {ED25519.split()[1]}",
        f'command="id" {ED25519}',
        f"{ED25519}\n{ED25519}",
        f"{ED25519} {'x' * 9000}",
        line(rsa.generate_private_key(65537, 2048).public_key()),
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
)
def test_keys_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|is not"):
        parse_public_key(text)


def security_key(*parts: bytes) -> str:
    """The base64 of a key in a device."""
    return base64.b64encode(b"".join(len(part).to_bytes(4) + part for part in parts)).decode()


POINT = ec.generate_private_key(ec.SECP256R1()).public_key()
POINT_BYTES = POINT.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
SK_ED25519, SK_ECDSA = SECURITY_KEYS


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (SK_ED25519, (SK_ED25519.encode(), bytes(32), b"ssh:")),
        (SK_ECDSA, (SK_ECDSA.encode(), b"nistp256", POINT_BYTES, b"ssh:laptop")),
    ],
)
def test_keys_in_devices(kind: str, parts: tuple[bytes, ...], tmp_path: Path) -> None:
    text = f"{kind} {security_key(*parts)}"
    parsed = parse_public_key(f"{text} token\n")
    assert (parsed.key, parsed.line, parsed.comment) == (None, text, "token")
    (tmp_path / "key.pub").write_text(f"{text}\n")
    ran = subprocess.run(
        ["/usr/bin/ssh-keygen", "-l", "-f", tmp_path / "key.pub"], check=True, capture_output=True, text=True
    )
    assert parsed.fingerprint in ran.stdout, "OpenSSH reads it, and calls it the same"


@pytest.mark.parametrize(
    ("kind", "encoded"),
    [
        (SK_ED25519, ""),
        (SK_ED25519, "AAAA"),
        (SK_ED25519, "AAAA!"),
        (SK_ED25519, security_key(SK_ED25519.encode(), bytes(32))),
        (SK_ED25519, security_key(SK_ED25519.encode(), bytes(31), b"ssh:")),
        (SK_ED25519, security_key(SK_ED25519.encode(), bytes(32), b"")),
        (SK_ED25519, security_key(SK_ED25519.encode(), bytes(32), b"ssh:\nx")),
        (SK_ED25519, security_key(SK_ED25519.encode(), bytes(32), b"\xff")),
        (SK_ED25519, security_key(SK_ED25519.encode(), bytes(32), b"s" * 257)),
        (SK_ED25519, security_key(SK_ED25519.encode(), b"nistp256", bytes(32), b"ssh:")),
        (SK_ED25519, security_key(SK_ECDSA.encode(), b"nistp256", POINT_BYTES, b"ssh:")),
        (SK_ECDSA, security_key(SK_ECDSA.encode(), b"nistp384", POINT_BYTES, b"ssh:")),
        (SK_ECDSA, security_key(SK_ECDSA.encode(), b"nistp256", b"\4" + bytes(64), b"ssh:")),
        (SK_ECDSA, security_key(SK_ECDSA.encode(), b"nistp256", POINT_BYTES, b"ssh:")[:-8]),
    ],
)
def test_keys_in_devices_that_are_refused(kind: str, encoded: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_public_key(f"{kind} {encoded}")


@given(
    st.text()
    | st.binary().map(lambda data: f"{SK_ED25519} {base64.b64encode(data).decode()}")
    | st.lists(st.binary()).map(lambda parts: f"{SK_ECDSA} {security_key(*parts)}")
    | st.binary().map(lambda data: f"ssh-ed25519 {data.hex()}")
)
def test_any_text_is_a_key_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert parse_public_key(text).fingerprint.startswith("SHA256:")


def read(text: str) -> SSHCertificate:
    found = load_ssh_public_identity(text.encode())
    assert isinstance(found, SSHCertificate)
    found.verify_cert_signature()
    return found


def test_certificates() -> None:
    authority = SshAuthority(b"a" * 32)
    key = parse_public_key(ED25519).key
    assert key is not None
    user = read(authority.certify(key, SESSION, "ann", 1000.0, 60.0))
    assert user.valid_principals == [principal(SESSION).encode()]
    assert (user.valid_after, user.valid_before) == (940, 1060)
    assert user.critical_options == {}
    assert not user.extensions
    host = authority.host(SESSION, 1)
    assert read(host.certificate).valid_principals == [host_name(SESSION).encode()]
    assert b"OPENSSH PRIVATE KEY" in host.key
    assert "PRIVATE" not in repr(host)
    assert public(SshAuthority(b"a" * 32), SESSION, 1) == public(authority, SESSION, 1)
    others = [(authority, SESSION, 2), (authority, uuid.UUID(int=8), 1), (SshAuthority(b"b" * 32), SESSION, 1)]
    assert len({public(authority, SESSION, 1), *(public(*other) for other in others)}) == 4


def public(authority: SshAuthority, session_id: uuid.UUID, epoch: int) -> bytes:
    key = load_ssh_private_key(authority.host(session_id, epoch).key, None)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def test_a_damaged_key_costs_no_other() -> None:
    sound = readable_lines([ED25519])
    assert len(sound) == 1
    damaged = ["", "x", "ssh-ed25519", "ssh-ed25519 A", f"x\n{ED25519}", f"{ED25519}\n{ED25519}", "\0", "\ud800"]
    assert readable_lines([*damaged, ED25519]) == sound
