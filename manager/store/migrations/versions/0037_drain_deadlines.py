"""Agents that are drained may have a deadline, after which what still runs there is evicted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("agent", sa.Column("drain_deadline_time", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("agent", "drain_deadline_time")
