"""The ways past the stream, each of which a test can have alone: on it, those before it are not reached."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from retinue.client.kernel import direct_connection
from retinue.client.settings import ssh_directory
from retinue.client.transport.channel import parse_endpoint
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from retinue.client.kernel.port import PortConnection

WAYS = ("node", "manager", "stream")


def isolate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has clients of this process keep elsewhere what they have not reached, and wait for what they reach."""
    monkeypatch.setenv("RETINUE_CONTEXTS", str(tmp_path / "contexts.yaml"))
    monkeypatch.setattr(direct_connection, "CONNECT_SECONDS", NEVER)
    monkeypatch.setattr(direct_connection, "ADMIT_SECONDS", NEVER)
    monkeypatch.setattr(direct_connection, "SILENT_SECONDS", NEVER)


def restrict(stream: PortConnection, endpoint: str, way: str) -> None:
    """Leaves a way only, and those behind it; `stream` is one of the same node that has a direct port."""
    node, manager = stream.direct_port, stream.relay_port
    assert node is not None
    assert manager is not None
    ports = [(node.host, node.port), (parse_endpoint(endpoint)[0], manager.port)]
    directory = ssh_directory(os.environ)
    directory.mkdir(parents=True, exist_ok=True)
    for host, number in ports[: WAYS.index(way)]:
        (directory / f"silent-{quote(f'{host}:{number}', safe='')}").touch()
