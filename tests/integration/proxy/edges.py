"""The ways of a client to one and the same program: its own port, an endpoint's, and that of a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retinue.devtools.cluster import free_ports
from retinue.manager.gateway import engine
from retinue.manager.gateway.core import resources
from retinue.manager.gateway.core.rules import Address, Target
from retinue.manager.gateway.forward_auth import ForwardAuthHandler
from retinue.manager.gateway.routes import Routes
from retinue.manager.gateway.services import Services
from retinue.manager.gateway.traffic import TrafficReceiver
from retinue.proxy.ads import LISTENERS, AdsServer
from retinue.proxy.program import program
from retinue.router.core.table import Revision
from tests.integration.router.running import HOST, replicas, running, toy, until_connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SECRET = "rta_secret"


@dataclass(frozen=True, slots=True)
class Edge:
    """Where clients connect, the host name that they ask for, and the lines that let them in."""

    name: str
    port: int
    host: str
    access: bytes = b""


@contextlib.asynccontextmanager
async def endpoint(directory: Path, program_port: int) -> AsyncIterator[Edge]:
    """A public endpoint whose only replica is the program."""
    async with running(directory) as router:
        await router.serve(toy(Revision(1, 100, replicas=replicas(program_port))))
        await router.listening()
        yield Edge("endpoint", router.port, HOST)


class _NobodyAsks(ForwardAuthHandler):
    """For browsers that were let in."""

    def __init__(self) -> None:
        # Nothing is looked up.
        return

    async def Check(self, request: Any, context: Any) -> Any:
        raise AssertionError(f"the engine asks about {request}")


@contextlib.asynccontextmanager
async def gateway(directory: Path, program_port: int) -> AsyncIterator[Edge]:
    """A gateway's engine, and a browser that was let in to the program."""
    port = free_ports()[0]
    address, target = Address("localhost", port, secure=False), Target(uuid.UUID(int=7), 8080)
    ads = AdsServer()
    routes = Routes(ads, address)
    services = Services(ads, _NobodyAsks(), TrafficReceiver(lambda _key: None, lambda _key: None))
    listener = resources.listener("127.0.0.1", port, address, services.key)
    ads.put(LISTENERS, resources.LISTENER, listener)
    child = engine.Engine(program(), services.bootstrap(), port, engine.account(directory))
    async with services.serving():
        task = asyncio.create_task(child.run())
        try:
            key = hashlib.sha256(SECRET.encode()).digest()
            await ads.settled(LISTENERS, (resources.LISTENER,))
            await routes.grant(key, target, SECRET, "nobody-listens", ("127.0.0.1", program_port))
            await until_connected(port)
            cookie = f"Cookie: {address.cookie}={SECRET}\r\n".encode()
            yield Edge("gateway", port, f"{address.host(target)}:{port}", cookie)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await routes.stop()


_NGINX = """
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/nginx.log;
user root;
events {{ worker_connections 1000; }}
http {{
    access_log off;
    client_body_temp_path {directory}/bodies;
    proxy_temp_path {directory}/answers;
    fastcgi_temp_path {directory}/none;
    uwsgi_temp_path {directory}/none;
    scgi_temp_path {directory}/none;
    client_max_body_size 0;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{program};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
        }}
    }}
}}
"""


@contextlib.asynccontextmanager
async def nginx(directory: Path, program_port: int) -> AsyncIterator[Edge]:
    """The proxy that most programs are tried behind, set up as its pages say."""
    port = free_ports()[0]
    directory = directory / "nginx"
    directory.mkdir()
    file = directory / "nginx.conf"
    file.write_text(_NGINX.format(directory=directory, port=port, program=program_port))
    process = await asyncio.create_subprocess_exec("nginx", "-c", str(file), "-e", f"{directory}/nginx.log")
    try:
        await until_connected(port)
        yield Edge("nginx", port, "nginx.test")
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def edges(directory: Path, program_port: int) -> AsyncIterator[list[Edge]]:
    """All ways: directly first."""
    direct = Edge("direct", program_port, "direct.test")
    async with endpoint(directory, program_port) as one, gateway(directory, program_port) as other:
        yield [direct, one, other]
