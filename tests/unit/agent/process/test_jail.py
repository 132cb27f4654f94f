"""The configuration of an SFTP server, and which of its connections were made with which key."""

from __future__ import annotations

import pytest

from retinue.agent.attempts import Mount, SftpServer
from retinue.agent.process import jail

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop"
SERVER = SftpServer(b"private", "certificate", "authority", "sftp:session", (KEY,))


def test_files() -> None:
    files = jail.files(SERVER, [Mount("/srv", "", "/data", writable=True)])
    assert [name for name, (_, private) in files.items() if private] == [jail.HOST_KEY]
    assert files[jail.AUTHORIZED_KEYS] == files[jail.APPLIED_KEYS] == (f"restrict {KEY}\n".encode(), False)
    assert "private" not in repr(SERVER)


@pytest.mark.parametrize(
    ("mounts", "command"),
    [
        ([], "internal-sftp -l INFO -u 0022 -R"),
        ([Mount("/srv", "", "/data")], "internal-sftp -l INFO -u 0022 -R -d /data"),
        (
            [Mount("/srv", "", "/data"), Mount("/srv", "", "/other", writable=True)],
            "internal-sftp -l INFO -u 0022 -d /data",
        ),
        # What the server would split, or expand.
        ([Mount("/srv", "", "/my data", writable=True)], "internal-sftp -l INFO -u 0022"),
        ([Mount("/srv", "", "/%h\nPermitTTY yes", writable=True)], "internal-sftp -l INFO -u 0022"),
    ],
)
def test_command(mounts: list[Mount], command: str) -> None:
    lines = jail.config(mounts).splitlines()
    assert f"Subsystem sftp {command}" in lines
    assert "PermitTTY yes" not in lines


def test_fingerprint() -> None:
    assert jail.fingerprint(KEY).startswith("SHA256:")
