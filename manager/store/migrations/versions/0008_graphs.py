"""Dependencies found by what is depended on, also when they are settled."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_index("session_dependency_parent", "session_dependency", ["parent_id"])


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_index("session_dependency_parent", table_name="session_dependency")
