"""Agents that answer probes of paths between nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    proves: sa.Column[bool] = sa.Column("proves_paths", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    op.add_column("agent", proves)


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("agent", "proves_paths")
