"""Whether kernels of a resource group have egress."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("resource_group", sa.Column("egress", sa.String(), server_default=sa.text("'ALLOW'"), nullable=False))


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("resource_group", "egress")
