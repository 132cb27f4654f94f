"""The agent that `round-robin` chose last has a column by that strategy's name."""

from __future__ import annotations

from alembic import op

revision = "0004_round_robin_cursor"
down_revision = "0003_share_hour"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.alter_column("resource_group", "rotation", new_column_name="round_robin_cursor")
