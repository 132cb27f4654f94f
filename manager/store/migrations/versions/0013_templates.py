"""Templates of sessions, and their versions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Goes to this revision."""
    op.create_table(
        "template",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project", sa.String(), nullable=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("delete_time", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project"], ["project.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "template_name",
        "template",
        [sa.text("coalesce(project, '')"), "name"],
        unique=True,
        postgresql_where=sa.text("delete_time IS NULL"),
    )
    op.create_table(
        "template_version",
        sa.Column("template_id", sa.Uuid(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("spec", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("author", sa.String(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["template_id"], ["template.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("template_id", "version"),
    )


def downgrade() -> None:
    """Goes back to the revision before."""
    op.drop_table("template_version")
    op.drop_table("template")
