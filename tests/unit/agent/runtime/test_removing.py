"""Attempts that are removed at the same time, by several threads, are all remembered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from retinue.agent.runtime.attempt_records import Records

if TYPE_CHECKING:
    from pathlib import Path


def test_attempts_removed_at_once_are_all_remembered(tmp_path: Path) -> None:
    names = [f"k{number}.1" for number in range(8)]
    for turn in range(20):
        directory = tmp_path / str(turn)
        records = Records(directory)
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(records.remove, names))
        again = Records(directory)
        again.load()
        assert all(again.was_removed(name) for name in names)
