"""Records of what administrators did, what was done with accounts, and what was denied."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(), server_default=sa.text("''"), nullable=False)


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "audit_record",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("category", sa.String(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("end_time", sa.DateTime(timezone=True), nullable=True),
        _text("principal_kind"),
        _text("principal"),
        _text("role"),
        sa.Column("token_id", sa.Uuid(), nullable=True),
        _text("address"),
        sa.Column("method", sa.String(), nullable=False),
        *map(_text, ("object_kind", "object", "summary", "code", "reason", "request_id", "manager")),
        sa.Column("count", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("audit_record_time", "audit_record", ["create_time", "id"])
    op.create_index("audit_record_category", "audit_record", ["category", "create_time", "id"])


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_table("audit_record")
