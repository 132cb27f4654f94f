"""A connection to a port of a kernel whose end cannot be watched, and what a stream with a
direct port beside it may carry.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.api.files import FileService
from retinue.agent.api.open_port import PortService
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.errors import ServiceError
from retinue.types.v1 import port_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence


class Kernel:
    """One whose end is watched for as long as a test wants, and then cannot be: there is no descriptor left."""

    def __init__(self) -> None:
        self.watched, self.failing = asyncio.Event(), asyncio.Event()
        self.ends: list[socket.socket] = []

    async def wait_ended(self) -> None:
        self.watched.set()
        try:
            await self.failing.wait()
        finally:
            raise OSError(errno.EMFILE, "Too many open files")

    async def connect(self, port: int, addresses: Sequence[str], source: str = "") -> socket.socket:
        assert (port, addresses[0], source) == (80, "127.0.0.1", "")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.ends.append(theirs)
        return ours


class Backend:
    def __init__(self) -> None:
        self.found = Kernel()

    def kernel(self, attempt_id: str) -> Kernel:
        assert attempt_id == "k.1"
        return self.found


async def requests(*steps: pb.OpenPortRequest, direct: bool = False) -> AsyncIterator[bytes]:
    start = pb.OpenPortStart(attempt_id="k.1", port=80, direct=direct)
    for step in (pb.OpenPortRequest(start=start), *steps):
        yield step.SerializeToString()
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def opened(
    *steps: pb.OpenPortRequest, direct: bool = False
) -> AsyncIterator[tuple[Kernel, AsyncGenerator[bytes, None]]]:
    """A stream that is connected."""
    backend = Backend()
    known: Any = backend
    service = PortService(known, FileService(known))
    if direct:
        service.direct.open("127.0.0.1", 0)
    try:
        async with contextlib.aclosing(service.serve(requests(*steps, direct=direct))) as responses:
            found = pb.OpenPortResponse.FromString(await anext(responses))
            assert found.WhichOneof("step") == "opened"
            assert found.opened.direct.port == service.direct.port
            await backend.found.watched.wait()
            yield backend.found, responses
    finally:
        await service.direct.close()
        for end in backend.found.ends:
            end.close()


async def test_a_kernel_that_cannot_be_watched_is_not_said_to_have_ended() -> None:
    async with opened() as (kernel, responses):
        kernel.failing.set()
        # The server answers with an incident, and logs it: neither the caller nor the kernel has a part in it.
        with pytest.raises(OSError, match="Too many open files"):
            await anext(responses)


REFUSED = pb.OpenPortRequest(direct_refused=port_pb2.DirectRefused())


async def test_a_stream_carries_what_no_direct_connection_does() -> None:
    async with opened(REFUSED, pb.OpenPortRequest(data=b"there"), direct=True) as (kernel, responses):
        kernel.ends[0].sendall(b"back")
        assert pb.OpenPortResponse.FromString(await anext(responses)).data == b"back"
        kernel.ends[0].setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(kernel.ends[0], 100) == b"there"


@pytest.mark.parametrize("step", [pb.OpenPortRequest(data=b"x"), pb.OpenPortRequest(end_of_data=port_pb2.EndOfData())])
async def test_data_before_the_direct_port_is_refused_makes_no_sense(step: pb.OpenPortRequest) -> None:
    async with opened(step, direct=True) as (_, responses):
        with pytest.raises(ServiceError) as refused:
            await anext(responses)
    assert refused.value.reason == "INVALID_FIELD"


async def test_refusing_a_port_that_was_not_offered_makes_no_sense() -> None:
    async with opened(REFUSED) as (_, responses):
        with pytest.raises(ServiceError) as refused:
            await anext(responses)
    assert refused.value.reason == "INVALID_FIELD"


async def test_a_failure_behind_the_end_of_the_stream_leaves_nothing_unretrieved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened() as (kernel, _):
        kernel.ends[0].sendall(b"x")
    # The task is cancelled with the stream, and fails instead.
    while any(task.get_name() == "end of k.1" for task in asyncio.all_tasks()):
        await asyncio.sleep(0)
    gc.collect()
    assert "never retrieved" not in caplog.text
