"""Sessions that ended long ago are found without looking at all others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_index("session_ended", "session", ["end_time"], postgresql_where=sa.text("end_time IS NOT NULL"))


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_index("session_ended", "session")
