"""Endpoints, their revisions, shares, rollouts, replicas and floors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "endpoint",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("resource_group", sa.String(), nullable=False),
        sa.Column("host_label", sa.String(), nullable=False),
        sa.Column("lifecycle", sa.String(), nullable=False),
        _json("settings"),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("newest_revision", sa.Integer(), nullable=False),
        sa.Column("target", sa.Integer(), nullable=False),
        sa.Column("target_reason", sa.String(), nullable=False),
        _json("decision"),
        _json("conditions", "[]"),
        _time("first_ready_time"),
        _time("short_time"),
        _now("create_time"),
        _time("delete_time"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("host_label"),
    )
    alive = sa.text("lifecycle <> 'DELETED'")
    op.create_index("endpoint_name", "endpoint", ["project", "name"], unique=True, postgresql_where=alive)
    op.create_index("endpoint_live", "endpoint", ["lifecycle"], postgresql_where=alive)
    op.create_index("endpoint_newest", "endpoint", [sa.text("create_time DESC"), sa.text("id DESC")])
    op.create_index("ix_endpoint_owner", "endpoint", ["owner"])
    op.create_table(
        "endpoint_revision",
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        _json("spec"),
        _json("found_images"),
        sa.Column("failures", sa.Integer(), nullable=False),
        _time("retry_time"),
        sa.Column("author", sa.String(), nullable=False),
        _now("create_time"),
        _of_endpoint(),
        sa.PrimaryKeyConstraint("endpoint_id", "number"),
    )
    op.create_table(
        "endpoint_traffic",
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("percent", sa.Integer(), nullable=False),
        _of_endpoint(),
        sa.PrimaryKeyConstraint("endpoint_id", "revision"),
    )
    op.create_table(
        "rollout",
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("from_revision", sa.Integer(), nullable=False),
        sa.Column("to_revision", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("promoted", sa.Boolean(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        _json("policy"),
        _now("since_time"),
        _of_endpoint(),
        sa.PrimaryKeyConstraint("endpoint_id"),
    )
    op.create_table(
        "endpoint_replica",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("serial", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        _now("since_time"),
        _time("drain_time"),
        sa.Column("was_ready", sa.Boolean(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("health", sa.String(), nullable=False),
        sa.Column("health_message", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["session.id"], ondelete="CASCADE"),
        _of_endpoint(),
        sa.PrimaryKeyConstraint("session_id"),
    )
    op.create_index("ix_endpoint_replica_endpoint_id", "endpoint_replica", ["endpoint_id"])
    op.create_index(
        "endpoint_replica_live", "endpoint_replica", ["endpoint_id"], postgresql_where=sa.text("state <> 'GONE'")
    )
    op.create_table(
        "scaling_floor",
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("replicas", sa.Integer(), nullable=False),
        sa.Column("end_time", sa.DateTime(timezone=True), nullable=False),
        _of_endpoint(),
        sa.PrimaryKeyConstraint("endpoint_id"),
    )


def downgrade() -> None:
    """Goes back to the revision before."""
    for table in ("scaling_floor", "endpoint_replica", "rollout", "endpoint_traffic", "endpoint_revision", "endpoint"):
        op.drop_table(table)


def _json(name: str, default: str = "{}") -> sa.Column[object]:
    return sa.Column(name, postgresql.JSONB(), server_default=sa.text(f"'{default}'::jsonb"), nullable=False)


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=True)


def _now(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False)


def _of_endpoint() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["endpoint_id"], ["endpoint.id"], ondelete="CASCADE")
