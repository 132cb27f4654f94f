"""A manager that cannot be reached: one sentence with the address, and what to do."""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from retinue.client.aio import Client, Unauthenticated, Unavailable
from retinue.client.transport.rpc_errors import from_rpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.unit.client.conftest import Certificate

_ALL = "failed to connect to all addresses; last error: "
_TLS = "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"


def _error(message: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=message)


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        (
            f"{_ALL}UNKNOWN: ipv4:127.0.0.1:7999: Failed to connect to remote host: Connection refused",
            r"no manager answers at 127\.0\.0\.1:7999 \(connection refused\): is it running",
        ),
        (
            f"{_ALL}UNKNOWN: ipv6:%5B::1%5D:7999: Failed to connect to remote host: Connection refused",
            r"no manager answers at \[::1\]:7999 \(connection refused\)",
        ),
        (
            f"{_ALL}UNKNOWN: ipv4:10.0.0.1:7440: Failed to connect to remote host: No route to host",
            r"10\.0\.0\.1:7440 cannot be reached .* check the endpoint",
        ),
        (
            "errors resolving nohost.invalid:7999: [field:hostname lookup error:address lookup failed for "
            "nohost.invalid:7999: Domain name not found]",
            r"nohost\.invalid is not known \(no such host\): check the endpoint",
        ),
        (
            "DNS resolution failed for nohost.invalid:7999: C-ares status is not ARES_SUCCESS: Could not contact DNS",
            r"the address of nohost\.invalid cannot be looked up",
        ),
        (
            f"{_ALL}UNAVAILABLE: ipv4:127.0.0.1:33825: Handshake read failed (Endpoint closing)",
            r"127\.0\.0\.1:33825 does not answer \(timed out\): is its manager frozen",
        ),
        (
            f"{_ALL}UNKNOWN: ipv4:127.0.0.1:4: connection attempt timed out before receiving SETTINGS frame",
            r"127\.0\.0\.1:4 does not answer \(timed out\)",
        ),
        (
            f"{_ALL}UNKNOWN: ipv4:10.0.0.1:4: {_TLS}CERTIFICATE_VERIFY_FAILED: self signed certificate: OK",
            r"certificate of 10\.0\.0\.1:4 is not trusted: set RETINUE_CA.*\(self signed certificate\)$",
        ),
        (f"{_ALL}UNKNOWN: something new", r"no connection to the manager at .* \(.*something new\)"),
        ("Socket closed", r"the connection to the manager was lost \(Socket closed\)"),
        ("upstream connect error", r"^upstream connect error$"),
    ],
)
def test_what_grpc_says_becomes_a_sentence(details: str, expected: str) -> None:
    error = from_rpc(_error(details))
    assert isinstance(error, Unavailable)
    assert re.search(expected, error.message), error.message
    assert "SSL routines" not in error.message


def test_a_deadline_is_said_in_words() -> None:
    error = from_rpc(_error("Deadline Exceeded", grpc.StatusCode.DEADLINE_EXCEEDED))
    assert error.message == "the manager did not answer in time (Deadline Exceeded)"


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.close()


async def _answer_in_plain_text(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(
    ("answer", "tls", "expected"),
    [
        (_answer_in_plain_text, False, r"the server at {} is no manager \(it does not speak TLS\)"),
        (_answer_in_plain_text, True, r"the server at {} is no manager \(it does not speak gRPC\)"),
        (_hang_up, False, r"the server at {} is no manager \(it closes the connection\)"),
        (None, False, r"no manager answers at {} \(connection refused\)"),
    ],
)
async def test_another_service_or_none_at_the_port(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None,
    tls: bool,
    expected: str,
    certificate: Certificate,
    ca_file: Path,
    tmp_path: Path,
) -> None:
    """These are the texts of the gRPC that is installed."""
    context = None
    if tls:
        (tmp_path / "key.pem").write_bytes(certificate.key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(ca_file, tmp_path / "key.pem")
    server = await asyncio.start_server(answer or _hang_up, "127.0.0.1", 0, ssl=context)
    endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    if answer is None:
        server.close()
        await server.wait_closed()
    async with server, Client.connect(endpoint, token="secret", ca=certificate.certificate) as client:
        with pytest.raises(Unavailable, match=expected.format(re.escape(endpoint))):
            await client.users.caller()


def test_a_missing_token_says_what_to_set() -> None:
    status = status_pb2.Status(code=grpc.StatusCode.UNAUTHENTICATED.value[0], message="send a header")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="CREDENTIALS_MISSING", domain="retinue"))
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))
    error = from_rpc(
        grpc.aio.AioRpcError(grpc.StatusCode.UNAUTHENTICATED, grpc.aio.Metadata(), trailing, details="send a header")
    )
    assert isinstance(error, Unauthenticated)
    assert error.message.startswith("no token: set RETINUE_TOKEN, or give one by --token")
