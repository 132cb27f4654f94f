"""Nodes keep the certificate that asked for their newest, whose answer may have been lost."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

_TABLES = ("agent", "router")


def upgrade() -> None:
    """Goes to this revision."""
    for table in _TABLES:
        op.add_column(table, sa.Column("former_certificate", sa.String(), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    """Goes back to the revision before."""
    for table in _TABLES:
        op.drop_column(table, "former_certificate")
