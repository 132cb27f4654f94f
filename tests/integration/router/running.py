"""A router's serving part with a real engine, on loopback, for one test."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from retinue.devtools.cluster import free_ports
from retinue.proxy.program import program
from retinue.router.core.listener import Listening, Logged
from retinue.router.core.table import Access, Common, Endpoint, Replica, Revision, Table
from retinue.router.serving import Serving
from retinue.rpc.core.addresses import AddressPolicy, parse_networks
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

HOST = "toy.test"
LOOPBACK = AddressPolicy(parse_networks("127.0.0.0/8,::1/128"))
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
COMMON = Common(KEY.public_key().public_bytes_raw())


def token(endpoint_id: str, *, lifetime: float = 3600.0, key: Ed25519PrivateKey = KEY, jti: str = "t1") -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).rstrip(b"=").decode()

    claims = {"iss": "retinue", "aud": endpoint_id, "jti": jti, "exp": int(time.time() + lifetime)}
    signed = f"{part({'alg': 'EdDSA', 'typ': 'JWT'})}.{part(claims)}"
    return f"{signed}.{base64.urlsafe_b64encode(key.sign(signed.encode())).rstrip(b'=').decode()}"


def replicas(*ports: int, draining: bool = False) -> tuple[Replica, ...]:
    return tuple(Replica(f"session-{port}", "127.0.0.1", port, draining) for port in ports)


def toy(*revisions: Revision, **fields: Any) -> Endpoint:
    defaults: dict[str, Any] = {"access": Access(public=True), "id": str(uuid.uuid4()), "hosts": (HOST,)}
    return Endpoint(name="toy", project="p", revisions=revisions, **(defaults | fields))


@dataclass
class Running:
    serving: Serving
    port: int
    directory: Path
    revision: int = 0
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    follow: Callable[[Table], None] | None = None

    def begin(self, *endpoints: Endpoint) -> None:
        """Sends a table with these endpoints changed."""
        self.revision += 1
        self.endpoints |= {endpoint.id: endpoint for endpoint in endpoints}
        follow = self.follow or self.serving.set_table
        follow(Table(self.revision, dict(self.endpoints), COMMON))

    async def serve(self, *endpoints: Endpoint) -> None:
        """The same; returns once it is in force."""
        self.begin(*endpoints)
        await eventually(lambda: self.serving.revision == self.revision)

    async def listening(self) -> None:
        """Returns once clients can connect."""
        await until_connected(self.port)


async def until_connected(port: int) -> None:
    _, writer = await eventually(lambda: asyncio.open_connection("127.0.0.1", port), ignoring=OSError)
    writer.close()


@contextlib.asynccontextmanager
async def running(
    directory: Path, *, tls: bool = False, logged: Logged = Logged.ALL, pickers: AddressPolicy = LOOPBACK
) -> AsyncIterator[Running]:
    port = free_ports()[0]
    listening = Listening("127.0.0.1", port, tls=tls, access_log=str(directory / "access.log"), logged=logged)
    serving = Serving("r1", directory, program(), listening, pickers)
    try:
        async with serving.open():
            yield Running(serving, port, directory)
    finally:
        await serving.engine.stop()
