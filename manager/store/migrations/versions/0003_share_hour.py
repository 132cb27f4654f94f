"""Shares of users, projects and groups are kept by the hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_share_hour"
down_revision = "0002_spec_columns"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "share_hour",
        sa.Column("resource_group", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("share_sum", sa.Float(), nullable=False),
        sa.Column("peak", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("resource_group", "kind", "name", "hour"),
    )
    op.create_index("share_hour_hour", "share_hour", ["hour"])
