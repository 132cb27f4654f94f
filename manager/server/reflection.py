"""Server reflection, in the versions `v1` and `v1alpha`, which differ in name only: with comments,
and for methods and fields as well.

The library's own servicer has `v1alpha` only, finds no methods, and knows no comments, since generated code holds none.
"""

from __future__ import annotations

import importlib.resources
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from google.protobuf.descriptor import FileDescriptor

V1 = "grpc.reflection.v1.ServerReflection"
V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"
_METHOD = "ServerReflectionInfo"


def _describe_v1(pool: descriptor_pool.DescriptorPool) -> None:
    """Adds the description of `v1` to a pool: that of `v1alpha` under its own names."""
    text = pb.DESCRIPTOR.serialized_pb
    old = descriptor_pb2.FileDescriptorProto.FromString(text)
    new = descriptor_pb2.FileDescriptorProto()
    new.CopyFrom(old)
    new.name, new.package = "grpc/reflection/v1/reflection.proto", "grpc.reflection.v1"
    for message in new.message_type:
        for field in (field for field in message.field if field.type_name):
            field.type_name = field.type_name.replace(".v1alpha.", ".v1.")
    for service in new.service:
        for method in service.method:
            method.input_type = method.input_type.replace(".v1alpha.", ".v1.")
            method.output_type = method.output_type.replace(".v1alpha.", ".v1.")
    new.options.Clear()
    pool.Add(new)


_POOL = descriptor_pool.Default()
_describe_v1(_POOL)


class ReflectionServicer:
    """Describes the services of a server."""

    def __init__(self, services: Sequence[str]) -> None:
        """`services` are listed, by their full names."""
        self._services = services
        self._commented = _commented()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serves both versions."""
        handler = grpc.stream_stream_rpc_method_handler(
            self._serve,
            request_deserializer=pb.ServerReflectionRequest.FromString,
            response_serializer=pb.ServerReflectionResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, {_METHOD: handler}) for name in (V1, V1ALPHA))
        )

    async def _serve(
        self, requests: AsyncIterator[pb.ServerReflectionRequest], context: Any
    ) -> AsyncIterator[pb.ServerReflectionResponse]:
        del context
        async for request in requests:
            response = self._answer(request)
            response.original_request.CopyFrom(request)
            yield response

    def _answer(self, request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
        match request.WhichOneof("message_request"):
            case "list_services":
                found = [pb.ServiceResponse(name=name) for name in sorted(self._services)]
                return pb.ServerReflectionResponse(list_services_response=pb.ListServiceResponse(service=found))
            case "file_by_filename":
                return self._files(_file_named(request.file_by_filename))
            case "file_containing_symbol":
                return self._files(_file_with(request.file_containing_symbol))
            case "file_containing_extension":
                wanted = request.file_containing_extension
                return self._files(_file_extending(wanted.containing_type, wanted.extension_number))
            case "all_extension_numbers_of_type":
                return _extensions(request.all_extension_numbers_of_type)
            case _:
                return _error(grpc.StatusCode.INVALID_ARGUMENT, "a request asks for one thing")

    def _files(self, file: FileDescriptor | None) -> pb.ServerReflectionResponse:
        """Returns a file and all that it imports."""
        if file is None:
            return _error(grpc.StatusCode.NOT_FOUND, "not found")
        files = {file.name: file}
        waiting = [file]
        while waiting:
            for dependency in waiting.pop().dependencies:
                if dependency.name not in files:
                    files[dependency.name] = dependency
                    waiting.append(dependency)
        found = [self._commented.get(name) or item.serialized_pb for name, item in files.items()]
        return pb.ServerReflectionResponse(
            file_descriptor_response=pb.FileDescriptorResponse(file_descriptor_proto=found)
        )


def _commented() -> dict[str, bytes]:
    """Returns the files of the contract with their comments, as the build wrote them, by name."""
    content = importlib.resources.files("retinue").joinpath("contract.binpb").read_bytes()
    files = descriptor_pb2.FileDescriptorSet.FromString(content).file
    return {file.name: file.SerializeToString() for file in files}


def _file_named(name: str) -> FileDescriptor | None:
    return _found(lambda: _POOL.FindFileByName(name))


def _file_with(symbol: str) -> FileDescriptor | None:
    for find in (
        lambda: _POOL.FindFileContainingSymbol(symbol),
        lambda: _POOL.FindMethodByName(symbol).containing_service.file,
        lambda: _POOL.FindFileContainingSymbol(symbol.rpartition(".")[0]) if _POOL.FindFieldByName(symbol) else None,
    ):
        if (file := _found(find)) is not None:
            return file
    return None


def _file_extending(message: str, number: int) -> FileDescriptor | None:
    return _found(
        lambda: _POOL.FindFileContainingSymbol(
            _POOL.FindExtensionByNumber(_POOL.FindMessageTypeByName(message), number).full_name
        )
    )


def _found(find: Callable[[], FileDescriptor | None]) -> FileDescriptor | None:
    try:
        return find()
    except KeyError:
        return None


def _extensions(message: str) -> pb.ServerReflectionResponse:
    try:
        descriptor = _POOL.FindMessageTypeByName(message)
    except KeyError:
        return _error(grpc.StatusCode.NOT_FOUND, "not found")
    numbers = sorted(extension.number for extension in _POOL.FindAllExtensions(descriptor))
    found = pb.ExtensionNumberResponse(base_type_name=descriptor.full_name, extension_number=numbers)
    return pb.ServerReflectionResponse(all_extension_numbers_response=found)


def _error(code: grpc.StatusCode, message: str) -> pb.ServerReflectionResponse:
    return pb.ServerReflectionResponse(error_response=pb.ErrorResponse(error_code=code.value[0], error_message=message))
