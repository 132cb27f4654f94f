"""Attempts keep the end time that their agents observed, beside that of the commit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("attempt", sa.Column("observed_end_time", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("attempt", "observed_end_time")
