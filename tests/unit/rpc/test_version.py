"""Which build a program says that it is: that of a package, or that of the sources that it runs from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import hatch_build
from docs.generator import ROOT
from retinue.rpc.version import BUILD_FILE, builds_differ, digest_sources, software_version

if TYPE_CHECKING:
    from pathlib import Path

_PATTERN = re.compile(r"0\.\d+\.\d+\+source\.d[0-9a-f]{12}")


def git(tree: Path, *arguments: str) -> str:
    author = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *author, *arguments]
    return subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with a history, of two files."""
    # As most shells have it: a compiled file in the tree would be a change of it.
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    made = tmp_path / "tree"
    (made / "rpc").mkdir(parents=True)
    shutil.copy(ROOT / "rpc/version.py", made / "rpc")
    (made / "pyproject.toml").touch()
    git(made, "init", "--quiet")
    git(made, "add", ".")
    git(made, "commit", "--quiet", "-m", "first")
    return made


def test_a_checkout_says_that_it_is_one() -> None:
    assert _PATTERN.fullmatch(software_version())
    # A path may be imported by several names.
    assert software_version().endswith(digest_sources(ROOT))


def test_a_package_from_a_commit_names_it(tree: Path) -> None:
    first = hatch_build.identify_build(tree)
    assert first == f"g{git(tree, 'rev-parse', '--short=12', 'HEAD')}"
    git(tree, "commit", "--quiet", "--allow-empty", "-m", "second")
    assert hatch_build.identify_build(tree) != first


def test_a_package_from_a_tree_with_changes_is_told_apart(tree: Path) -> None:
    clean = hatch_build.identify_build(tree)
    (tree / "rpc/more.py").write_text("a = 1\n")
    changed = hatch_build.identify_build(tree)
    assert re.fullmatch(rf"{clean}\.d[0-9a-f]{{12}}", changed)
    (tree / "rpc/more.py").write_text("a = 2\n")
    assert hatch_build.identify_build(tree) not in {clean, changed}


def test_a_tree_without_a_history_is_named_by_its_content(tree: Path, tmp_path: Path) -> None:
    shutil.rmtree(tree / ".git")
    assert hatch_build.identify_build(tree) == f"d{digest_sources(tree)}"
    # Nor does a history around it count, as that of a user who unpacked it in a repository of his own.
    git(tmp_path, "init", "--quiet")
    assert hatch_build.identify_build(tree) == f"d{digest_sources(tree)}"


@pytest.mark.parametrize(
    ("version", "other", "differ"),
    [
        ("0.1.0+ga", "0.1.0+ga", False),
        ("0.1.0+ga", "0.1.0+gb", True),
        ("0.1.0", "0.1.0+ga", True),
        ("0.1.0+ga", "0.2.0+ga", True),
        ("", "0.1.0+ga", False),
        ("unknown", "0.1.0+ga", False),
    ],
)
def test_builds_are_compared_where_there_are_two(version: str, other: str, *, differ: bool) -> None:
    assert builds_differ(version, other) is differ


def test_a_source_distribution_keeps_the_name(tree: Path) -> None:
    (tree / BUILD_FILE).write_text("g0123456789ab\n")
    assert hatch_build.identify_build(tree) == "g0123456789ab"
