"""A session may depend on the end of another one, whatever its result."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column(
        "session_dependency", sa.Column("any_result", sa.Boolean(), nullable=False, server_default=sa.text("false"))
    )


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("session_dependency", "any_result")
