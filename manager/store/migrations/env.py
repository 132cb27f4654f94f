"""Runs migrations over the connection it is given; Alembic loads this file."""

from __future__ import annotations

from alembic import context
from sqlmodel import SQLModel

from retinue.manager.store import tables

# Loading the tables fills the metadata.
assert tables  # noqa: S101  # keeps the import

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
