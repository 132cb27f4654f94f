"""The certificate authority of one installation.

It vouches for three kinds of names: servers of the manager, the manager as a client of agents
(`spiffe://retinue/manager`), and agents (`spiffe://retinue/agent/ID/GENERATION` and the DNS name `ID.agent.retinue`),
with routers like agents. Names in a certificate come from here alone; of a certificate request only the public key is
used. The generation is that of the agent's enrolment: certificates of former ones are worth nothing, whenever they end.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import ipaddress
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from retinue.manager.identity.principal import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MANAGER_DNS = "manager.retinue"
MANAGER_URI = "spiffe://retinue/manager"
_NODE_URI_PREFIX = "spiffe://retinue/"
AGENT_LIFETIME = dt.timedelta(hours=24)

_CA_LIFETIME = dt.timedelta(days=3650)
# The manager gives itself new ones at every start, and after two thirds of this.
_MANAGER_LIFETIME = dt.timedelta(days=730)
# Clocks differ: a certificate is good a little before it was made.
_BACKDATE = dt.timedelta(minutes=5)
_LONGEST_REQUEST = 16 * 1024
_SMALLEST_RSA_BITS = 2048

_AgentKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


class BadCertificateRequest(ValueError):  # noqa: N818  # an answer to a node
    """The certificate request cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its private key, both in PEM; the key of an agent never gets here and is empty."""

    certificate: bytes
    key: bytes
    expire_time: dt.datetime


@dataclass(frozen=True, slots=True)
class IssuedNode:
    """What a certificate that the authority gave to a node says, however long ago."""

    kind: Kind
    node_id: str
    generation: int
    key: _AgentKey


def node_uri(kind: Kind, node_id: str, generation: int) -> str:
    """Returns the URI by which a certificate names an agent or a router."""
    return f"{_NODE_URI_PREFIX}{kind.lower()}/{node_id}/{generation}"


def parse_node_uri(uri: str) -> tuple[Kind, str, int] | None:
    """Returns the kind of node, its id and the generation that a certificate names, 0 without one;
    None for any other name.
    """
    for kind in (Kind.AGENT, Kind.ROUTER):
        prefix = f"{_NODE_URI_PREFIX}{kind.lower()}/"
        if uri.startswith(prefix):
            node_id, slash, generation = uri.removeprefix(prefix).partition("/")
            if not slash:
                return kind, node_id, 0
            return (kind, node_id, int(generation)) if generation.isascii() and generation.isdecimal() else None
    return None


def certificate_fingerprint(pem: bytes) -> str:
    """SHA-256 of a certificate in PEM, in hexadecimal; empty when it is none."""
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest()
    except ValueError:
        return ""


def enrolment_fingerprint(join_token_hash: bytes, request: str) -> str:
    """SHA-256 of a join token, by its hash, with the key of a certificate request in PEM, in hexadecimal; empty when
    the request is none.
    """
    try:
        key = _requested_key(request)
    except BadCertificateRequest:
        return ""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(join_token_hash + der).hexdigest()


class Authority:
    """Signs certificates."""

    def __init__(
        self,
        key: ec.EllipticCurvePrivateKey,
        certificates: Sequence[x509.Certificate],
        clock: Callable[[], dt.datetime],
    ) -> None:
        """`certificates` are of the key, the newest first; `clock` returns the time with a time zone."""
        self._key = key
        self._certificates = tuple(certificates)
        self._clock = clock

    @classmethod
    def load(cls, directory: Path, clock: Callable[[], dt.datetime]) -> Authority:
        """The authority kept in a directory, made there when there is none; only the owner can read its key."""
        key_path, certificate_path = directory / "ca.key", directory / "ca.pem"
        # Two processes that start at once must not make two authorities.
        with _locked(directory):
            if key_path.exists():
                key = serialization.load_pem_private_key(key_path.read_bytes(), None)
                if not isinstance(key, ec.EllipticCurvePrivateKey):
                    raise ValueError(f"{key_path} is not a key of an elliptic curve")
            else:
                key = ec.generate_private_key(ec.SECP256R1())
                write_whole(key_path, _key_pem(key), 0o600)
            if certificate_path.exists():
                certificates = x509.load_pem_x509_certificates(certificate_path.read_bytes())
            else:
                certificates = [_self_signed(key, clock())]
                write_whole(certificate_path, _in_pem(certificates), 0o644)
        if any(certificate.public_key() != key.public_key() for certificate in certificates):
            raise ValueError(f"{certificate_path} does not belong to {key_path}")
        return cls(key, certificates, clock)

    def renewed(self) -> bytes:
        """Returns the authority's certificates in PEM with a new one of the same key before them.

        Those that have ended are left out. Who trusts any of them believes what was issued, and what will be.
        """
        now = self._clock()
        kept = (certificate for certificate in self._certificates if certificate.not_valid_after_utc > now)
        return _in_pem([_self_signed(self._key, now), *kept])

    def adopt(self, certificates: bytes) -> bool:
        """Takes certificates in PEM over; returns False when they are not of this authority's key, or none."""
        try:
            found = x509.load_pem_x509_certificates(certificates)
        except ValueError:
            return False
        if any(certificate.public_key() != self._key.public_key() for certificate in found):
            return False
        self._certificates = tuple(found)
        return True

    def save(self, directory: Path) -> None:
        """Keeps the certificates in a directory, blocking. Raises OSError."""
        with _locked(directory):
            write_whole(directory / "ca.pem", self.certificate, 0o644)

    @property
    def now(self) -> dt.datetime:
        """The time that certificates are issued at."""
        return self._clock()

    @property
    def expire_time(self) -> dt.datetime:
        """When the newest certificate of the authority ends."""
        return self._certificate.not_valid_after_utc

    @property
    def _certificate(self) -> x509.Certificate:
        return self._certificates[0]

    @property
    def certificate(self) -> bytes:
        """The authority's certificates in PEM, the newest first: several for a while after a renewal."""
        return _in_pem(self._certificates)

    @property
    def key_pem(self) -> bytes:
        """The authority's private key in PEM."""
        return _key_pem(self._key)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's newest certificate, in hexadecimal."""
        return self.fingerprints[0]

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """SHA-256 of each of the authority's certificates, in hexadecimal, the newest first."""
        return tuple(certificate.fingerprint(hashes.SHA256()).hex() for certificate in self._certificates)

    def derive_key(self, purpose: str) -> bytes:
        """A secret of 32 bytes that every holder of the authority's key has too."""
        raw = self._key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return HKDF(hashes.SHA256(), 32, salt=None, info=purpose.encode()).derive(raw)

    def issue_server(self, hosts: Iterable[str]) -> Certificate:
        """For the manager's ports: `manager.retinue`, `localhost`, the loopback addresses,
        and these names and addresses.
        """
        names: list[x509.GeneralName] = []
        for host in dict.fromkeys((MANAGER_DNS, "localhost", "127.0.0.1", "::1", *hosts)):
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        return self._issue_with_key(MANAGER_DNS, names, ExtendedKeyUsageOID.SERVER_AUTH)

    def issue_gateway(self, domain: str) -> Certificate:
        """For the hosts of a domain, and for nothing else that the manager is known by."""
        return self._issue_with_key("gateway", [x509.DNSName(f"*.{domain}")], ExtendedKeyUsageOID.SERVER_AUTH)

    def issue_manager_client(self) -> Certificate:
        """For the manager's connections to agents."""
        names = [x509.UniformResourceIdentifier(MANAGER_URI)]
        return self._issue_with_key("manager", names, ExtendedKeyUsageOID.CLIENT_AUTH)

    def issue_node(self, kind: Kind, node_id: str, generation: int, request: str) -> Certificate:
        """For an agent or a router, good for 24 hours, at both ends of a connection.

        `request` is PKCS #10 in PEM; whatever names it holds are passed over. Raises BadCertificateRequest.
        """
        names = [
            x509.DNSName(f"{node_id}.{kind.lower()}.retinue"),
            x509.UniformResourceIdentifier(node_uri(kind, node_id, generation)),
        ]
        usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        certificate = self._sign(node_id, names, _requested_key(request), AGENT_LIFETIME, usages)
        return Certificate(certificate.public_bytes(serialization.Encoding.PEM), b"", certificate.not_valid_after_utc)

    def issued(self, pem: str) -> IssuedNode | None:
        """Returns what a certificate in PEM says, whenever it ends; None when it is none that this authority gave to a
        node. Never raises.
        """
        if len(pem) > _LONGEST_REQUEST:
            return None
        try:
            certificate = x509.load_pem_x509_certificate(pem.encode())
            certificate.verify_directly_issued_by(self._certificate)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            key = certificate.public_key()
        except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, x509.ExtensionNotFound):
            return None
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        node = parse_node_uri(uris[0]) if len(uris) == 1 else None
        if node is None or not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
            return None
        return IssuedNode(*node, key)

    def _issue_with_key(
        self, name: str, names: Iterable[x509.GeneralName], usage: x509.ObjectIdentifier
    ) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(name, names, key.public_key(), _MANAGER_LIFETIME, (usage,))
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        return Certificate(pem, _key_pem(key), certificate.not_valid_after_utc)

    def _sign(
        self,
        name: str,
        names: Iterable[x509.GeneralName],
        key: _AgentKey,
        lifetime: dt.timedelta,
        usages: Iterable[x509.ObjectIdentifier],
    ) -> x509.Certificate:
        now = self._clock()
        end = min(now + lifetime, self._certificate.not_valid_after_utc)
        issuer_key = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATE)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _requested_key(request: str) -> _AgentKey:
    if len(request) > _LONGEST_REQUEST:
        raise BadCertificateRequest(f"must have at most {_LONGEST_REQUEST} characters")
    try:
        parsed = x509.load_pem_x509_csr(request.encode())
        proven = parsed.is_signature_valid
        key = parsed.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        raise BadCertificateRequest("must be a PKCS #10 certificate request in PEM") from None
    if not proven:
        raise BadCertificateRequest("is not signed with its own key")
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        return key
    if isinstance(key, rsa.RSAPublicKey) and _SMALLEST_RSA_BITS <= key.key_size <= 2 * _SMALLEST_RSA_BITS:
        return key
    raise BadCertificateRequest("must hold a key of P-256, P-384, or RSA with 2,048 to 4,096 bits")


def _in_pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def _self_signed(key: ec.EllipticCurvePrivateKey, now: dt.datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Retinue CA")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + _CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes, mode: int) -> None:
    """Writes a file whole or not at all, also when the machine crashes."""
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(unfinished).rename(path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
