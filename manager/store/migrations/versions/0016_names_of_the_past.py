"""Sessions that have ended are found by their names."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_index(
        "session_ended_name",
        "session",
        ["owner", "name", "sequence"],
        postgresql_where=sa.text("state IN ('TERMINATED', 'CANCELLED')"),
    )


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_index("session_ended_name", table_name="session")
