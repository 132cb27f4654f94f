"""A Docker engine of this machine, as far as a local cluster has to know it: whether it answers,
and what agents left in it.

All of it blocks, and none of it raises where no engine answers.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_HOST = "unix:///var/run/docker.sock"
_TIMEOUT = 10


def answers(host: str = "") -> bool:
    """Returns whether there is an engine that answers."""
    return _ask(host, lambda client: client.ping()) is not None


def describe(host: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns the engine's versions, and what it says of itself; None where none answers."""
    found: tuple[dict[str, Any], dict[str, Any]] | None = _ask(host, lambda client: (client.version(), client.info()))
    return found


def containers(host: str, label: str) -> list[str]:
    """Returns the names of the containers with a label `NAME=VALUE`, ended ones too."""
    found = _ask(host, lambda client: client.containers(all=True, filters={"label": label})) or []
    return sorted(container["Names"][0].removeprefix("/") for container in found)


def remove(host: str, name: str) -> None:
    """Ends and removes a container; one that is not there is no error."""
    _ask(host, lambda client: client.remove_container(name, v=True, force=True))


def load_image(host: str, archive: bytes, repository: str, tag: str) -> bool:
    """Makes an image of one layer out of a tar archive; whether that was done."""
    done = _ask(host, lambda client: client.import_image_from_data(archive, repository=repository, tag=tag))
    return done is not None and '"error"' not in done


def remove_image(host: str, reference: str) -> None:
    """Removes an image; one that is not there is no error."""
    _ask(host, lambda client: client.remove_image(reference))


def _ask(host: str, action: Callable[[Any], Any]) -> Any:
    """Returns the answer of the engine; None when there is none, or it is an error."""
    # Most commands need no engine, and its library takes long to import.
    import docker  # noqa: PLC0415
    import docker.errors  # noqa: PLC0415

    host = host or DEFAULT_HOST
    with contextlib.suppress(docker.errors.DockerException, OSError):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # The library loses a socket when nothing listens.
            probe.connect(host.removeprefix("unix://"))
        with contextlib.closing(docker.APIClient(base_url=host, version="auto", timeout=_TIMEOUT)) as client:
            return action(client)
    return None
