"""Sessions and templates know the size of their requests: lists bound what they read by it."""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_TABLES = ("session", "template_version")


def upgrade() -> None:
    """Goes to this revision."""
    for table in _TABLES:
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN spec_bytes integer NOT NULL GENERATED ALWAYS AS (octet_length(spec::text)) STORED"
        )


def downgrade() -> None:
    """Goes back to the revision before."""
    for table in _TABLES:
        op.drop_column(table, "spec_bytes")
