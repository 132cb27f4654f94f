"""Serves the metrics of a daemon to Prometheus, at a port of its own and in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from prometheus_client import start_http_server

from retinue.rpc.enrollment.managers import split_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def serving_metrics(address: str) -> AsyncIterator[int]:
    """Serves all metrics of the process at `host:port` while the block lasts; the value is the port.
    Raises OSError and ValueError.
    """
    host, port = split_address(address)
    server, thread = start_http_server(port, host.strip("[]"))
    try:
        yield server.server_port
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
