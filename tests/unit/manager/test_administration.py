"""What commands of administrators say of files and managers that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from retinue.manager.administration import admin
from retinue.manager.health import health


def test_the_directory_of_a_backup_has_to_be_there(tmp_path: Path) -> None:
    missing = tmp_path / "backups"
    result = CliRunner().invoke(admin, ["backup", str(missing / "today"), "--data-dir", str(tmp_path)])
    assert result.exit_code != 0
    assert f"there is no directory {missing}: make it first" in result.output


@pytest.mark.parametrize("command", ["verify", "restore"])
def test_a_backup_that_is_read_has_to_be_there(command: str, tmp_path: Path) -> None:
    missing = tmp_path / "backup"
    result = CliRunner().invoke(admin, [command, str(missing)])
    assert result.exit_code != 0
    assert f"File '{missing}' does not exist" in result.output


def test_health_says_where_it_asked(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    result = CliRunner().invoke(health, ["--data-dir", str(tmp_path), "--listen", "0.0.0.0:1"])
    assert result.exit_code != 0
    assert "no manager serves at 127.0.0.1:1: give its port with --listen or RETINUE_MANAGER_LISTEN" in result.output
