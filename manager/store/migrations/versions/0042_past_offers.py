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
# What they report next may lack something: a node restarts, and its engine is not there yet.
_COPY = """
    UPDATE agent SET
        past_slots = (SELECT coalesce(jsonb_agg(name), '[]') FROM jsonb_object_keys(capacity) AS name),
        past_backends = CASE jsonb_typeof(backends) WHEN 'array' THEN backends ELSE '[]' END
"""


def upgrade() -> None:
    """Goes to this revision."""
    for name in _COLUMNS:
        op.add_column("agent", sa.Column(name, postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'")))
    op.execute(_COPY)


def downgrade() -> None:
    """Goes back to the revision before."""
    for name in _COLUMNS:
        op.drop_column("agent", name)
