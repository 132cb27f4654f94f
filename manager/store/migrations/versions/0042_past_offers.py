"""Agents keep what they have ever offered: a slot or a runtime that is away for now is not one that never was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

_COLUMNS = ("past_slots", "past_backends")


def upgrade() -> None:
    """Goes to this revision."""
    for name in _COLUMNS:
        op.add_column("agent", sa.Column(name, postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'")))
    # Agents say again what they offer as soon as they are connected.


def downgrade() -> None:
    """Goes back to the revision before."""
    for name in _COLUMNS:
        op.drop_column("agent", name)
