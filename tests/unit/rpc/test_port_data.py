"""Messages of OpenPort as they are on the wire: which ones may be passed on unread."""

from __future__ import annotations

import pytest

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc.port_data import data_message, data_of
from retinue.types.v1 import port_pb2


@pytest.mark.parametrize("size", [0, 1, 127, 128, 1 << 14, (1 << 20) - 1, 1 << 20, (1 << 21) + 1])
def test_data_is_written_alike_on_both_sides_and_known_unread(size: int) -> None:
    data = bytes(size)
    messages = [
        kind(data=data).SerializeToString()
        for kind in (pb.OpenPortRequest, pb.OpenPortResponse, agent_pb.OpenPortRequest, agent_pb.OpenPortResponse)
    ]
    assert {*messages, data_message(data)} == {messages[0]}
    assert data_of(messages[0]) == data


STEP = pb.OpenPortRequest(data=b"x" * 200).SerializeToString()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        STEP[:1],
        STEP[:2],
        STEP[:-1],
        STEP + b"\0",
        # The last of several steps is the one that counts.
        STEP + pb.OpenPortRequest(start=pb.OpenPortStart(session="a")).SerializeToString(),
        STEP + STEP,
        pb.OpenPortRequest(start=pb.OpenPortStart(session="a")).SerializeToString(),
        pb.OpenPortRequest(end_of_data=port_pb2.EndOfData()).SerializeToString(),
        agent_pb.OpenPortResponse(opened=agent_pb.PortOpened()).SerializeToString(),
        # A size of more bytes than sizes have.
        STEP[:1] + b"\x80" * 9 + b"\0",
    ],
)
def test_whatever_else_a_message_holds_is_read(message: bytes) -> None:
    assert data_of(message) is None
