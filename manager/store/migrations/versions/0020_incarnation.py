"""Which database this is, since when its history is one, and what agents run that it knows nothing of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "cluster",
        sa.Column("id", sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column("cluster_id", sa.Uuid(), nullable=False),
        sa.Column("incarnation", sa.Uuid(), nullable=False),
        sa.Column("restore_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ca_fingerprint", sa.String(), nullable=False, server_default=""),
        sa.Column("ca_sealed", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint("id = 1", name="cluster_one_row"),
    )
    op.execute("INSERT INTO cluster (id, cluster_id, incarnation) VALUES (1, gen_random_uuid(), gen_random_uuid())")
    op.add_column("agent", sa.Column("incarnation", sa.Uuid(), nullable=True))
    op.create_table(
        "orphan",
        sa.Column("agent_id", sa.String(), sa.ForeignKey("agent.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("kernel_id", sa.Uuid(), primary_key=True),
        sa.Column("epoch", sa.Integer(), primary_key=True),
        sa.Column("session_id", sa.Uuid(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("end_requested", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("create_time", postgresql.TIMESTAMP(timezone=True), nullable=False, server_default=sa.text("now()")),
    )
    op.create_index("orphan_session", "orphan", ["session_id"])
    # A session of which something still runs is not placed: the scheduler looks at it again when that has changed.
    op.execute(
        "CREATE FUNCTION mark_orphan_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO scheduling_change (kind, key) SELECT DISTINCT 'session', session_id::text FROM changed WHERE session_id IS NOT NULL; "
        "RETURN NULL; END $$"
    )
    for event, reference in (("INSERT", "NEW TABLE AS changed"), ("DELETE", "OLD TABLE AS changed")):
        op.execute(
            f"CREATE TRIGGER mark_{event.lower()} AFTER {event} ON orphan REFERENCING {reference} "
            "FOR EACH STATEMENT EXECUTE FUNCTION mark_orphan_change()"
        )


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_table("orphan")
    op.execute("DROP FUNCTION mark_orphan_change()")
    op.drop_column("agent", "incarnation")
    op.drop_table("cluster")
