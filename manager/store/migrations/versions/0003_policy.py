"""Replicas of endpoints, time limits, and promises of room to sessions that others are preempted for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("session", sa.Column("endpoint", sa.String(), server_default=sa.text("''"), nullable=False))
    op.add_column("session", sa.Column("expire_time", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "session", sa.Column("promise", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)
    )
    op.create_index(
        "session_endpoint",
        "session",
        ["project", "endpoint"],
        postgresql_where=sa.text("endpoint <> '' AND state NOT IN ('TERMINATED', 'CANCELLED')"),
    )
    op.create_index("session_expiry", "session", ["expire_time"], postgresql_where=sa.text("expire_time IS NOT NULL"))


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_index("session_expiry", table_name="session")
    op.drop_index("session_endpoint", table_name="session")
    for column in ("promise", "expire_time", "endpoint"):
        op.drop_column("session", column)
