"""Names of deleted users and projects are not given again, and tokens end with those that made them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "retired_name",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("retire_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name"),
    )
    # Of those that were deleted before, only what they left behind is known.
    op.execute("""
        INSERT INTO retired_name (kind, name)
        SELECT DISTINCT 'USER', owner FROM (
            SELECT owner FROM session UNION SELECT owner FROM journal UNION SELECT principal FROM request UNION SELECT owner FROM template
        ) left_behind
        WHERE NOT EXISTS (SELECT FROM user_account u WHERE u.name = owner)
    """)
    op.execute("""
        INSERT INTO retired_name (kind, name)
        SELECT DISTINCT 'PROJECT', project FROM (SELECT project FROM session UNION SELECT project FROM journal) left_behind
        WHERE NOT EXISTS (SELECT FROM project p WHERE p.name = project)
    """)
    op.add_column("token", sa.Column("parent_id", sa.Uuid(), nullable=True))
    op.create_foreign_key("token_parent_id_fkey", "token", "token", ["parent_id"], ["id"], ondelete="CASCADE")
    op.create_index("ix_token_parent_id", "token", ["parent_id"])


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("token", "parent_id")
    op.drop_table("retired_name")
