"""A daemon notifies the service manager that it is ready, once."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from retinue.rpc.service_manager import notify_ready

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("abstract", [False, True])
def test_ready_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service_manager:
        service_manager.bind(f"\0{name}" if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        notify_ready()
        assert service_manager.recv(100) == b"READY=1"
        assert "NOTIFY_SOCKET" not in os.environ
        notify_ready()
        service_manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            service_manager.recv(100)
