"""No text of any request to the manager holds NUL, wherever it is, and the answer names the field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.listeners import SERVICES
from retinue.manager.server.messages import read
from retinue.manager.v1 import kernel_service_pb2
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.types.v1 import terminal_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

NUL = "a\0b"
DEEPEST = 6


def requests() -> dict[str, Descriptor]:
    """The messages that methods take, by the names of these."""
    pool = descriptor_pool.Default()
    services = [pool.FindServiceByName(name) for name in SERVICES]
    return {method.full_name: method.input_type for service in services for method in service.methods}


def fill(message: Message, depth: int = 0) -> Iterator[tuple[str, Message]]:
    """A path, and the message with NUL there and nothing else, for each text at any depth."""
    for field in message.DESCRIPTOR.fields:
        yield from filled(message, field, depth)


def filled(message: Any, field: Any, depth: int) -> Iterator[tuple[str, Message]]:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = inner.fields_by_name["key"], inner.fields_by_name["value"]
        if key.type == FieldDescriptor.TYPE_STRING:
            if value.message_type is None:
                getattr(message, field.name)[NUL] = value.default_value
            else:
                getattr(message, field.name)[NUL].SetInParent()
            yield field.name, message
            message.ClearField(field.name)
        if value.type == FieldDescriptor.TYPE_STRING:
            getattr(message, field.name)["key"] = NUL
            yield f"{field.name}['key']", message
            message.ClearField(field.name)
        return
    place = f"{field.name}[0]" if field.is_repeated else field.name
    if field.type == FieldDescriptor.TYPE_STRING:
        if field.is_repeated:
            getattr(message, field.name).append(NUL)
        else:
            setattr(message, field.name, NUL)
        yield place, message
        message.ClearField(field.name)
    elif inner is not None and depth < DEEPEST:
        below = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
        for path, _ in fill(below, depth + 1):
            yield f"{place}.{path}", message
        message.ClearField(field.name)


@pytest.mark.attack("odd-variables", "unreadable-messages")
@pytest.mark.parametrize("method", sorted(requests()))
def test_every_text_of_every_request(method: str) -> None:
    kind: Any = message_factory.GetMessageClass(requests()[method])
    for path, message in fill(kind()):
        with pytest.raises(InvalidRequest) as caught:
            read(message.SerializeToString(), kind.FromString)
        assert caught.value.violations == [(path, "must not hold NUL")], path


def test_all_of_them_are_named() -> None:
    request = pb.CreateSessionRequest(request_id=NUL)
    request.spec.name = NUL
    request.spec.kernel.command.extend(("sound", NUL, NUL))
    request.spec.kernel.environment.update({"a": NUL, "b": "sound", "c": NUL})
    with pytest.raises(InvalidRequest) as caught:
        read(request.SerializeToString(), pb.CreateSessionRequest.FromString)
    assert sorted(path for path, _ in caught.value.violations) == [
        "request_id",
        "spec.kernel.command[1]",
        "spec.kernel.command[2]",
        "spec.kernel.environment['a']",
        "spec.kernel.environment['c']",
        "spec.name",
    ]


@pytest.mark.parametrize("text", ["\0", "\0b", "a\0", "a\0b", "\0" * 3])
def test_wherever_in_a_text_it_is(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(pb.GetSessionRequest(session=text).SerializeToString(), pb.GetSessionRequest.FromString)
    assert caught.value.violations == [("session", "must not hold NUL")]


def test_there_are_many_texts() -> None:
    paths = [path for path, _ in fill(pb.CreateSessionRequest())]
    assert {"spec.kernel.command[0]", "spec.kernel.environment", "spec.kernel.environment['key']", "request_id"} <= set(
        paths
    )


def test_other_zeros_are_no_texts() -> None:
    request = kernel_service_pb2.AttachRequest(input=terminal_pb2.CommandInput(stdin=b"\0\0"))
    assert read(request.SerializeToString(), kernel_service_pb2.AttachRequest.FromString) == request


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    wire = pb.GetSessionRequest(session="xyz").SerializeToString().replace(b"xyz", b"\xed\xa0\x80")
    with pytest.raises(InvalidRequest) as caught:
        read(wire, pb.GetSessionRequest.FromString)
    assert caught.value.violations == [("request", "cannot be read as a message of its kind")]
