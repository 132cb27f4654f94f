"""Folders of tests mirror the source."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
# What has several packages for its subject.
WHOLE_SYSTEM = {"link", "sessions", "sessions/kubernetes"}


def test_each_folder_of_tests_is_named_as_what_it_tests() -> None:
    kinds = [ROOT / "tests" / name for name in ("unit", "property", "integration")]
    folders = {path.parent.relative_to(kind) for kind in kinds for path in kind.rglob("test_*.py")} - {Path()}
    assert folders
    missing = {str(folder) for folder in folders if not (ROOT / folder).is_dir()}
    assert missing <= WHOLE_SYSTEM
