"""Users have public keys for system sessions, of which quotas limit the number;
resource groups say which types of sessions they take.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "ssh_key",
        sa.Column("fingerprint", sa.String(), primary_key=True),
        sa.Column(
            "user_name", sa.String(), sa.ForeignKey("user_account.name", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("public_key", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
    )
    op.add_column("quota", sa.Column("max_system_sessions", sa.Integer(), nullable=True))
    types = sa.Column("session_types", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False)
    op.add_column("resource_group", types)


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("resource_group", "session_types")
    op.drop_column("quota", "max_system_sessions")
    op.drop_table("ssh_key")
