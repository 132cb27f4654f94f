"""Specs of sessions are documents with a version, and what queries read of them is in columns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002_spec_columns"
down_revision = "0001_first"
branch_labels = None
depends_on = None

_FALSE, _EMPTY = sa.text("false"), sa.text("''")
_COLUMNS: tuple[sa.Column[object], ...] = (
    sa.Column("labels", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
    sa.Column("hold", sa.Boolean(), server_default=_FALSE, nullable=False),
    sa.Column("earliest_start_time", sa.Float(), nullable=True),
    sa.Column("agents", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
    sa.Column("agents_strict", sa.Boolean(), server_default=_FALSE, nullable=False),
    sa.Column("architecture", sa.String(), server_default=_EMPTY, nullable=False),
    sa.Column("replica_placement", sa.String(), server_default=_EMPTY, nullable=False),
    sa.Column("time_limit_seconds", sa.Float(), nullable=True),
    sa.Column("grace_seconds", sa.Float(), server_default=sa.text("10"), nullable=False),
    sa.Column("preemptible", sa.Boolean(), server_default=_FALSE, nullable=False),
    sa.Column("max_attempts", sa.Integer(), server_default=sa.text("1"), nullable=False),
    sa.Column("sftp", sa.Boolean(), server_default=_FALSE, nullable=False),
)
_VERSION = "CASE WHEN jsonb_typeof(spec->'version') = 'number' THEN (spec->>'version')::integer END"
# Documents that are damaged stay without a version: no manager reads them.
_READABLE = "jsonb_typeof(spec) = 'object' AND jsonb_typeof(spec->'kernel') = 'object' AND jsonb_typeof(spec->'roles') = 'object'"
_FILLED = f"""
    UPDATE session SET spec = spec || '{{"version": 1}}', labels = coalesce(spec->'labels', '{{}}'),
        hold = coalesce(spec->>'hold' = 'true', FALSE),
        earliest_start_time = CASE WHEN jsonb_typeof(spec->'earliest_start_time') = 'number' THEN (spec->>'earliest_start_time')::float8 END,
        agents = CASE WHEN jsonb_typeof(spec->'agents') = 'array' THEN ARRAY(SELECT jsonb_array_elements_text(spec->'agents')) ELSE '{{}}' END,
        agents_strict = coalesce(spec->>'agents_strict' = 'true', FALSE),
        architecture = coalesce(spec->>'architecture', ''), replica_placement = coalesce(spec->>'replica_placement', ''),
        time_limit_seconds = CASE WHEN jsonb_typeof(spec->'time_limit_seconds') = 'number' THEN (spec->>'time_limit_seconds')::float8 END,
        grace_seconds = CASE WHEN jsonb_typeof(spec->'grace_seconds') = 'number' THEN (spec->>'grace_seconds')::float8 ELSE 10 END,
        preemptible = coalesce(spec->>'preemptible' = 'true', FALSE),
        max_attempts = CASE WHEN jsonb_typeof(spec#>'{{retry,max_attempts}}') = 'number' THEN (spec#>>'{{retry,max_attempts}}')::integer ELSE 1 END,
        sftp = coalesce(jsonb_typeof(spec->'sftp') = 'object', FALSE)
    WHERE {_READABLE};
    UPDATE kernel SET image = of_kernel.image,
        isolation = coalesce(of_kernel.isolation, CASE WHEN of_kernel.image <> '' THEN 'CONTAINER' ELSE 'PROCESS' END)
    FROM (
        SELECT k.id, s.spec->'isolations'->>k.role AS isolation,
            coalesce(nullif(s.spec->'roles'->k.role->>'image', ''), s.spec->'kernel'->>'image', '') AS image
        FROM kernel k JOIN session s ON s.id = k.session_id
    ) of_kernel WHERE of_kernel.id = kernel.id;
    UPDATE endpoint_revision SET spec = jsonb_set(spec, '{{session,version}}', '1') WHERE jsonb_typeof(spec->'session') = 'object';
    UPDATE journal SET payload = jsonb_set(payload #- '{{session,spec}}', '{{spec}}', payload#>'{{session,spec}}' || '{{"version": 1}}')
    WHERE kind = 'CREATED' AND jsonb_typeof(payload#>'{{session,spec}}') = 'object'
"""  # noqa: S608  # our own words


def upgrade() -> None:
    """Goes to this revision."""
    for column in _COLUMNS:
        op.add_column("session", column)
    op.add_column("kernel", sa.Column("image", sa.String(), server_default=_EMPTY, nullable=False))
    op.add_column("kernel", sa.Column("isolation", sa.String(), server_default=sa.text("'PROCESS'"), nullable=False))
    op.execute(_FILLED)
    op.execute(f"ALTER TABLE session ADD COLUMN spec_version integer GENERATED ALWAYS AS ({_VERSION}) STORED")
