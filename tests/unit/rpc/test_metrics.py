from __future__ import annotations

import asyncio
import urllib.request

import pytest

from retinue.rpc.metrics import serving_metrics
from tests.support.eventually import NEVER


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
