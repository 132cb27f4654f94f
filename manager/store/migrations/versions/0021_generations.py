"""Certificates of agents are of a generation, and an agent is the one instance that came first after it enrolled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("agent", sa.Column("generation", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("agent", sa.Column("certificate", sa.String(), server_default=sa.text("''"), nullable=False))
    # So far it named a process.
    op.execute("UPDATE agent SET instance = ''")


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("agent", "certificate")
    op.drop_column("agent", "generation")
