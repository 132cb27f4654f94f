"""A client that is closed while others wait for it: they get an error, and none waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from retinue.client.aio import Client, ClientClosed
from retinue.manager.v1 import kernel_service_pb2 as kernel_pb
from retinue.manager.v1 import kernel_service_pb2_grpc as kernel_grpc
from retinue.manager.v1 import session_service_pb2 as service_pb
from retinue.manager.v1 import session_service_pb2_grpc as service_grpc
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from tests.support.eventually import NEVER
from tests.unit.client.journal import session

Connect = Callable[[Callable[[grpc.aio.Server], None]], Awaitable[Client]]


class Sessions(service_grpc.SessionServiceServicer):
    """Answers nothing but what a watch begins with."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def CreateSession(self, request: Any, context: Any) -> service_pb.CreateSessionResponse:
        return service_pb.CreateSessionResponse(session=session(), position=JournalPosition(revision=7))

    async def GetSession(self, request: Any, context: Any) -> service_pb.GetSessionResponse:
        self.asked.set()
        await asyncio.sleep(NEVER)
        raise AssertionError("never")

    async def WatchSessions(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:  # type: ignore[override]  # it yields nothing
        self.asked.set()
        await asyncio.sleep(NEVER)


class Kernels(kernel_grpc.KernelServiceServicer):
    """Takes streams, and answers with no more than their beginning."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def Attach(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[kernel_pb.AttachResponse]:
        self.asked.set()
        await asyncio.sleep(NEVER)
        yield kernel_pb.AttachResponse()

    async def ExecuteCode(
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[kernel_pb.ExecuteCodeResponse]:
        async for request in requests:
            if request.HasField("open"):
                yield kernel_pb.ExecuteCodeResponse()
            else:
                self.asked.set()

    async def ListFiles(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.asked.set()
        await asyncio.sleep(NEVER)
        yield None


async def _get(client: Client) -> None:
    await client.sessions.get("s")


async def _wait(client: Client) -> None:
    await (await client.sessions.create(type="batch", command=["true"])).wait_ended()


async def _attach(client: Client) -> None:
    made = await client.sessions.create(type="batch", command=["true"])
    async with made.attach(["cat"]) as attachment:
        async for _ in attachment:
            raise AssertionError("nothing is sent")


async def _code(client: Client) -> None:
    made = await client.sessions.create(type="batch", command=["true"])
    async with made.code() as code:
        await code.execute("1")


async def _files(client: Client) -> None:
    made = await client.sessions.create(type="batch", command=["true"])
    await made.files().list()


@pytest.mark.parametrize("waiting", [_get, _wait, _attach, _code, _files])
async def test_those_that_wait_get_an_error_of_the_library(
    connect: Connect, waiting: Callable[[Client], Awaitable[None]]
) -> None:
    sessions, kernels = Sessions(), Kernels()

    def register(server: grpc.aio.Server) -> None:
        service_grpc.add_SessionServiceServicer_to_server(sessions, server)
        kernel_grpc.add_KernelServiceServicer_to_server(kernels, server)

    client = await connect(register)

    async def wait() -> None:
        with pytest.raises(ClientClosed):
            await waiting(client)

    async with asyncio.timeout(NEVER), asyncio.TaskGroup() as group:
        task = group.create_task(wait())
        asked = [group.create_task(one.asked.wait()) for one in (sessions, kernels)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        await client.close()
        await task
        for one in asked:
            one.cancel()


async def test_a_task_that_is_cancelled_is_cancelled(connect: Connect) -> None:
    servicer = Sessions()
    client = await connect(lambda server: service_grpc.add_SessionServiceServicer_to_server(servicer, server))
    task = asyncio.create_task(_get(client))
    await servicer.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
