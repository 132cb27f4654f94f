"""Frames of HTTP/2, made by hand: libraries refuse to send what attackers do."""

from __future__ import annotations

import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(stream: int, fields: dict[str, str], flags: int = END_HEADERS) -> bytes:
    """A frame of literal fields that are not indexed: RFC 7541, section 6.2.2."""
    return frame(HEADERS, flags, stream, b"".join(b"\0" + _text(name) + _text(fields[name]) for name in fields))


def _text(value: str) -> bytes:
    assert len(value) < 127
    return bytes([len(value)]) + value.encode()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
"""What a client sends first."""


def request(method: str, token: str = "") -> dict[str, str]:
    """The fields of a call of gRPC."""
    return {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    } | ({"authorization": token} if token else {})
