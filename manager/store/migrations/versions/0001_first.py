"""The first schema: its SQL is in the folder of the same name."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001_first"
down_revision = None
branch_labels = None
depends_on = None

_FILES = ("tables", "sessions", "group_capacity", "scheduling_changes", "rows")


def upgrade() -> None:
    """Goes to this revision."""
    folder = Path(__file__).with_suffix("")
    # As they stand: SQLAlchemy would look for parameters in them.
    connection = op.get_bind().execution_options(no_parameters=True)
    for name in _FILES:
        connection.exec_driver_sql((folder / f"{name}.sql").read_text())
