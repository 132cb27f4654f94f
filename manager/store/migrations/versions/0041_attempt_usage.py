"""Attempts that have ended say what they had used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("attempt", sa.Column("usage", postgresql.JSONB(), nullable=False, server_default=sa.text("'{}'")))


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("attempt", "usage")
