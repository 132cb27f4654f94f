"""Resource groups bound the grace of sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    column = sa.Column("max_grace_seconds", sa.Integer(), server_default=sa.text("300"), nullable=False)
    op.add_column("resource_group", column)


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("resource_group", "max_grace_seconds")
