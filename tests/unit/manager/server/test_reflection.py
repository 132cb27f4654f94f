"""Reflection: what tools of any language ask a server about itself, in both versions of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2 as pb

from retinue.manager.listeners import SERVICES
from retinue.manager.server.reflection import V1, V1ALPHA, ReflectionServicer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SESSIONS = "retinue.manager.v1.SessionService"


@pytest_asyncio.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    ReflectionServicer(SERVICES).add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def asked(
    channel: grpc.aio.Channel, *requests: pb.ServerReflectionRequest, version: str = V1
) -> list[pb.ServerReflectionResponse]:
    method = channel.stream_stream(
        f"/{version}/ServerReflectionInfo",
        request_serializer=pb.ServerReflectionRequest.SerializeToString,
        response_deserializer=pb.ServerReflectionResponse.FromString,
    )
    return [response async for response in method(iter(requests))]


def files(response: pb.ServerReflectionResponse) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    found = map(descriptor_pb2.FileDescriptorProto.FromString, response.file_descriptor_response.file_descriptor_proto)
    return {file.name: file for file in found}


@pytest.mark.parametrize("version", [V1, V1ALPHA])
async def test_services_are_listed_in_both_versions(channel: grpc.aio.Channel, version: str) -> None:
    request = pb.ServerReflectionRequest(list_services="")
    (response,) = await asked(channel, request, version=version)
    assert {service.name for service in response.list_services_response.service} == set(SERVICES)
    assert response.original_request == request


@pytest.mark.parametrize(
    "symbol",
    [
        SESSIONS,
        f"{SESSIONS}.CreateSession",
        "retinue.manager.v1.Session",
        "retinue.manager.v1.Session.state",
        "retinue.manager.v1.SESSION_STATE_RUNNING",
        V1,
        "grpc.health.v1.Health.Check",
    ],
)
async def test_a_symbol_comes_with_a_whole_set_of_files(channel: grpc.aio.Channel, symbol: str) -> None:
    (response,) = await asked(channel, pb.ServerReflectionRequest(file_containing_symbol=symbol))
    found = files(response)
    # All that is imported is there: another program can build the types from it.
    pool = descriptor_pool.DescriptorPool()
    waiting = dict(found)
    while waiting:
        ready = [name for name, file in waiting.items() if not set(file.dependency) & set(waiting)]
        assert ready
        for name in ready:
            pool.Add(waiting.pop(name))


async def test_comments_come_with_the_files_of_the_contract(channel: grpc.aio.Channel) -> None:
    (response,) = await asked(channel, pb.ServerReflectionRequest(file_containing_symbol=SESSIONS))
    (file,) = (file for name, file in files(response).items() if name.endswith("/session_service.proto"))
    comments = [location.leading_comments for location in file.source_code_info.location]
    assert any("Accepts a session" in comment for comment in comments), comments


async def test_what_is_not_there_is_reported_and_ends_nothing(channel: grpc.aio.Channel) -> None:
    extension = pb.ExtensionRequest(containing_type="retinue.manager.v1.Session", extension_number=5)
    odd = [
        pb.ServerReflectionRequest(file_containing_symbol="no.Such"),
        pb.ServerReflectionRequest(file_containing_symbol=f"{SESSIONS}.NoSuch"),
        pb.ServerReflectionRequest(file_containing_symbol=""),
        pb.ServerReflectionRequest(file_containing_symbol="." * 1000),
        pb.ServerReflectionRequest(file_by_filename="/etc/passwd"),
        pb.ServerReflectionRequest(file_containing_extension=extension),
        pb.ServerReflectionRequest(all_extension_numbers_of_type="no.Such"),
        pb.ServerReflectionRequest(),
    ]
    responses = await asked(channel, *odd, pb.ServerReflectionRequest(list_services=""))
    codes = [response.error_response.error_code for response in responses]
    assert codes == [5, 5, 5, 5, 5, 5, 5, 3, 0]
    assert responses[-1].list_services_response.service


async def test_extensions_are_found(channel: grpc.aio.Channel) -> None:
    asking = pb.ServerReflectionRequest(all_extension_numbers_of_type="retinue.manager.v1.Session")
    (response,) = await asked(channel, asking)
    assert response.all_extension_numbers_response.base_type_name == "retinue.manager.v1.Session"
