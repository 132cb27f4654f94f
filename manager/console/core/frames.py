"""Makes and reads what is exchanged with browsers: gRPC-Web for calls, the end of a stream in JSON. Pure."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from urllib.parse import quote

PROTOCOL = "retinue.grpc.v1"
"""The subprotocol of websockets: a binary message is a request or an answer, an empty text ends the requests,
and a text in JSON ends the stream.
"""
CONTENT_TYPE = "application/grpc-web+proto"
MAX_MESSAGE = 4 << 20
HEADER_BYTES = 5
_TRAILERS = 0x80
# As gRPC encodes messages of statuses: printable ASCII but for %.
_PLAIN = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


@dataclass(frozen=True, slots=True)
class End:
    """The status that a call ends with: its number in gRPC, words, and a serialized google.rpc.Status."""

    code: int = 0
    message: str = ""
    details: bytes = b""

    def json(self) -> str:
        """The last message of a stream."""
        details = base64.b64encode(self.details).decode()
        return json.dumps({"code": self.code, "message": self.message, "details": details})

    def trailers(self) -> bytes:
        """The last frame of a call."""
        lines = [f"grpc-status:{self.code}"]
        if self.message:
            lines.append(f"grpc-message:{quote(self.message, safe=_PLAIN)}")
        if self.details:
            lines.append(f"grpc-status-details-bin:{base64.b64encode(self.details).decode().rstrip('=')}")
        return _frame(_TRAILERS, "".join(f"{line}\r\n" for line in lines).encode())


def request_in(body: bytes) -> bytes | None:
    """Returns the one message in the body of a call, of which none is compressed; None when it is not just that."""
    if len(body) < HEADER_BYTES or struct.unpack(">BI", body[:HEADER_BYTES]) != (0, len(body) - HEADER_BYTES):
        return None
    return body[HEADER_BYTES:]


def response(message: bytes) -> bytes:
    """Returns the body of the answer to a call that succeeded."""
    return _frame(0, message) + End().trailers()


def _frame(kind: int, content: bytes) -> bytes:
    return struct.pack(">BI", kind, len(content)) + content
