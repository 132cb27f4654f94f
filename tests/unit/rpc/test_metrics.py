from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY, Gauge

from retinue.rpc import metrics
from retinue.rpc.metrics import end_of, end_of_file, serving_metrics
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from pathlib import Path


def _read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=NEVER) as answer:  # our own
        text: str = answer.read().decode()
    return text


async def test_metrics_of_the_process_are_served_while_the_block_lasts() -> None:
    async with serving_metrics("127.0.0.1:0", "retinue-agent") as port:
        assert "process_resident_memory_bytes" in await asyncio.to_thread(_read, port)
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(_read, port)


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with serving_metrics("127.0.0.1:0", "retinue-agent") as port:
        with pytest.raises(OSError, match="in use"):
            async with serving_metrics(f"127.0.0.1:{port}", "retinue-agent"):
                pass


async def test_a_metric_that_cannot_be_read_is_an_error_of_the_log(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> float:
        raise OSError("out of order")

    broken = Gauge("broken_in_a_test", "It fails.")
    broken.set_function(fail)
    try:
        async with serving_metrics("127.0.0.1:0", "retinue-agent") as port:
            with pytest.raises(urllib.error.HTTPError, match="500"):
                await asyncio.to_thread(_read, port)
            REGISTRY.unregister(broken)
            assert "process_" in await asyncio.to_thread(_read, port)
    finally:
        with contextlib.suppress(KeyError):
            REGISTRY.unregister(broken)
    assert "the metrics cannot be read" in caplog.text
    assert capfd.readouterr().err == ""


async def test_clients_that_go_away_leave_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    async with serving_metrics("127.0.0.1:0", "retinue-agent") as port:
        for sent in (
            b"",
            b"\x16\x03\x01 no HTTP\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\n",
            b"GET /metrics HTTP/1.1\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(sent)
        assert "process_" in await asyncio.to_thread(_read, port)
    assert capfd.readouterr().err == ""


@pytest.mark.attack("slow-metrics")
async def test_slow_clients_hold_a_few_threads_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of which a byte comes now and then."""
    monkeypatch.setattr(metrics, "_CLIENT_SECONDS", 1.0)
    before = threading.active_count()
    async with serving_metrics("127.0.0.1:0", "retinue-agent") as port:
        with contextlib.ExitStack() as stack:
            slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(100)]
            ended = set[int]()

            def drip() -> bool:
                for number, connection in enumerate(slow):
                    try:
                        connection.sendall(b"G")
                    except OSError:
                        ended.add(number)
                # A thread and a timer of each, and that of the server.
                assert threading.active_count() - before <= 2 * metrics._MAX_CLIENTS + 2  # noqa: SLF001
                return len(ended) == len(slow)

            await eventually(drip)
            assert "process_" in await eventually(lambda: asyncio.to_thread(_read, port), ignoring=OSError)


def test_the_end_of_a_certificate_that_is_none_is_no_number(tmp_path: Path) -> None:
    assert math.isnan(end_of("none"))
    assert math.isnan(end_of(b"\xff"))
    assert math.isnan(end_of_file(tmp_path / "none"))
