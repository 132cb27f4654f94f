"""Asks one question of a kernel, by the ways that a runtime gives into it.
Whatever a kernel does, the answer is in time and small.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from retinue.agent.attempts import ProbeKind
from retinue.agent.errors import KernelRuntimeError, PausedError, PortClosedError
from retinue.agent.inside.exec_session import Attachment, AttachmentLostError, Exited
from retinue.agent.kernel.core.frames import Start
from retinue.agent.network.sockets import LOOPBACK
from retinue.agent.probes.core.machine import Answer

if TYPE_CHECKING:
    import socket

    from retinue.agent.attempts import Probe
    from retinue.agent.runtime.kernel import Kernel

MAX_LINE = 4096
"""Bytes of an HTTP status line that are read."""
PIECE = 65_536
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: |\r|\n|$)")
_GOOD = Answer(success=True)


async def ask(kernel: Kernel, probe: Probe, port: int, address: str) -> Answer:
    """Returns the answer; `port` is the published one, `address` the kernel's own as routers reach it.
    Never raises but for a cancellation.
    """
    try:
        async with asyncio.timeout(probe.timeout):
            return await _ask(kernel, probe, port, address)
    except TimeoutError:
        message = f"no answer within {probe.timeout:g} s"
    except PortClosedError as error:
        message = str(error)
    except PausedError as error:
        message = str(error)
    except KernelRuntimeError:
        message = "it does not run"
    except (OSError, ValueError) as error:
        message = f"it cannot be reached: {error}"
    return Answer(success=False, message=message)


async def say_ready(kernel: Kernel, probe: Probe, port: int, address: str) -> Answer:
    """Answers for a kernel that does nothing: it is as ready as it will ever be."""
    del kernel, probe, port, address
    return _GOOD


async def _ask(kernel: Kernel, probe: Probe, port: int, address: str) -> Answer:
    match probe.kind:
        case ProbeKind.EXEC:
            return await _ask_command(kernel, probe)
        case ProbeKind.GRPC:
            return await _ask_grpc(kernel, probe, port, address)
        case ProbeKind.HTTP:
            return await _ask_http(kernel, probe, probe.port or port, address)
        case ProbeKind.TCP:
            (await connect(kernel, probe.port or port, address)).close()
            return _GOOD


async def connect(kernel: Kernel, port: int, address: str) -> socket.socket:
    """Connects as a router does. Raises PortClosedError, which says so when something
    listens for the kernel itself only.
    """
    try:
        return await kernel.connect(port, (address,))
    except PortClosedError:
        try:
            (await kernel.connect(port, LOOPBACK)).close()
        except PortClosedError:
            raise PortClosedError(f"nothing listens on port {port}") from None
        raise PortClosedError(f"port {port} listens on 127.0.0.1 only; it has to listen on 0.0.0.0") from None


async def _ask_http(kernel: Kernel, probe: Probe, port: int, address: str) -> Answer:
    reader, writer = await asyncio.open_connection(sock=await connect(kernel, port, address), limit=MAX_LINE)
    try:
        writer.write(
            f"GET {probe.path} HTTP/1.1\r\nHost: {address}:{port}\r\nUser-Agent: retinue-probe\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        found = _STATUS.match(await reader.readline())
    finally:
        writer.transport.abort()
    if found is None:
        return Answer(success=False, message=f"port {port} does not answer in HTTP/1.1")
    status = int(found[1])
    good = probe.min_status <= status <= probe.max_status
    return _GOOD if good else Answer(success=False, message=f"GET {probe.path} answers {status}")


async def _ask_grpc(kernel: Kernel, probe: Probe, port: int, address: str) -> Answer:
    """Asks over a Unix socket that only this agent can reach, for gRPC opens its connections itself."""
    connection = await connect(kernel, port, address)
    with contextlib.closing(connection), tempfile.TemporaryDirectory(prefix="retinue-probe-") as directory:
        relays: set[asyncio.Task[None]] = set()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inside, out = await asyncio.open_connection(sock=await connect(kernel, port, address))
            copies = [asyncio.create_task(_copy(*pair)) for pair in ((reader, out), (inside, writer))]
            relays.update(copies)
            try:
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for copy in copies:
                    copy.cancel()
                for one in (writer, out):
                    one.transport.abort()

        path = Path(directory) / "socket"
        server = await asyncio.start_unix_server(relay, path)
        try:
            async with grpc.aio.insecure_channel(
                f"unix:{path}", options=(("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
            ) as channel:
                response = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service=probe.service), timeout=probe.timeout
                )
        except grpc.aio.AioRpcError as error:
            return Answer(success=False, message=f"Health.Check answers {error.code().name}")
        finally:
            server.close()
    status = response.status
    if status == health_pb2.HealthCheckResponse.SERVING:
        return _GOOD
    known = health_pb2.HealthCheckResponse.ServingStatus.values()
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(status) if status in known else "an unknown status"
    return Answer(success=False, message=f"Health.Check answers {name}")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()


async def _ask_command(kernel: Kernel, probe: Probe) -> Answer:
    wire = await kernel.exec()
    attachment = Attachment(wire)
    try:
        await attachment.start(Start(probe.command, wire.environment, wire.directory))
        await attachment.end_input()
        async for event in attachment.events():
            if isinstance(event, Exited):
                good = event.code == 0
                return _GOOD if good else Answer(success=False, message=f"{probe.command[0]} ends with {event.code}")
    except AttachmentLostError as error:
        return Answer(success=False, message=str(error)[:256])
    finally:
        await attachment.close()
    return Answer(success=False, message=f"{probe.command[0]} did not end")
