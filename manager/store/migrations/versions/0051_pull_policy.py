"""The pull policy of images in a resource group."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    default = sa.Column("default_pull_policy", sa.String(), server_default=sa.text("''"), nullable=False)
    op.add_column("resource_group", default)


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("resource_group", "default_pull_policy")
