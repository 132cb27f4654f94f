"""Certificates and secrets: who is named, for how long, and who cannot be."""

from __future__ import annotations

import datetime as dt
import stat
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from retinue.manager.domain.errors import CredentialsMissing
from retinue.manager.identity.authority import Authority, BadCertificateRequest
from retinue.manager.identity.principal import Kind
from retinue.manager.identity.tokens import (
    JOIN_TOKEN_PREFIX,
    TOKEN_PREFIX,
    hash_secret,
    is_secret,
    new_secret,
    same_hash,
)
from retinue.manager.server.authentication import bearer_of, node_of

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def authority(directory: Path) -> Authority:
    return Authority.load(directory, lambda: NOW)


def certificate_request(key: PrivateKey, *extensions: x509.ExtensionType, name: str = "me") -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM).decode()


def names_of(certificate: x509.Certificate) -> tuple[list[str], list[str], list[str]]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return (
        names.get_values_for_type(x509.DNSName),
        names.get_values_for_type(x509.UniformResourceIdentifier),
        addresses,
    )


def test_the_authority_is_made_once_and_kept_for_its_owner(tmp_path: Path) -> None:
    first, second = authority(tmp_path), authority(tmp_path)
    assert first.fingerprint == second.fingerprint
    assert first.derive_key("a") == second.derive_key("a") != first.derive_key("b")
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"ca.key", "ca.pem"}
    loaded = x509.load_pem_x509_certificate(first.certificate)
    assert loaded.fingerprint(hashes.SHA256()).hex() == first.fingerprint
    assert loaded.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_crash_between_key_and_certificate_is_mended(tmp_path: Path) -> None:
    authority(tmp_path)
    (tmp_path / "ca.pem").unlink()
    mended = authority(tmp_path)
    assert mended.fingerprint == authority(tmp_path).fingerprint


@pytest.mark.attack("greedy-certificates")
def test_an_agent_gets_its_own_names_whatever_it_asks_for(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    greedy = certificate_request(
        key,
        x509.SubjectAlternativeName(
            [
                x509.DNSName("manager.retinue"),
                x509.UniformResourceIdentifier("spiffe://retinue/manager"),
                x509.UniformResourceIdentifier("spiffe://retinue/agent/other"),
            ]
        ),
        x509.BasicConstraints(ca=True, path_length=5),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]),
        name="manager.retinue",
    )
    issued = authority(tmp_path).issue_node(Kind.AGENT, "n1", 7, greedy)
    certificate = x509.load_pem_x509_certificate(issued.certificate)
    assert names_of(certificate) == (["n1.agent.retinue"], ["spiffe://retinue/agent/n1/7"], [])
    assert certificate.subject.rfc4514_string() == "CN=n1"
    assert certificate.public_key() == key.public_key()
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == {
        ExtendedKeyUsageOID.SERVER_AUTH,
        ExtendedKeyUsageOID.CLIENT_AUTH,
    }
    assert certificate.not_valid_after_utc == issued.expire_time == NOW + dt.timedelta(hours=24)
    ca = x509.load_pem_x509_certificate(authority(tmp_path).certificate)
    certificate.verify_directly_issued_by(ca)


def test_the_managers_certificates(tmp_path: Path) -> None:
    made = authority(tmp_path)
    server = x509.load_pem_x509_certificate(made.issue_server(["cp.example", "10.1.2.3", "localhost"]).certificate)
    assert names_of(server) == (["manager.retinue", "localhost", "cp.example"], [], ["127.0.0.1", "::1", "10.1.2.3"])
    client = x509.load_pem_x509_certificate(made.issue_manager_client().certificate)
    assert names_of(client) == ([], ["spiffe://retinue/manager"], [])
    assert list(client.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]


def test_good_keys(tmp_path: Path) -> None:
    made = authority(tmp_path)
    for key in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)):
        assert made.issue_node(Kind.AGENT, "n1", 7, certificate_request(key)).certificate


def broken_signature() -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    der = bytearray(x509.load_pem_x509_csr(certificate_request(key).encode()).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    return x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.attack("greedy-certificates")
@pytest.mark.parametrize(
    "request_text",
    [
        "",
        "x",
        "é",
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        "A" * 20_000,
        certificate_request(rsa.generate_private_key(65537, 1024)),  # noqa: S505  # to be refused
        certificate_request(ec.generate_private_key(ec.SECP521R1())),
        certificate_request(ed25519.Ed25519PrivateKey.generate()),
        broken_signature(),
    ],
    ids=["empty", "letter", "accent", "nonsense", "long", "rsa1024", "p521", "ed25519", "signature"],
)
def test_bad_certificate_requests(tmp_path: Path, request_text: str) -> None:
    with pytest.raises(BadCertificateRequest):
        authority(tmp_path).issue_node(Kind.AGENT, "n1", 7, request_text)


@pytest.mark.attack("timing-of-tokens")
def test_secrets() -> None:
    first, second = new_secret(TOKEN_PREFIX), new_secret(TOKEN_PREFIX)
    assert first != second
    assert is_secret(first, TOKEN_PREFIX)
    assert not is_secret(first, JOIN_TOKEN_PREFIX)
    assert same_hash(hash_secret(first), hash_secret(first))
    assert not same_hash(hash_secret(first), hash_secret(second))
    for bad in ("", TOKEN_PREFIX, first + "x", first[:-1], first + "\n", first.replace(first[-1], "é"), "x" * 10**6):
        assert not is_secret(bad, TOKEN_PREFIX)


def test_which_agent_a_certificate_names() -> None:
    key = "x509_subject_alternative_name"
    assert node_of({}) is None
    assert node_of({key: [b"n1.agent.retinue", b"spiffe://retinue/agent/n1/12"]}) == (Kind.AGENT, "n1", 12)
    assert node_of({key: [b"spiffe://retinue/router/r1/3"]}) == (Kind.ROUTER, "r1", 3)
    assert node_of({key: [b"spiffe://retinue/agent/n1"]}) == (Kind.AGENT, "n1", 0)
    assert node_of({key: [b"spiffe://retinue/agent/n1/-1", b"spiffe://retinue/agent/n1/1/2"]}) is None
    assert node_of({key: [b"spiffe://retinue/manager", b"spiffe://elsewhere/agent/n1", b"\xff"]}) is None


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "bearer x")],
        [("authorization", "Basic x")],
        [("authorization", "Bearer x"), ("authorization", "Bearer x")],
        [("authorization-bin", b"Bearer x")],
    ],
)
def test_no_or_malformed_credentials(metadata: list[tuple[str, str | bytes]]) -> None:
    with pytest.raises(CredentialsMissing):
        bearer_of(metadata)
