"""What sessions of a resource group may mount."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    column = sa.Column("mount_roots", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False)
    op.add_column("resource_group", column)


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("resource_group", "mount_roots")
