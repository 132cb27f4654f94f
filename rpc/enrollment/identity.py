"""The identity of a node: its key, its certificate and the CA it trusts, in one file that only root can read."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from retinue.rpc.files import replace_file

if TYPE_CHECKING:
    import datetime as dt

PRODUCT = Path("/sys/class/dmi/id/product_uuid")
"""The number that firmware or a hypervisor gives to a machine; not every machine has one."""


class IdentityError(Exception):
    """There is no usable identity; the text says why."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Key, certificate and those of the CA are in PEM; `agent_endpoint` is the manager's port for agents, `host:port`.

    `enrolment` is a random number that goes with the identity from one enrolment to the next.
    """

    agent_id: str
    private_key: str = field(repr=False)
    certificate: str
    ca_certificate: str
    agent_endpoint: str
    enrolment: str = ""

    def life(self) -> tuple[dt.datetime, dt.datetime]:
        """Returns the start and the end of the certificate's validity, in UTC."""
        certificate = x509.load_pem_x509_certificate(self.certificate.encode())
        return certificate.not_valid_before_utc, certificate.not_valid_after_utc

    def expired(self, now: dt.datetime) -> bool:
        """Returns whether the certificate is no longer valid."""
        return now >= self.life()[1]

    def renewed(self, key: KeyRequest, certificate: str, authority: str) -> Identity:
        """Returns it with another key and certificate, and other certificates of the CA unless `authority` is empty.

        The manager that gave these was trusted by the former ones. Raises ValueError when they are none.
        """
        if authority:
            x509.load_pem_x509_certificates(authority.encode())
        trusted = authority or self.ca_certificate
        return replace(self, private_key=key.private_key, certificate=certificate, ca_certificate=trusted)

    def due(self, now: dt.datetime) -> bool:
        """Returns True after two thirds of the certificate's lifetime: time to renew it."""
        begin, end = self.life()
        return now >= begin + (end - begin) * 2 / 3


def instance_of(identity: Identity, state_dir: Path, product: Path = PRODUCT) -> str:
    """Returns the id of this copy of an agent: the same for every process with this state directory,
    and another one for a copy.

    A directory that was copied has another inode number, and a machine that was copied another number of its own.
    Blocks.
    """
    try:
        machine = product.read_text().strip()
    except OSError:
        machine = ""
    parts = (identity.enrolment, str(state_dir.stat().st_ino), machine)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A new private key and a certificate request (PKCS #10) for it, both in PEM."""

    private_key: str
    certificate_request: str


def new_key(agent_id: str) -> KeyRequest:
    """Makes a key on the curve P-256, and a request for it."""
    return _request(agent_id, ec.generate_private_key(ec.SECP256R1()))


def _request(agent_id: str, key: ec.EllipticCurvePrivateKey) -> KeyRequest:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, agent_id)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyRequest(private.decode(), request.public_bytes(serialization.Encoding.PEM).decode())


class IdentityStore:
    """The identity on disk, and the one in use: they never differ."""

    def __init__(self, path: Path) -> None:
        """Reads nothing before `load`."""
        self._path = path
        self._enrolment = path.with_name("enrolment.json")
        self._identity: Identity | None = None

    def load(self, agent_id: str) -> Identity | None:
        """Reads the file; None when there is none. Raises IdentityError when it is damaged or of another agent."""
        try:
            values = json.loads(self._path.read_text())
            identity = Identity(
                **{field.name: str(values[field.name]) for field in fields(Identity) if field.name in values}
            )
            identity.life()
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise IdentityError(f"{self._path} is damaged; remove it and enrol again") from error
        if identity.agent_id != agent_id:
            raise IdentityError(f"{self._path} belongs to agent {identity.agent_id}, not to {agent_id}")
        self._identity = identity
        return identity

    def enrolment_key(self, agent_id: str, join_token: str) -> KeyRequest:
        """Returns the key to enrol with, blocking: for one token the same until an identity is saved, as managers
        repeat an answer that was lost for the same token and key only. Raises OSError.
        """
        token = hashlib.sha256(join_token.encode()).hexdigest()
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            values = json.loads(self._enrolment.read_text())
            key = serialization.load_pem_private_key(values["private_key"].encode(), None)
            if values["token"] == token and isinstance(key, ec.EllipticCurvePrivateKey):
                return _request(agent_id, key)
        fresh = new_key(agent_id)
        content = {"token": token, "private_key": fresh.private_key}
        replace_file(self._enrolment, json.dumps(content, indent=1).encode())
        return fresh

    def save(self, identity: Identity) -> None:
        """Replaces the identity in one step, blocking. Raises OSError, and then the former one stays."""
        replace_file(self._path, json.dumps(asdict(identity), indent=1).encode())
        self._identity = identity
        with contextlib.suppress(OSError):
            self._enrolment.unlink(missing_ok=True)

    def renew(self, key: KeyRequest, certificate: str, authority: str) -> None:
        """Replaces key and certificate, and what is trusted unless `authority` is empty."""
        self.save(self.current().renewed(key, certificate, authority))

    def current(self) -> Identity:
        """Returns the identity in use; safe to call from any thread. Raises IdentityError when there is none yet."""
        if self._identity is None:
            raise IdentityError("the agent is not enrolled")
        return self._identity
