"""Tickets by which browsers log in to the console. What they log in by is a token, made with another one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "console_ticket",
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("token_id", sa.Uuid(), nullable=False),
        sa.Column("expire_time", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["token_id"], ["token.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("hash"),
    )


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_table("console_ticket")
