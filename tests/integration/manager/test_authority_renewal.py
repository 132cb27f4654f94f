"""The authority gets another certificate while managers, nodes and clients go on with the former one."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import shutil
import ssl
from functools import partial
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from retinue.manager import installation
from retinue.manager.identity.authority import Authority
from retinue.manager.installation import MismatchError, claim, follow_authority, renew_authority
from retinue.manager.v1 import enrollment_service_pb2 as pb
from retinue.manager.v1 import enrollment_service_pb2_grpc
from retinue.rpc.enrollment.enrollment import enroll
from retinue.rpc.enrollment.managers import split_address
from tests.integration.manager.rig import Service, key_and_request, now, served
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")

# An authority made then has an hour left.
PAST = dt.timedelta(days=3650) - dt.timedelta(hours=1)


async def answers(endpoint: str, roots: bytes) -> bool:
    credentials = grpc.ssl_channel_credentials(roots)
    options = (("grpc.ssl_target_name_override", "manager.retinue"), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.secure_channel(endpoint, credentials, options) as channel:
        stub: health_pb2_grpc.HealthAsyncStub = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest())
    return True


def handshake(endpoint: str, roots: str) -> str | None:
    """Connects as programs with OpenSSL do."""
    import socket  # noqa: PLC0415  # for this alone

    context = ssl.create_default_context(cadata=roots)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(split_address(endpoint)) as plain,
        context.wrap_socket(plain, server_hostname="manager.retinue") as secure,
    ):
        return secure.version()


def roots_of(service: Service) -> list[bytes]:
    begin = b"-----BEGIN"
    return [begin + part for part in service.authority.certificate.split(begin)[1:]]


@pytest.mark.attack("certificates-of-a-former-authority")
async def test_clients_and_nodes_go_on_with_the_former_certificate_and_learn_the_new_one(
    database_url: str, tmp_path: Path
) -> None:
    Authority.load(tmp_path, lambda: now() - PAST)
    async with served(database_url, tmp_path) as service:
        authority = service.authority
        before = authority.fingerprint
        _, request = key_and_request()
        joined = await enroll("n1", (service.endpoint,), await service.join_token(), before)
        assert authority.expire_time - now() < dt.timedelta(hours=2)
        assert authority.adopt(authority.renewed())

        (new, former) = roots_of(service)
        # Each of them alone is enough, for gRPC and for OpenSSL.
        for roots in (new, former, new + former):
            assert await answers(service.endpoint, roots)
            assert await asyncio.to_thread(handshake, service.endpoint, roots.decode())
        # A node with the former one is let in, lives on beyond that, and trusts the new one from then on.
        credentials = grpc.ssl_channel_credentials(
            joined.ca_certificate.encode(), joined.private_key.encode(), joined.certificate.encode()
        )
        options = (("grpc.ssl_target_name_override", "manager.retinue"), ("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.secure_channel(service.agent_endpoint, credentials, options) as channel:
            stub: enrollment_service_pb2_grpc.EnrollmentServiceAsyncStub = (
                enrollment_service_pb2_grpc.EnrollmentServiceStub(channel)
            )
            renewal = pb.RenewCertificateRequest(agent_id="n1", certificate_request=request)
            answer = await stub.RenewCertificate(renewal)
        assert answer.expire_time.ToDatetime(dt.UTC) - now() > dt.timedelta(hours=20)
        assert answer.ca_certificate.encode() == authority.certificate
        # A node may join with either fingerprint.
        for number, fingerprint in enumerate(authority.fingerprints):
            await enroll(f"n{number + 2}", (service.endpoint,), await service.join_token(), fingerprint)


async def test_every_manager_takes_a_renewed_authority_up(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "AUTHORITY_SECONDS", 0.05)
    first, second, stranger = (tmp_path / name for name in ("first", "second", "stranger"))
    for directory in (first, second, stranger):
        directory.mkdir()
    authority = await claim(database, first, lambda: now() - PAST)
    for name in ("ca.key", "ca.pem"):
        shutil.copy(first / name, second / name)
    other = await claim(database, second, now)
    following = asyncio.create_task(follow_authority(database, second, other))
    try:
        renewed = await renew_authority(database, first, now)
        await eventually(lambda: other.fingerprints, renewed.fingerprints.__eq__)
        await eventually(lambda: Authority.load(second, now).fingerprints, renewed.fingerprints.__eq__)
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    assert renewed.fingerprints[1:] == authority.fingerprints
    assert renewed.expire_time - now() > dt.timedelta(days=3600)
    # One that was off meanwhile, with the former file.
    (second / "ca.pem").write_bytes(authority.certificate)
    assert (await claim(database, second, now)).fingerprints == renewed.fingerprints
    # A database of before knows the former one only, and a directory the new one too.
    Authority.load(stranger, now)
    for refused in (partial(renew_authority, database, stranger, now), partial(claim, database, stranger, now)):
        with pytest.raises(MismatchError):
            await refused()
