"""Nodes whose certificates have expired: who may have another one.

A node that was off, or whose manager was, for longer than its certificate lives proves that it has the key of the
certificate. It gets a new certificate, and no other right, if the certificate is the newest that its present enrolment
was given, or the one that asked for the newest, whose answer may have been lost. A challenge counts once: it names the
newest certificate, and that is another one afterwards.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.identity.authority import Authority, certificate_fingerprint
from retinue.manager.identity.principal import Kind
from retinue.rpc.enrollment.recovery import proves

if TYPE_CHECKING:
    from collections.abc import Callable

CHALLENGE_LIFETIME = dt.timedelta(minutes=1)
_TIME_BYTES = 8


@dataclass(frozen=True, slots=True)
class Registration:
    """What is known of a node that is enrolled and not revoked.

    The generation of its enrolment, and the fingerprints of its newest certificate and of the one that asked for that.
    An empty newest one is not known: the database is of an earlier time.
    """

    generation: int
    certificate: str
    former_certificate: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """A request for a new certificate by an expired one, which is in PEM."""

    kind: Kind
    node_id: str
    certificate: str
    challenge: bytes
    proof: bytes
    certificate_request: str


class Recoveries:
    """Makes challenges and judges proofs; the managers of a cluster take each other's challenges."""

    def __init__(self, authority: Authority, clock: Callable[[], dt.datetime]) -> None:
        """`clock` returns the time with a time zone."""
        self._authority = authority
        self._key = authority.derive_key("recovery of certificates")
        self._clock = clock

    def challenge(self, kind: Kind, node_id: str, registration: Registration | None) -> bytes:
        """Returns what a node is to sign; to one that is not enrolled it looks the same."""
        end = int((self._clock() + CHALLENGE_LIFETIME).timestamp()).to_bytes(_TIME_BYTES)
        return end + self._mac(end, kind, node_id, registration)

    def generation(self, recovery: Recovery, registration: Registration | None) -> int | None:
        """Returns the generation that a new certificate is to be of; None when the node may not have one."""
        if registration is None or not self._is_fresh(recovery, registration):
            return None
        issued = self._authority.issued(recovery.certificate)
        if issued is None or (issued.kind, issued.node_id) != (recovery.kind, recovery.node_id):
            return None
        if issued.generation < registration.generation or not _is_registered(recovery.certificate, registration):
            return None
        if not proves(issued.key, recovery.proof, recovery.challenge, recovery.certificate_request):
            return None
        return issued.generation

    def _is_fresh(self, recovery: Recovery, registration: Registration) -> bool:
        end, mac = recovery.challenge[:_TIME_BYTES], recovery.challenge[_TIME_BYTES:]
        made = self._mac(end, recovery.kind, recovery.node_id, registration)
        return hmac.compare_digest(mac, made) and self._clock().timestamp() < int.from_bytes(end)

    def _mac(self, end: bytes, kind: Kind, node_id: str, registration: Registration | None) -> bytes:
        newest = "-" if registration is None else registration.certificate
        return hmac.new(
            self._key, b"\0".join((end, kind.encode(), node_id.encode(), newest.encode())), hashlib.sha256
        ).digest()


def _is_registered(certificate: str, registration: Registration) -> bool:
    if not registration.certificate:
        return True
    known = {registration.certificate, registration.former_certificate} - {""}
    return certificate_fingerprint(certificate.encode()) in known
