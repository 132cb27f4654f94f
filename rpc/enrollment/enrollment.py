"""Enrolls a node as an agent: exchanges a join token and a key for a certificate,
over a connection pinned to the manager's CA.

The manager's certificate cannot be verified before its CA is known. So the chain is fetched first by a handshake that
verifies nothing and sends nothing, the one certificate in it with the given SHA-256 fingerprint is picked, and the real
connection, which carries the token, trusts that certificate only.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import socket
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc

from retinue.manager.v1 import enrollment_service_pb2, enrollment_service_pb2_grpc
from retinue.rpc.enrollment import recovery
from retinue.rpc.enrollment.identity import Identity, IdentityError, new_key
from retinue.rpc.enrollment.managers import ELSEWHERE, ManagerChoice, split_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from retinue.rpc.enrollment.identity import IdentityStore, KeyRequest

_log = logging.getLogger(__name__)

MANAGER_NAME = "manager.retinue"
"""Name in the manager's certificate, whatever the address it is dialled by."""
TIMEOUT = 20.0
"""Seconds for one step of enrolling."""


def normal_fingerprint(text: str) -> str:
    """Returns a SHA-256 fingerprint as 64 small hexadecimal digits; colons and case do not matter.
    Raises ValueError.
    """
    digits = text.replace(":", "").strip().lower()
    if len(digits) != hashlib.sha256().digest_size * 2 or any(digit not in "0123456789abcdef" for digit in digits):
        raise ValueError("the fingerprint is not 64 hexadecimal digits")
    return digits


def pick(chain: Iterable[bytes], fingerprint: str) -> str:
    """Returns the certificate with that fingerprint, from DER, in PEM. Raises IdentityError when there is none."""
    for certificate in chain:
        if hashlib.sha256(certificate).hexdigest() == fingerprint:
            return ssl.DER_cert_to_PEM_cert(certificate)
    raise IdentityError("the manager shows no CA certificate with the expected fingerprint")


def fetch_chain(host: str, port: int) -> list[bytes]:
    """Returns the certificates a server shows, in DER, verified by nothing. Blocks; raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, port), timeout=TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname=MANAGER_NAME) as secure,
    ):
        if hasattr(secure, "get_unverified_chain"):
            # Python 3.13 and later.
            return list(secure.get_unverified_chain())
        # The only access to the chain before Python 3.13.
        inner: Any = getattr(secure, "_sslobj")  # noqa: B009
        return [certificate.public_bytes(2) for certificate in inner.get_unverified_chain()]


async def enroll(
    agent_id: str,
    managers: Sequence[str],
    join_token: str,
    fingerprint: str,
    kind: enrollment_service_pb2.NodeKind.ValueType = enrollment_service_pb2.NODE_KIND_AGENT,
    *,
    key: KeyRequest | None = None,
) -> Identity:
    """Enrols a node of a kind at the first of `managers` that answers (`host:port` of their ports for users).

    Without a `key` it makes one. With the same token and key it may be repeated, as when an answer was lost. Raises
    IdentityError, ValueError on an address or fingerprint that is none, OSError, and grpc.aio.AioRpcError.
    """
    expected = normal_fingerprint(fingerprint)
    shown = key or new_key(agent_id)
    return await ManagerChoice().call(
        managers, lambda manager: _enroll(agent_id, manager, join_token, expected, kind, shown)
    )


async def _enroll(  # noqa: PLR0917  # as above
    agent_id: str,
    manager: str,
    join_token: str,
    expected: str,
    kind: enrollment_service_pb2.NodeKind.ValueType,
    key: KeyRequest,
) -> Identity:
    chain = await asyncio.to_thread(fetch_chain, *split_address(manager))
    authority = pick(chain, expected)
    credentials = grpc.ssl_channel_credentials(authority.encode())
    async with grpc.aio.secure_channel(manager, credentials, options=channel_options()) as channel:
        stub = enrollment_service_pb2_grpc.EnrollmentServiceStub(channel)
        request = enrollment_service_pb2.EnrollRequest(
            join_token=join_token, agent_id=agent_id, certificate_request=key.certificate_request, kind=kind
        )
        response = await stub.Enroll(request, timeout=TIMEOUT)
    # The pinned certificate, not the one in the answer, is what is trusted from now on.
    return Identity(
        agent_id, key.private_key, response.certificate, authority, response.agent_endpoint, secrets.token_hex(16)
    )


async def recover(
    identity: Identity,
    managers: Sequence[str],
    kind: enrollment_service_pb2.NodeKind.ValueType = enrollment_service_pb2.NODE_KIND_AGENT,
) -> Identity:
    """Gets a new certificate in place of one that managers do not take any more, by a proof that the node has its key.

    Raises ValueError, OSError, and grpc.aio.AioRpcError: UNAUTHENTICATED when the node has to enrol again.
    """
    return await ManagerChoice().call(managers, lambda manager: _recover(identity, manager, kind))


async def _recover(identity: Identity, manager: str, kind: enrollment_service_pb2.NodeKind.ValueType) -> Identity:
    credentials = grpc.ssl_channel_credentials(identity.ca_certificate.encode())
    key = new_key(identity.agent_id)
    async with grpc.aio.secure_channel(manager, credentials, options=channel_options()) as channel:
        stub: enrollment_service_pb2_grpc.EnrollmentServiceAsyncStub = (
            enrollment_service_pb2_grpc.EnrollmentServiceStub(channel)
        )
        begin = enrollment_service_pb2.BeginRecoveryRequest(agent_id=identity.agent_id, kind=kind)
        challenge = (await stub.BeginRecovery(begin, timeout=TIMEOUT)).challenge
        request = enrollment_service_pb2.RecoverCertificateRequest(
            agent_id=identity.agent_id,
            kind=kind,
            certificate=identity.certificate,
            certificate_request=key.certificate_request,
            challenge=challenge,
            proof=recovery.sign(identity.private_key, challenge, key.certificate_request),
        )
        response = await stub.RecoverCertificate(request, timeout=TIMEOUT)
    return identity.renewed(key, response.certificate, response.ca_certificate)


async def identify(  # noqa: PLR0917  # what a node is started with
    node_id: str,
    managers: Sequence[str],
    join_token: str,
    fingerprint: str,
    identities: IdentityStore,
    kind: enrollment_service_pb2.NodeKind.ValueType = enrollment_service_pb2.NODE_KIND_AGENT,
) -> Identity:
    """Loads the identity of a node, or enrols it when there is none.

    One with an expired certificate is loaded too: an `Announcer` renews it. A join token is used for it only when the
    managers refuse that. Raises IdentityError, ValueError, OSError, and grpc.aio.AioRpcError.
    """
    identity = await asyncio.to_thread(identities.load, node_id)
    if identity is not None and not await _refused(identity, managers, identities, kind, join_token):
        return identities.current()
    if not join_token or not fingerprint:
        raise IdentityError(f"{node_id} is not enrolled: a join token and the CA's fingerprint are needed")
    key = await asyncio.to_thread(identities.enrolment_key, node_id, join_token)
    identity = await enroll(node_id, managers, join_token, fingerprint, kind, key=key)
    await asyncio.to_thread(identities.save, identity)
    _log.info("%s is enrolled", node_id)
    return identity


async def _refused(
    identity: Identity,
    managers: Sequence[str],
    identities: IdentityStore,
    kind: enrollment_service_pb2.NodeKind.ValueType,
    join_token: str,
) -> bool:
    """Returns whether a join token has to be used in place of an identity with an expired certificate."""
    if not join_token or not identity.expired(datetime.now(UTC)):
        return False
    try:
        await asyncio.to_thread(identities.save, await recover(identity, managers, kind))
    except grpc.aio.AioRpcError as error:
        # A manager that does not answer may do so later.
        return error.code() not in ELSEWHERE
    return False


def channel_options() -> tuple[tuple[str, str | int], ...]:
    """Options of every channel to a manager."""
    return (
        ("grpc.ssl_target_name_override", MANAGER_NAME),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    )
