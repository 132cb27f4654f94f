"""Frames of gRPC-Web, and the end of a stream."""

from __future__ import annotations

import json

import pytest

from retinue.manager.console.core.frames import End, request_in, response


def test_the_request_of_a_call() -> None:
    assert request_in(b"\0\0\0\0\3abc") == b"abc"
    assert request_in(b"\0\0\0\0\0") == b""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"abc",
        b"\0\0\0\0",
        b"\0\0\0\0\2abc",
        b"\0\0\0\0\4abc",
        b"\1\0\0\0\3abc",
        b"\x80\0\0\0\3abc",
        b"\0\0\0\0\1a" * 2,
    ],
)
def test_nothing_else_is_one(body: bytes) -> None:
    assert request_in(body) is None


def test_the_answer_of_a_call() -> None:
    assert response(b"abc") == b"\0\0\0\0\3abc\x80\0\0\0\x0fgrpc-status:0\r\n"
    failed = End(5, "no such session: é\r\n%", b"\0\1").trailers()
    assert failed[:5] == b"\x80\0\0\0" + bytes([len(failed) - 5])
    assert failed[5:].split(b"\r\n") == [
        b"grpc-status:5",
        b"grpc-message:no such session: %C3%A9%0D%0A%25",
        b"grpc-status-details-bin:AAE",
        b"",
    ]


def test_the_end_of_a_stream() -> None:
    assert json.loads(End().json()) == {"code": 0, "message": "", "details": ""}
    assert json.loads(End(16, "é", b"\0\1").json()) == {"code": 16, "message": "é", "details": "AAE="}
