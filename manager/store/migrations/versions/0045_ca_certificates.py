"""The certificates of the authority are in the database, where managers find a renewed one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("cluster", sa.Column("ca_certificates", sa.String(), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("cluster", "ca_certificates")
