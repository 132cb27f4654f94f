"""A process with the manager's layers around calls, without a database: `python -m` of it writes its port,
and ends with 0 on SIGTERM.

The credentials of open streams are looked at all the time, and handlers take a while to clean up,
as those do that close connections.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import faulthandler
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from retinue.manager.domain.errors import TokenInvalid
from retinue.manager.identity.principal import Kind, Principal
from retinue.manager.listeners import SERVER_OPTIONS
from retinue.manager.server.authentication import Authenticator
from retinue.manager.server.connection_watch import ConnectionCalls, watching
from retinue.manager.server.interceptors import CallInterceptor
from retinue.manager.store.postgres.database import Database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Anyone may call it.
ENROLL = "/retinue.manager.v1.EnrollmentService/Enroll"
CREATE = "/retinue.manager.v1.SessionService/CreateSession"
# Ends soon.
WAIT = "/retinue.manager.v1.SessionService/WatchSessions"
# Ends never.
LOGS, TUNNEL = "/retinue.manager.v1.KernelService/StreamLogs", "/retinue.manager.v1.KernelService/Attach"
PIECE = b"x" * 65_536
# Fewer than a test opens at a time, and more than it may need.
STRANGERS = 32
WRONG = "rtn_wrong"


class Known(Authenticator):
    """Knows one user, by any token but one."""

    async def user(self, secret: str) -> Principal:
        # As long as the database may take.
        await asyncio.sleep(0.002)
        if secret == WRONG:
            raise TokenInvalid
        return Principal(Kind.USER, "ada")


async def _create(request: bytes, context: Any) -> bytes:
    return request


async def _wait(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield b"first"
    await asyncio.sleep(0.02)
    yield b"last"


async def _logs(request: bytes, context: Any) -> AsyncIterator[bytes]:
    try:
        while True:
            yield PIECE
    finally:
        await asyncio.sleep(0.1)


async def _tunnel(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async def take() -> None:
        async for _ in requests:
            await asyncio.sleep(0)

    taking = asyncio.create_task(take())
    try:
        while True:
            yield PIECE
    finally:
        await asyncio.sleep(0.1)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


class _Handlers(grpc.GenericRpcHandler):
    def service(self, details: Any) -> Any:
        return {
            CREATE: grpc.unary_unary_rpc_method_handler(_create),
            ENROLL: grpc.unary_unary_rpc_method_handler(_create),
            WAIT: grpc.unary_stream_rpc_method_handler(_wait),
            LOGS: grpc.unary_stream_rpc_method_handler(_logs),
            TUNNEL: grpc.stream_stream_rpc_method_handler(_tunnel),
        }.get(details.method)


async def _main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    known = Known(
        Database("postgresql://nobody@/none"), monotonic=time.monotonic, clock=lambda: dt.datetime.now(dt.UTC)
    )
    calls = ConnectionCalls()
    server = grpc.aio.server(
        interceptors=[CallInterceptor(known, asyncio.Event(), calls, recheck_seconds=0.005)], options=SERVER_OPTIONS
    )
    server.add_generic_rpc_handlers((_Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await server.start()
    with watching(calls, {port}, STRANGERS):
        await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    faulthandler.enable()
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_main())
