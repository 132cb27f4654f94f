"""What the tests here work with: directories, databases, a manager's ports, and calls taken apart."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_status import rpc_status

from retinue.manager.daemon import agent_dialer
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.identity.authority import Authority
from retinue.manager.identity.principal import Kind
from retinue.manager.identity.tokens import JOIN_TOKEN_PREFIX, TOKEN_PREFIX, hash_secret, new_secret
from retinue.manager.listeners import serving
from retinue.manager.server.auditing import Auditor
from retinue.manager.server.authentication import Authenticator
from retinue.manager.store.accounts import accounts
from retinue.manager.store.fleet import agents
from retinue.manager.store.journal.journal_tail import JournalTail
from retinue.manager.store.postgres.database import Database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
    from pathlib import Path

    from google.rpc.status_pb2 import Status

    from retinue.manager.v1 import session_service_pb2


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclass(slots=True)
class Service:
    """A manager's ports over a database, without a leader, and ways to call them."""

    database: Database
    authority: Authority
    tail: JournalTail
    endpoint: str
    agent_endpoint: str
    moved: list[None]
    auditor: Auditor

    async def user(self, name: str, *, role: str = "USER", projects: Iterable[str] = ("default",)) -> str:
        """Makes a user and returns a token."""
        secret = new_secret(TOKEN_PREFIX)
        async with self.database.transaction() as tx:
            for project in projects:
                await accounts.create_project(tx, project)
            await accounts.create_user(tx, name, role, dict.fromkeys(projects, "MEMBER"))
            await accounts.create_token(tx, name, hash_secret(secret), description="", ttl=None)
        return secret

    async def join_token(
        self, *, uses: int = 1, agent_id: str | None = None, seconds: float = 3600, kind: str = "AGENT"
    ) -> str:
        secret = new_secret(JOIN_TOKEN_PREFIX)
        async with self.database.transaction() as tx:
            await agents.create_join_token(
                tx,
                hash_secret(secret),
                group="default",
                agent_id=agent_id,
                uses=uses,
                ttl=dt.timedelta(seconds=seconds),
                kind=kind,
            )
        return secret

    def channel(self, *, key: bytes | None = None, certificate: bytes | None = None) -> grpc.aio.Channel:
        """To the port for users, or with a certificate to the one for agents."""
        credentials = grpc.ssl_channel_credentials(self.authority.certificate, key, certificate)
        options = (("grpc.ssl_target_name_override", "manager.retinue"), ("grpc.use_local_subchannel_pool", 1))
        target = self.endpoint if certificate is None else self.agent_endpoint
        return grpc.aio.secure_channel(target, credentials, options)

    @contextlib.asynccontextmanager
    async def as_agent(self, agent_id: str) -> AsyncIterator[grpc.aio.Channel]:
        """A channel with a certificate of an agent, enrolled or not."""
        key, request = key_and_request()
        async with self.database.transaction() as tx:
            agent = await agents.get(tx, agent_id)
        issued = self.authority.issue_node(Kind.AGENT, agent_id, 1 if agent is None else agent.generation, request)
        async with self.channel(key=key, certificate=issued.certificate) as channel:
            yield channel


def key_and_request(*names: x509.GeneralName) -> tuple[bytes, str]:
    """A private key and a certificate request for it, both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call, taken apart."""

    code: grpc.StatusCode
    reason: str
    metadata: dict[str, str]
    fields: Sequence[str]
    text: str


async def failure(call: Awaitable[Any]) -> Failure:
    """How a call fails; fails the test when it does not, or without the details that every error carries."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return taken_apart(error)
    raise AssertionError(f"the call passed: {answer}")


def taken_apart(error: grpc.aio.AioRpcError) -> Failure:
    status = rpc_status.from_call(error)
    assert status is not None, f"no details: {error}"
    return status_apart(status, str(error))


def status_apart(status: Status, shown: str = "") -> Failure:
    """A status, taken apart; `shown` is how it was shown."""
    information, request = ErrorInfo(), BadRequest()
    for detail in status.details:
        detail.Unpack(information)
        detail.Unpack(request)
    assert information.domain == "retinue"
    fields = [violation.field for violation in request.field_violations]
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    return Failure(code, information.reason, dict(information.metadata), fields, shown or status.message)


def reasons(answer: session_service_pb2.BatchCreateSessionsResponse) -> list[str]:
    """Why each of many sessions was refused; empty of those that were accepted."""
    return [status_apart(item.refused).reason if item.HasField("refused") else "" for item in answer.results]


@contextlib.asynccontextmanager
async def served(url: str, directory: Path, **options: Any) -> AsyncIterator[Service]:
    """A manager's ports over a database, with options of `serving`; its authority is kept in `directory`."""
    database = Database(url)
    authority = Authority.load(directory, now)
    tail = JournalTail(database)
    moved: list[None] = []
    auditor = Auditor(database, "tests:1", now)
    following = asyncio.create_task(tail.run())
    try:
        async with serving(
            database=database,
            tail=tail,
            authority=authority,
            authenticator=Authenticator(database, monotonic=time.monotonic, clock=now),
            dialer=agent_dialer(authority),
            secrets=SessionSecrets(authority.derive_key("sessions")),
            moved=lambda: moved.append(None),
            listen="127.0.0.1:0",
            agent_listen="127.0.0.1:0",
            advertise=(),
            grace_seconds=1.0,
            auditor=auditor,
            **options,
        ) as ports:
            yield Service(database, authority, tail, ports.endpoint, ports.agent_endpoint, moved, auditor)
    finally:
        following.cancel()
        await asyncio.wait((following,))
        await database.dispose()
