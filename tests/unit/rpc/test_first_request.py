"""What a stream of requests begins with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc import first_request
from retinue.rpc.core import errors
from retinue.types.v1 import terminal_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def coming(*requests: pb.AttachRequest) -> AsyncIterator[pb.AttachRequest]:
    for request in requests:
        yield request


async def nothing() -> AsyncIterator[pb.AttachRequest]:
    await asyncio.Event().wait()
    yield pb.AttachRequest()


async def test_the_first_request_has_the_field() -> None:
    request = pb.AttachRequest(start=pb.AttachStart(session="s"))
    assert await first_request.first_request(anext(coming(request)), "start") == request


@pytest.mark.parametrize(
    "requests", [coming(), coming(pb.AttachRequest(input=terminal_pb2.CommandInput(stdin=b"x"))), nothing()]
)
async def test_what_does_not_begin_so_is_refused(
    requests: AsyncIterator[pb.AttachRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_request, "START_SECONDS", 0.01)
    with pytest.raises(errors.InvalidRequest) as refused:
        await first_request.first_request(anext(requests), "start")
    assert refused.value.violations == [("start", "must come first")]
