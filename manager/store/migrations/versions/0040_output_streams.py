"""Kept output says which bytes came from standard output and which from standard error."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column(
        "kernel_log", sa.Column("streams", sa.LargeBinary(), nullable=False, server_default=sa.text("''::bytea"))
    )


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("kernel_log", "streams")
