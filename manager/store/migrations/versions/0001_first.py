"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


_TABLES = (
    "project",
    "user_account",
    "membership",
    "token",
    "request",
    "resource_group",
    "agent",
    "join_token",
    "session",
    "kernel",
    "kernel_log",
    "attempt",
    "claim",
    "drf_share",
    "network",
    "network_site",
    "journal_head",
    "journal",
    "leadership",
)


def upgrade() -> None:
    """Goes to this revision."""
    _create_accounts()
    _create_fleet()
    _create_sessions()
    _create_placement()
    _create_journal()
    _seed()


def downgrade() -> None:
    """Goes back to nothing."""
    for table in reversed(_TABLES):
        op.drop_table(table)


def _create_accounts() -> None:
    """Projects, people, tokens, finished requests."""
    op.create_table(
        "project",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "user_account",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "membership",
        sa.Column("user_name", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["project.name"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["user_name"], ["user_account.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_name", "project"),
    )
    op.create_table(
        "token",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("user_name", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expire_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoke_time", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["user_name"], ["user_account.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash"),
    )
    op.create_index(op.f("ix_token_user_name"), "token", ["user_name"], unique=False)
    op.create_table(
        "request",
        sa.Column("principal", sa.String(), nullable=False),
        sa.Column("method", sa.String(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("body_hash", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("principal", "method", "request_id"),
    )


def _create_fleet() -> None:
    """Agents and their groups."""
    op.create_table(
        "resource_group",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("session_strategy", sa.String(), nullable=False),
        sa.Column("agent_strategy", sa.String(), nullable=False),
        sa.Column("options", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("owner_weights", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("start_timeout_seconds", sa.Integer(), nullable=False),
        sa.Column("rotation", sa.String(), server_default=sa.text("''"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "agent",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("resource_group", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("drained", sa.Boolean(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("instance", sa.String(), nullable=False),
        sa.Column("architecture", sa.String(), nullable=False),
        sa.Column("capacity", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("backends", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("software_version", sa.String(), nullable=False),
        sa.Column("underlay_address", sa.String(), nullable=False),
        sa.Column("underlay_mtu", sa.Integer(), nullable=False),
        sa.Column("boot_id", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("announce_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heartbeat_time", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["resource_group"],
            ["resource_group.name"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_agent_resource_group"), "agent", ["resource_group"], unique=False)
    op.create_table(
        "join_token",
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("resource_group", sa.String(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=True),
        sa.Column("uses_left", sa.Integer(), nullable=False),
        sa.Column("expire_time", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["resource_group"], ["resource_group.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("hash"),
    )


def _create_sessions() -> None:
    """Sessions and kernels."""
    op.create_table(
        "session",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("resource_group", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("cluster_mode", sa.String(), nullable=False),
        sa.Column("cluster_size", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("spec", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("result", sa.String(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("explanation", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("conditions", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("network", sa.String(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("failed_starts", sa.Integer(), nullable=False),
        sa.Column("failed_agents", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("last_failure", sa.String(), nullable=False),
        sa.Column("force", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("evaluate_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("next_try_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("schedule_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("start_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("end_time", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sequence"),
    )
    op.create_index(op.f("ix_session_owner"), "session", ["owner"], unique=False)
    op.create_index(
        "session_live",
        "session",
        ["state"],
        unique=False,
        postgresql_where=sa.text("state NOT IN ('TERMINATED', 'CANCELLED')"),
    )
    op.create_index(
        "session_live_name",
        "session",
        ["project", "owner", "name"],
        unique=True,
        postgresql_where=sa.text("state NOT IN ('TERMINATED', 'CANCELLED')"),
    )
    op.create_index(
        "session_newest", "session", [sa.literal_column("create_time DESC"), sa.literal_column("id DESC")], unique=False
    )
    op.create_index(
        "session_queue",
        "session",
        ["resource_group", "sequence"],
        unique=False,
        postgresql_where=sa.text("state = 'PENDING'"),
    )
    op.create_table(
        "kernel",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("role_index", sa.Integer(), nullable=False),
        sa.Column("local_rank", sa.Integer(), nullable=False),
        sa.Column("hostname", sa.String(), nullable=False),
        sa.Column("slots", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["session.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("kernel_place", "kernel", ["session_id", "local_rank"], unique=True)
    op.create_table(
        "kernel_log",
        sa.Column("kernel_id", sa.Uuid(), nullable=False),
        sa.Column("start_offset", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["kernel_id"], ["kernel.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("kernel_id"),
    )


def _create_placement() -> None:
    """Creates the tables of placements and of what they hold."""
    op.create_table(
        "attempt",
        sa.Column("kernel_id", sa.Uuid(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("goal", sa.String(), nullable=False),
        sa.Column("observed", sa.String(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("log_pending", sa.Boolean(), nullable=False),
        sa.Column("log_size", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("end_time", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["kernel_id"], ["kernel.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("kernel_id", "epoch"),
    )
    op.create_index(
        "attempt_live_agent",
        "attempt",
        ["agent_id"],
        unique=False,
        postgresql_where=sa.text("end_time IS NULL OR log_pending"),
    )
    op.create_index(
        "attempt_live_session", "attempt", ["session_id"], unique=False, postgresql_where=sa.text("end_time IS NULL")
    )
    op.create_table(
        "claim",
        sa.Column("kernel_id", sa.Uuid(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("slot", sa.String(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("resource_group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("claim_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("release_time", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("kernel_id", "epoch", "slot"),
    )
    op.create_index(
        "claim_live_agent",
        "claim",
        ["agent_id", "slot"],
        unique=False,
        postgresql_where=sa.text("release_time IS NULL"),
    )
    op.create_index(
        "claim_live_owner",
        "claim",
        ["resource_group", "owner", "slot"],
        unique=False,
        postgresql_where=sa.text("release_time IS NULL"),
    )
    op.create_table(
        "drf_share",
        sa.Column("resource_group", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("held", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("dominant_slot", sa.String(), nullable=False),
        sa.Column("numerator", sa.BigInteger(), nullable=False),
        sa.Column("denominator", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("resource_group", "owner"),
    )
    op.create_table(
        "network",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=True),
        sa.Column("vni", sa.Integer(), nullable=False),
        sa.Column("subnet", postgresql.CIDR(), nullable=False),
        sa.Column("mtu", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("subnet"),
    )
    op.create_index(
        "network_session", "network", ["session_id"], unique=True, postgresql_where=sa.text("session_id IS NOT NULL")
    )
    op.create_index("network_vni", "network", ["vni"], unique=True, postgresql_where=sa.text("vni <> 0"))
    op.create_table(
        "network_site",
        sa.Column("network_id", sa.BigInteger(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(["network_id"], ["network.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("network_id", "agent_id"),
    )
    op.create_index("network_site_agent", "network_site", ["agent_id"], unique=False)
    op.create_index("network_site_session", "network_site", ["session_id"], unique=False)


def _create_journal() -> None:
    """Creates the tables of the journal and of leadership."""
    op.create_table(
        "journal_head",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("oldest", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "journal",
        sa.Column("revision", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("payload", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.PrimaryKeyConstraint("revision"),
    )
    op.create_index("journal_session", "journal", ["session_id", "revision"], unique=False)
    op.create_table(
        "leadership",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("acquire_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _seed() -> None:
    """Inserts the rows that every database begins with."""
    op.execute("INSERT INTO journal_head (id, revision, oldest) VALUES (1, 0, 0)")
    op.execute("INSERT INTO leadership (id, term, holder) VALUES (1, 0, '')")
    op.execute("INSERT INTO project (name) VALUES ('default')")
    op.execute(
        """
        INSERT INTO resource_group (name, session_strategy, agent_strategy, start_timeout_seconds, version)
        VALUES ('default', 'drf', 'concentrated', 600, 1)
        """
    )
