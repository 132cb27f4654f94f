"""Databases at another revision of the schema than this program's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from alembic.script import ScriptDirectory

from retinue.manager.store import migrations

if TYPE_CHECKING:
    import pytest

_LATER = """
from alembic import op

revision = "9999_later"
down_revision = {head!r}


def upgrade() -> None:
    op.execute("CREATE TABLE later (x int)")
"""


def make_former(url: str) -> None:
    """Makes the cluster of `former_schema.sql` in an empty database."""
    dumped = Path(__file__).with_name("former_schema.sql").read_text()
    with psycopg.connect(url) as connection:
        connection.execute(dumped.encode())


def add_later_revision(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Adds a revision after this program's newest, `9999_later`, which makes a table `later`."""
    head = ScriptDirectory.from_config(migrations.configuration()).get_current_head()
    (folder / "9999_later.py").write_text(_LATER.format(head=head))
    monkeypatch.setattr(migrations, "FOLDERS", (*migrations.FOLDERS, folder))
