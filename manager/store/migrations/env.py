"""Runs migrations over the connection it is given; Alembic loads this file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from alembic import context
from sqlmodel import SQLModel

from retinue.manager.store import tables

if TYPE_CHECKING:
    from collections.abc import Collection

    from alembic.runtime.migration import MigrationContext, MigrationInfo

# Loading the tables fills the metadata.
assert tables  # noqa: S101  # keeps the import

_log = logging.getLogger("retinue.manager.store.migrations")


def _log_step(ctx: MigrationContext, step: MigrationInfo, heads: Collection[Any], run_args: Any) -> None:
    """Logs a revision that was applied, and is about to be committed."""
    del ctx, heads, run_args
    _log.info("migrated to %s", ", ".join(step.destination_revision_ids))


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    transaction_per_migration=True,
    on_version_apply=_log_step if context.config.attributes.get("log_steps") else None,
)
with context.begin_transaction():
    context.run_migrations()
