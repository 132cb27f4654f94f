"""Numbers on the nodes of whom the files of users belong to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    for name in ("file_uid", "file_gid"):
        op.add_column("user_account", sa.Column(name, sa.Integer(), nullable=True))


def downgrade() -> None:
    """Goes back to the revision before."""
    for name in ("file_gid", "file_uid"):
        op.drop_column("user_account", name)
