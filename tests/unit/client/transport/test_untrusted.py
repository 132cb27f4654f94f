"""A manager whose certificate is not trusted: the error says what to set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc.aio
import pytest

from retinue.client.aio import Client, RetryBudget, Unavailable

Register = Callable[[grpc.aio.Server], None]
QUICK = RetryBudget(first=0.001, longest=0.002, total=0.0)


async def test_without_a_ca_the_error_says_what_to_set(serve: Callable[[Register], Awaitable[str]]) -> None:
    endpoint = await serve(lambda _server: None)
    async with Client.connect(endpoint, token="secret", ca=None, retry_budget=QUICK) as client:
        with pytest.raises(
            Unavailable, match=r"127.* is not trusted: set RETINUE_CA, or --ca, to a copy of the manager's ca\.pem"
        ):
            await client.sessions.get("x")
