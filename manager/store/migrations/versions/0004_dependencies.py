"""Dependencies of batch sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "session_dependency",
        sa.Column("child_id", sa.Uuid(), nullable=False),
        sa.Column("parent_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["child_id"], ["session.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("child_id", "parent_id"),
    )
    op.create_index(
        "session_dependency_open", "session_dependency", ["parent_id"], postgresql_where=sa.text("NOT settled")
    )


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_table("session_dependency")
