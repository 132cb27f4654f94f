"""A certificate authority for tests."""

from __future__ import annotations

import datetime as dt
import hashlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates; `certificate` is its own in PEM."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.fingerprint = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()

    def sign(
        self,
        public_key: ec.EllipticCurvePublicKey,
        dns: str,
        uri: str,
        begin: dt.timedelta = dt.timedelta(minutes=-1),
        life: dt.timedelta = dt.timedelta(hours=1),
    ) -> str:
        """A certificate in PEM, valid from `begin` from now for `life`."""
        start = dt.datetime.now(dt.UTC) + begin
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, dns)]))
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + life)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(dns), x509.UniformResourceIdentifier(uri)]), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, dns: str, uri: str) -> tuple[str, str]:
        """A new key and its certificate, both in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return private.decode(), self.sign(key.public_key(), dns, uri)

    def sign_request(
        self,
        request: str,
        agent_id: str,
        begin: dt.timedelta = dt.timedelta(minutes=-1),
        life: dt.timedelta = dt.timedelta(hours=1),
    ) -> str:
        """An agent's certificate for the key of a PKCS #10 request in PEM."""
        key = x509.load_pem_x509_csr(request.encode()).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return self.sign(key, f"{agent_id}.agent.retinue", f"spiffe://retinue/agent/{agent_id}", begin, life)
