"""Fetching an image by the engine, over a connection of its own that can be broken off, which the SDK's cannot."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from retinue.agent.docker.engine import EngineError, EngineUnavailableError
from retinue.agent.docker.registries import encode_login

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECT_TIMEOUT = 30.0
MAX_LINE = 4 << 20
"""Bytes of an event. The engine puts all that a registry says of an error into one."""
MAX_ERROR = 4096
"""Characters of an error that are kept."""


class Pull:
    """One request for one image. The engine ends it when the connection is closed, and keeps layers that are whole."""

    def __init__(self, host: str, repository: str, wanted: str, login: dict[str, str]) -> None:
        """`wanted` is a tag or a digest, `login` what `read_credentials` gives. Nothing is asked of the engine yet."""
        self._path = host.removeprefix("unix://")
        self._query = urlencode({"fromImage": repository, "tag": wanted})
        self._login = login
        self._socket: socket.socket | None = None
        self._over = False

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the engine's progress events, until it has the image. Blocks; for one thread.

        Raises EngineError in the engine's words, EngineUnavailableError when the connection ends too early.
        """
        connection = http.client.HTTPConnection("localhost")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                self._socket = connection.sock = channel
                channel.settimeout(CONNECT_TIMEOUT)
                channel.connect(self._path)
                # A registry may be silent for long; the waiter decides for how long.
                channel.settimeout(None)
                if not self._over:
                    headers = {"X-Registry-Auth": encode_login(self._login)}
                    connection.request("POST", f"/images/create?{self._query}", headers=headers)
                    with connection.getresponse() as response:
                        yield from _read(response)
        except (OSError, http.client.HTTPException) as error:
            raise EngineUnavailableError(f"the Docker engine does not answer: {error}") from error
        finally:
            self._socket = None

    def abort(self) -> None:
        """Has `events` end soon; for any thread."""
        self._over = True
        channel = self._socket
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)


def _read(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise EngineError(_message(response.read(MAX_LINE)))
    for line in _lines(response):
        try:
            event: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(event, dict):
            continue
        if "error" in event:
            raise EngineError(str(event["error"])[:MAX_ERROR])
        yield event


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yields the lines as they come. Raises HTTPException when the answer is cut off: by its own lines, a response would just end.

    Raises EngineError when a line does not end.
    """
    rest = bytearray()
    while piece := response.read1():
        *lines, tail = piece.split(b"\n")
        for line in lines:
            yield bytes(rest + line)
            rest.clear()
        rest += tail
        if len(rest) > MAX_LINE:
            raise EngineError("the Docker engine reports an event without an end")


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])[:MAX_ERROR]
    except (ValueError, KeyError, TypeError, RecursionError):
        return content.decode(errors="replace")[:500]
