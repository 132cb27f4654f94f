"""Serves the metrics of a daemon to Prometheus, at a port of its own and in threads of its own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import platform
import socket
import time
from importlib import metadata
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread, Timer
from typing import TYPE_CHECKING, Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from cryptography import x509
from prometheus_client import Gauge, make_wsgi_app

from retinue.rpc.enrollment.managers import split_address
from retinue.rpc.version import software_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

_log = logging.getLogger(__name__)

# For a request as a whole, and for each wait in it.
_CLIENT_SECONDS = 10.0
_MAX_CLIENTS = 32
_BUILD = Gauge("retinue_build_info", "1, with the versions of a daemon.", ["program", "version", "python", "grpc"])
_CLOCK = Gauge(
    "retinue_clock_timestamp_seconds", "Time by the clock of the daemon's machine at the scrape, in seconds since 1970."
)
_CLOCK.set_function(time.time)
CERTIFICATE_ENDS = Gauge(
    "retinue_certificate_expire_timestamp_seconds",
    "End of a certificate, in seconds since 1970: `authority`, `node`, `clients` or `browsers`.",
    ["certificate"],
)


def end_of(pem: str | bytes) -> float:
    """Returns when the first certificate of a chain in PEM ends, in seconds since 1970; nan where there is none."""
    try:
        chain = x509.load_pem_x509_certificates(pem if isinstance(pem, bytes) else pem.encode())
    except ValueError:
        return float("nan")
    return chain[0].not_valid_after_utc.timestamp()


def end_of_file(path: Path) -> float:
    """Returns the same of a file; nan where it cannot be read."""
    try:
        return end_of(path.read_bytes())
    except OSError:
        return float("nan")


class _Handler(WSGIRequestHandler):
    """Handles a request within seconds, without a log line."""

    timeout = _CLIENT_SECONDS

    def log_message(self, *arguments: Any) -> None:
        """Logs nothing."""

    def get_stderr(self) -> TextIO:
        """Returns what takes in how a client went away: it is no line of the log."""
        return io.StringIO()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._free = BoundedSemaphore(_MAX_CLIENTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handles a request in a thread of its own, unless there are too many: that one is closed."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handles a request, and cuts one that takes too long: each byte of it may come just in time."""
        cut = Timer(_CLIENT_SECONDS, _cut, (request,))
        cut.daemon = True
        cut.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            cut.cancel()
            self._free.release()

    def server_bind(self) -> None:
        """Takes the port. The name of the machine, which the base class asks a name service for, is of no use."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs what went wrong with a request, which mostly is that its client is gone."""
        _log.debug("a request for metrics of %s failed", client_address, exc_info=True)


def _cut(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Server6(_Server):
    address_family = socket.AF_INET6


def _application() -> Callable[..., list[bytes]]:
    """Returns what answers requests, also where a metric cannot be read."""
    answer = make_wsgi_app()

    def serve(environ: Any, start_response: Any) -> list[bytes]:
        try:
            return list(answer(environ, start_response))
        except Exception:  # noqa: BLE001  # logged whole; the next request may fare better
            _log.exception("the metrics cannot be read")
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"see the log\n"]

    return serve


@contextlib.asynccontextmanager
async def serving_metrics(address: str, program: str) -> AsyncIterator[int]:
    """Serves all metrics of the process, which is a `program`, at `host:port` while the block lasts; the value is the
    port. Raises OSError and ValueError.
    """
    host, port = split_address(address)
    host = host.strip("[]")
    _BUILD.labels(program, software_version(), platform.python_version(), metadata.version("grpcio")).set(1)
    family, *_, found = (await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    kind = _Server6 if family is socket.AF_INET6 else _Server
    server = make_server(str(found[0]), port, _application(), kind, _Handler)
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
