"""Past usage for fair share, and quotas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "usage",
        sa.Column("resource_group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("slot", sa.String(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("amount_seconds", sa.Numeric(), nullable=False),
        sa.PrimaryKeyConstraint("resource_group", "owner", "slot", "day"),
    )
    op.create_table(
        "quota",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("slots", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("max_sessions", sa.Integer(), nullable=True),
        sa.Column("max_pending_sessions", sa.Integer(), nullable=True),
        sa.Column("highest_priority", sa.Integer(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name"),
    )
    for column in ("owner", "project"):
        op.create_index(f"session_pending_{column}", "session", [column], postgresql_where=sa.text("state = 'PENDING'"))


def downgrade() -> None:
    """Goes back to the revision before."""
    for column in ("project", "owner"):
        op.drop_index(f"session_pending_{column}", table_name="session")
    op.drop_table("quota")
    op.drop_table("usage")
