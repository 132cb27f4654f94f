"""What was sent arrives although its sender has nothing more to say, and one reader that has gone holds up no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio
import pytest

from retinue.client.aio import Client
from retinue.client.kernel.code import MAX_UNREAD
from retinue.client.kernel.port import LocalPort
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.manager.v1 import kernel_service_pb2_grpc as service_grpc
from retinue.types.v1 import code_pb2, port_pb2, terminal_pb2
from tests.support.eventually import NEVER, eventually

Connect = Callable[[Callable[[grpc.aio.Server], None]], Awaitable[Client]]
BYTES = 3 << 20


class Servicer(service_grpc.KernelServiceServicer):
    """A port whose server has nothing to say and takes what comes slowly, and runs with many events."""

    def __init__(self) -> None:
        self.taken = 0
        self.ended = asyncio.Event()

    async def OpenPort(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.OpenPortResponse]:
        await anext(request_iterator)
        yield pb.OpenPortResponse(opened=pb.PortOpened(port=80))
        yield pb.OpenPortResponse(end_of_data=port_pb2.EndOfData())
        try:
            async for request in request_iterator:
                if request.HasField("end_of_data"):
                    return
                await asyncio.sleep(0.02)
                self.taken += len(request.data)
        finally:
            self.ended.set()

    async def Attach(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.AttachResponse]:
        await anext(request_iterator)
        exited = terminal_pb2.CommandExited(exit_code=3)
        yield pb.AttachResponse(output=terminal_pb2.CommandOutput(exited=exited))

    async def ExecuteCode(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.ExecuteCodeResponse]:
        async for request in request_iterator:
            if request.HasField("open"):
                yield _response(opened=code_pb2.CodeOpened())
                continue
            for number in range(3 * MAX_UNREAD):
                event = code_pb2.CodeEvent(run_id=request.input.run.run_id, offset=number, stdout="x")
                yield _response(events=code_pb2.CodeEvents(events=[event]))
            last = code_pb2.CodeEvent(run_id=request.input.run.run_id, finished=code_pb2.CodeFinished())
            yield _response(events=code_pb2.CodeEvents(events=[last]))


def _response(**step: Any) -> pb.ExecuteCodeResponse:
    return pb.ExecuteCodeResponse(output=code_pb2.CodeOutput(**step))


async def test_a_local_port_closes_when_all_was_taken(connect: Connect) -> None:
    servicer = Servicer()
    client = await connect(lambda server: service_grpc.add_KernelServiceServicer_to_server(servicer, server))
    async with LocalPort(lambda: client.sessions.open_port("s", 80)) as port:
        reader, writer = await asyncio.open_connection(*port.address)
        writer.write(bytes(BYTES))
        writer.write_eof()
        # The other side has ended its direction before.
        assert await reader.read() == b""
        async with asyncio.timeout(NEVER):
            await servicer.ended.wait()
        writer.close()
    assert servicer.taken == BYTES


async def test_a_connection_is_finished_when_all_was_taken(connect: Connect) -> None:
    servicer = Servicer()
    client = await connect(lambda server: service_grpc.add_KernelServiceServicer_to_server(servicer, server))
    async with client.sessions.open_port("s", 80) as connection:
        await connection.write(bytes(BYTES))
        await connection.end_data()
        assert [data async for data in connection] == []
        await connection.finish()
    assert servicer.taken == BYTES


async def test_a_run_that_is_not_read_to_its_end_holds_up_no_other(connect: Connect) -> None:
    client = await connect(lambda server: service_grpc.add_KernelServiceServicer_to_server(Servicer(), server))
    async with client.sessions.code("s") as code, asyncio.timeout(NEVER):
        left = code.run("left")
        await anext(left)
        # What is read for all runs waits for room in this one.
        (unread,) = code._runs.values()  # noqa: SLF001  # they have no other name
        await eventually(unread.full)
        await left.aclose()
        assert (await code.execute("other")).stdout == "x" * 3 * MAX_UNREAD


@pytest.mark.parametrize("pause", [0.0, 0.0005], ids=["fast", "slow"])
async def test_a_slow_reader_gets_all_of_a_run_behind_the_end_of_requests(connect: Connect, pause: float) -> None:
    client = await connect(lambda server: service_grpc.add_KernelServiceServicer_to_server(Servicer(), server))
    async with client.sessions.code("s") as code, asyncio.timeout(NEVER):
        events = []

        async def read() -> None:
            async for event in code.run("slow"):
                await asyncio.sleep(pause)
                events.append(event)

        reading = asyncio.create_task(read())
        while not events:
            await asyncio.sleep(0)
        await code.finish()
        await reading
    assert len(events) == 3 * MAX_UNREAD + 1


async def test_the_input_of_a_command_that_has_ended_may_end(connect: Connect) -> None:
    client = await connect(lambda server: service_grpc.add_KernelServiceServicer_to_server(Servicer(), server))
    async with client.sessions.attach("s", ["true"]) as command, asyncio.timeout(NEVER):
        # Some before the server's end of the call has come, and some after.
        for _ in range(50):
            await command.end_input()
            await asyncio.sleep(0.01)
        assert [printed async for printed in command] == []
        assert command.exit_code == 3
