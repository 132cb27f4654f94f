"""A session may depend on the failure of another one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

_TABLE = "session_dependency"


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column(_TABLE, sa.Column("kind", sa.String(), nullable=False, server_default=sa.text("'SUCCESS'")))
    op.execute(f"UPDATE {_TABLE} SET kind = 'END' WHERE any_result")  # noqa: S608  # our own words
    op.drop_column(_TABLE, "any_result")


def downgrade() -> None:
    """Goes back to the revision before: what waits for a failure waits for any end."""
    op.add_column(_TABLE, sa.Column("any_result", sa.Boolean(), nullable=False, server_default=sa.text("false")))
    op.execute(f"UPDATE {_TABLE} SET any_result = TRUE WHERE kind <> 'SUCCESS'")  # noqa: S608  # our own words
    op.drop_column(_TABLE, "kind")
