"""Resource groups say which registries images may come from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    column = sa.Column("image_registries", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False)
    op.add_column("resource_group", column)


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("resource_group", "image_registries")
