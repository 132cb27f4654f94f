"""A Docker engine of this machine, as far as a local cluster has to know it: whether it answers, and what agents left in it."""

from __future__ import annotations

import http.client
import json
import socket
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

DEFAULT_HOST = "unix:///var/run/docker.sock"
_TIMEOUT = 10.0
_SCHEME = "unix://"


class _Connection(http.client.HTTPConnection):
    """HTTP over the engine's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT)
        self.sock.connect(self._path)


def answers(host: str = "") -> bool:
    """Returns whether there is an engine that answers. Blocks."""
    return _request(host, "GET", "/_ping") is not None


def ask(host: str, path: str) -> dict[str, Any] | None:
    """Returns the answer to a question that has an object for an answer; None when there is none. Blocks."""
    content = _request(host, "GET", path)
    found: dict[str, Any] | None = json.loads(content) if content is not None else None
    return found


def containers(host: str, label: str) -> list[str]:
    """Returns the names of the containers with a label `NAME=VALUE`, ended ones too; none where no engine answers. Blocks."""
    query = urlencode({"all": "true", "filters": json.dumps({"label": [label]})})
    content = _request(host, "GET", f"/containers/json?{query}")
    found: list[dict[str, Any]] = json.loads(content) if content is not None else []
    return sorted(container["Names"][0].removeprefix("/") for container in found)


def remove(host: str, name: str) -> None:
    """Ends and removes a container; one that is not there is no error. Blocks."""
    _request(host, "DELETE", f"/containers/{quote(name)}?force=true&v=true")


def load_image(host: str, archive: bytes, repository: str, tag: str) -> bool:
    """Makes an image of one layer out of a tar archive; whether that was done. Blocks."""
    query = urlencode({"fromSrc": "-", "repo": repository, "tag": tag})
    return _request(host, "POST", f"/images/create?{query}", archive) is not None


def remove_image(host: str, reference: str) -> None:
    """Removes an image; one that is not there is no error. Blocks."""
    _request(host, "DELETE", f"/images/{quote(reference)}")


def _request(host: str, method: str, path: str, body: bytes | None = None) -> bytes | None:
    """Returns the content of the answer; None when there is none, or it is an error."""
    place = (host or DEFAULT_HOST).removeprefix(_SCHEME)
    if not Path(place).is_socket():
        return None
    connection = _Connection(place)
    try:
        connection.request(method, path, body, {"Content-Type": "application/x-tar"} if body is not None else {})
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return content if response.status < HTTPStatus.BAD_REQUEST else None
