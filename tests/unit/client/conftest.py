"""A gRPC server over TLS in this process, with a certificate made at test time, and a client of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from retinue.client.aio import Client, RetryBudget

if TYPE_CHECKING:
    from pathlib import Path

Register = Callable[[grpc.aio.Server], None]
TOKEN = "secret"
QUICK = RetryBudget(first=0.001, longest=0.002, total=5.0)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate of a manager, and its key, in PEM."""

    certificate: bytes
    key: bytes


@pytest.fixture(scope="session")
def certificate() -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "manager")])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("manager.retinue"), x509.DNSName("localhost")]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        built.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


@pytest.fixture
async def serve(certificate: Certificate) -> AsyncIterator[Callable[[Register], Awaitable[str]]]:
    """Starts a server with what `register` adds to it; the answer is its endpoint."""
    async with AsyncExitStack() as stack:

        async def start(register: Register) -> str:
            server = grpc.aio.server()
            register(server)
            credentials = grpc.ssl_server_credentials([(certificate.key, certificate.certificate)])
            port = server.add_secure_port("127.0.0.1:0", credentials)
            await server.start()
            stack.push_async_callback(server.stop, 0)
            return f"127.0.0.1:{port}"

        yield start


@pytest.fixture
async def connect(
    serve: Callable[[Register], Awaitable[str]], certificate: Certificate
) -> AsyncIterator[Callable[[Register], Awaitable[Client]]]:
    """A client, with the token `secret`, of a server started for it."""
    async with AsyncExitStack() as stack:

        async def open_client(register: Register) -> Client:
            endpoint = await serve(register)
            client = Client.connect(endpoint, token=TOKEN, ca=certificate.certificate, retry_budget=QUICK)
            return await stack.enter_async_context(client)

        yield open_client


@pytest.fixture
def ca_file(tmp_path: Path, certificate: Certificate) -> Path:
    path = tmp_path / "ca.pem"
    path.write_bytes(certificate.certificate)
    return path
