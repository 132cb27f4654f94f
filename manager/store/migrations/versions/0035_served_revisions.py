"""Revisions of endpoints say since when they have served, so that a rollback goes to one that has."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.add_column("endpoint_revision", sa.Column("serve_time", sa.DateTime(timezone=True), nullable=True))
    # Of older ones nothing is stored: those served that have all requests, and those that a finished rollout came from.
    op.execute("""
        UPDATE endpoint_revision r SET serve_time = r.create_time WHERE EXISTS (
            SELECT FROM endpoint e LEFT JOIN endpoint_traffic t ON t.endpoint_id = e.id AND t.revision = r.number
            LEFT JOIN rollout o ON o.endpoint_id = e.id
            WHERE e.id = r.endpoint_id AND e.first_ready_time IS NOT NULL
                AND (t.percent = 100 OR (o.from_revision = r.number AND o.state = 'DONE')))
    """)


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_column("endpoint_revision", "serve_time")
