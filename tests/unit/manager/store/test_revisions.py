"""Revisions of the database's schema are one line: two that follow the same one keep every manager from its start."""

from __future__ import annotations

from alembic.script import ScriptDirectory

from retinue.manager.store.migrations import configuration


def test_revisions_have_one_head() -> None:
    assert len(ScriptDirectory.from_config(configuration()).get_heads()) == 1
