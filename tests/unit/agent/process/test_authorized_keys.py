"""Keys that are withdrawn from an SFTP server."""

from __future__ import annotations

import os

import pytest

from retinue.agent.host.processes import identify
from retinue.agent.process import authorized_keys


@pytest.mark.parametrize("damaged", ["", "ssh-ed25519", "ssh-ed25519 A", "ssh-ed25519 \u00e9", "\0"])
def test_a_line_that_is_no_key_keeps_no_connection(damaged: str) -> None:
    this = identify(os.getpid())
    assert this is not None
    assert authorized_keys.end_others(this, [damaged], pids=(), printed=()) == 0
