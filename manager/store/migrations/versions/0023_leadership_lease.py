"""Leaders renew a lease."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "leadership_lease",
        sa.Column("id", sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column("renewal", sa.BigInteger(), nullable=False),
        sa.Column("renew_time", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.CheckConstraint("id = 1", name="leadership_lease_one_row"),
    )
    op.execute("INSERT INTO leadership_lease (id, renewal) VALUES (1, 0)")


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_table("leadership_lease")
