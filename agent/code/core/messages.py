"""Converts messages of a Jupyter kernel to events of a run. Pure. The sender is not trusted:
invalid messages are left out.

The protocol: https://jupyter-client.readthedocs.io/en/stable/messaging.html.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from retinue.agent.code.core.events import (
    Completions,
    Event,
    Finished,
    Form,
    InputRequest,
    Level,
    Media,
    Notice,
    Status,
    Text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LARGEST_TEXT = 1 << 20
"""Characters of text in one event."""
LARGEST_MEDIA = 3 << 20
"""Bytes of all forms of one thing."""
MAX_FORMS, MAX_LINES, MAX_MATCHES = 32, 200, 1000
LONGEST_WORD, LONGEST_LINE = 1024, 16 * 1024
_BINARY_TYPES = ("image/", "audio/", "video/", "font/", "application/pdf", "application/octet-stream")
_TEXT_ENDS = ("+json", "+xml")


def text(value: Any, max_length: int = LARGEST_TEXT) -> str:
    """Returns a text that can be sent: at most so many characters, and no half of a character."""
    if not isinstance(value, str):
        return ""
    return value[:max_length].encode(errors="replace").decode()


def events_of(kind: str, content: Mapping[str, Any]) -> Iterator[Event]:
    """A message of the output channel, as far as it is about its run."""
    match kind:
        case "stream":
            written = content.get("text")
            for begin in range(0, len(written) if isinstance(written, str) else 0, LARGEST_TEXT // 4):
                piece = text(str(written)[begin : begin + LARGEST_TEXT // 4])
                yield Text(piece, errors=content.get("name") == "stderr")
        case "display_data" | "update_display_data" | "execute_result":
            yield from _media(kind, content)
        case "clear_output":
            yield Notice("the output was cleared", Level.INFO)


def _media(kind: str, content: Mapping[str, Any]) -> Iterator[Event]:
    data, transient = content.get("data"), content.get("transient")
    if not isinstance(data, dict):
        return
    display_id = transient.get("display_id") if isinstance(transient, dict) else ""
    forms, left = list[Form](), LARGEST_MEDIA
    for mime_type, value in list(data.items())[:MAX_FORMS]:
        form = _bytes(str(mime_type), value)
        if len(form) > left:
            about = f"{text(str(mime_type), LONGEST_WORD)} of {len(form)} bytes is too large to be shown"
            yield Notice(about)
            continue
        left -= len(form)
        forms.append(Form(text(str(mime_type), LONGEST_WORD), form))
    if forms:
        yield Media(
            tuple(forms),
            result=kind == "execute_result",
            display_id=text(display_id, LONGEST_WORD),
            update=kind == "update_display_data",
        )


def _bytes(mime_type: str, value: Any) -> bytes:
    if not isinstance(value, str):
        return json.dumps(value).encode()
    if not mime_type.startswith(_BINARY_TYPES) or mime_type.endswith(_TEXT_ENDS):
        return value.encode(errors="replace")
    try:
        # Binary data is sent as base64, with line breaks or without.
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError):
        return value.encode(errors="replace")


def input_request(content: Mapping[str, Any]) -> InputRequest:
    """Returns the event for an input request of a run."""
    prompt, password = text(content.get("prompt"), LONGEST_LINE), content.get("password") is True
    return InputRequest(prompt, password)


def finished(content: Mapping[str, Any], status: Status | None = None) -> Finished:
    """Returns the end of a run by the answer to its request; `status` says more of an error than the answer does."""
    if content.get("status") == "ok":
        return Finished()
    lines = content.get("traceback")
    return Finished(
        status=status or Status.ERROR,
        exit_code=1,
        error_name=text(content.get("ename"), LONGEST_WORD),
        error_value=text(content.get("evalue"), LONGEST_LINE),
        traceback=tuple(text(line, LONGEST_LINE) for line in lines[-MAX_LINES:]) if isinstance(lines, list) else (),
    )


def completions(content: Mapping[str, Any]) -> Completions:
    """Returns completions of code."""
    matches, start, end = content.get("matches"), content.get("cursor_start"), content.get("cursor_end")
    listed = matches[:MAX_MATCHES] if isinstance(matches, list) else []
    found = tuple(text(match, LONGEST_WORD) for match in listed if isinstance(match, str))
    return Completions(found, _position(start), _position(end))


def _position(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0
