"""Attempts made after a restore have ids that none of the lost history can have."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("cluster", sa.Column("last_epoch", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("cluster", "last_epoch")
