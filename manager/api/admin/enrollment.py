"""The EnrollmentService: how nodes become agents, and how agents are found."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING, Any

import grpc.aio

from retinue.manager.domain.errors import AgentRevoked, InvalidRequest, JoinTokenInvalid, MethodDenied
from retinue.manager.identity.authority import (
    Authority,
    BadCertificateRequest,
    Certificate,
    certificate_fingerprint,
    enrolment_fingerprint,
)
from retinue.manager.identity.principal import Kind
from retinue.manager.identity.recovery import Recoveries, Recovery
from retinue.manager.identity.tokens import JOIN_TOKEN_PREFIX, hash_secret, is_secret
from retinue.manager.server.fields import Violations
from retinue.manager.server.interceptors import current_principal
from retinue.manager.store.fleet import agents, routers
from retinue.manager.v1 import enrollment_service_pb2 as pb
from retinue.manager.v1 import enrollment_service_pb2_grpc
from retinue.manager.v1 import fleet_service_pb2 as fleet_pb
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from retinue.manager.store.postgres.database import Database

_log = logging.getLogger(__name__)

_LONGEST_INSTANCE, _LONGEST_VERSION = 64, 64


_Context = grpc.aio.ServicerContext[Any, Any]


_NodeRequest = (
    pb.EnrollRequest | pb.BeginRecoveryRequest | pb.RecoverCertificateRequest | fleet_pb.CreateJoinTokenRequest
)


def checked_kind(request: _NodeRequest) -> Kind:
    """Returns what a request is about; an agent when it does not say. Raises InvalidRequest."""
    violations = Violations()
    kind = violations.enum("kind", request.kind, pb.NodeKind.DESCRIPTOR, unspecified=True)
    violations.raise_any()
    return Kind.ROUTER if kind == pb.NODE_KIND_ROUTER else Kind.AGENT


class EnrollmentServicer(enrollment_service_pb2_grpc.EnrollmentServiceServicer):
    """Certificates for agents, against join tokens and against certificates."""

    def __init__(
        self,
        database: Database,
        authority: Authority,
        *,
        agent_endpoint: Callable[[], str],
        moved: Callable[[], None],
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        """`agent_endpoint` is where agents reach the manager; `moved` is called when an
        agent listens somewhere else; `clock` returns the time with a time zone.
        """
        self._database = database
        self._authority = authority
        self._recoveries = Recoveries(authority, clock)
        self._agent_endpoint = agent_endpoint
        self._moved = moved

    async def Enroll(self, request: pb.EnrollRequest, context: _Context) -> pb.EnrollResponse:
        if not is_secret(request.join_token, JOIN_TOKEN_PREFIX):
            raise JoinTokenInvalid
        secret_hash = hash_secret(request.join_token)
        enrolment = enrolment_fingerprint(secret_hash, request.certificate_request)
        kind = Kind.ROUTER if request.kind == pb.NODE_KIND_ROUTER else Kind.AGENT
        store = _store(kind)
        async with self._database.transaction() as tx:
            registration = await store.read_registration(tx, request.agent_id)
            # What asked for a certificate that was not shown yet is known: the answer to the same request was lost.
            if registration is not None and enrolment and registration.former_certificate == enrolment:
                generation = registration.generation
            else:
                # A caller without a token does not learn what else is wrong.
                if not await agents.is_join_token(tx, secret_hash):
                    raise JoinTokenInvalid
                violations = Violations()
                violations.name("agent_id", request.agent_id)
                violations.raise_any()
                checked_kind(request)
                generation = await store.enrol(tx, secret_hash, request.agent_id)
            certificate = self._issue(kind, request.agent_id, generation, request.certificate_request)
            fingerprint = certificate_fingerprint(certificate.certificate)
            await store.renew(tx, request.agent_id, generation, fingerprint, shown=enrolment)
        return pb.EnrollResponse(
            certificate=certificate.certificate.decode(),
            ca_certificate=self._authority.certificate.decode(),
            expire_time=timestamp(certificate.expire_time),
            agent_endpoint=self._agent_endpoint(),
        )

    async def Announce(self, request: pb.AnnounceRequest, context: _Context) -> pb.AnnounceResponse:
        _check_self(request.agent_id)
        violations = Violations()
        violations.address("address", request.address)
        violations.text("version", request.version, _LONGEST_VERSION)
        if not request.instance or len(request.instance) > _LONGEST_INSTANCE or not request.instance.isprintable():
            violations.add("instance", f"must be 1-{_LONGEST_INSTANCE} printable characters")
        violations.raise_any()
        async with self._database.transaction() as tx:
            caller = current_principal()
            moved = await _store(caller.kind).announce(
                tx,
                request.agent_id,
                address=request.address,
                instance=request.instance,
                version=request.version,
                certificate=caller.certificate,
            )
        if moved:
            self._moved()
        return pb.AnnounceResponse()

    async def RenewCertificate(
        self, request: pb.RenewCertificateRequest, context: _Context
    ) -> pb.RenewCertificateResponse:
        _check_self(request.agent_id)
        caller = current_principal()
        certificate = self._issue(caller.kind, request.agent_id, caller.generation, request.certificate_request)
        async with self._database.transaction() as tx:
            fingerprint = certificate_fingerprint(certificate.certificate)
            before = await _store(caller.kind).renew(
                tx, request.agent_id, caller.generation, fingerprint, shown=caller.certificate
            )
        if before not in {"", caller.certificate}:
            # An answer that was lost looks the same: it is said, and not refused.
            _log.warning(
                "agent %s renewed a certificate that is not its newest: its answer was lost, or another one has its key",
                request.agent_id,
            )
        return pb.RenewCertificateResponse(
            certificate=certificate.certificate.decode(),
            expire_time=timestamp(certificate.expire_time),
            ca_certificate=self._authority.certificate.decode(),
        )

    async def BeginRecovery(self, request: pb.BeginRecoveryRequest, context: _Context) -> pb.BeginRecoveryResponse:
        kind = _checked_node(request)
        async with self._database.transaction() as tx:
            registration = await _store(kind).read_registration(tx, request.agent_id)
        return pb.BeginRecoveryResponse(challenge=self._recoveries.challenge(kind, request.agent_id, registration))

    async def RecoverCertificate(
        self, request: pb.RecoverCertificateRequest, context: _Context
    ) -> pb.RecoverCertificateResponse:
        kind = _checked_node(request)
        recovery = Recovery(
            kind, request.agent_id, request.certificate, request.challenge, request.proof, request.certificate_request
        )
        async with self._database.transaction() as tx:
            # Held until the commit: of two with one challenge, the second finds another newest certificate.
            registration = await _store(kind).read_registration(tx, request.agent_id, lock=True)
            generation = self._recoveries.generation(recovery, registration)
            if generation is None:
                raise AgentRevoked
            certificate = self._issue(kind, request.agent_id, generation, request.certificate_request)
            fingerprint = certificate_fingerprint(certificate.certificate)
            shown = certificate_fingerprint(request.certificate.encode())
            await _store(kind).renew(tx, request.agent_id, generation, fingerprint, shown=shown)
        _log.info("%s %s is back with a new certificate: its former one had expired", kind.lower(), request.agent_id)
        return pb.RecoverCertificateResponse(
            certificate=certificate.certificate.decode(),
            expire_time=timestamp(certificate.expire_time),
            ca_certificate=self._authority.certificate.decode(),
        )

    def _issue(self, kind: Kind, agent_id: str, generation: int, certificate_request: str) -> Certificate:
        try:
            return self._authority.issue_node(kind, agent_id, generation, certificate_request)
        except BadCertificateRequest as error:
            raise InvalidRequest([("certificate_request", str(error))]) from error


def _store(kind: Kind) -> ModuleType:
    """Returns where nodes of a kind are kept."""
    return routers if kind is Kind.ROUTER else agents


def _checked_node(request: pb.BeginRecoveryRequest | pb.RecoverCertificateRequest) -> Kind:
    """Returns the kind of the node that a request names. Raises InvalidRequest."""
    violations = Violations()
    violations.name("agent_id", request.agent_id)
    violations.raise_any()
    return checked_kind(request)


def _check_self(agent_id: str) -> None:
    """An agent speaks for itself only."""
    if current_principal().name != agent_id:
        raise MethodDenied("an agent speaks for itself only")
