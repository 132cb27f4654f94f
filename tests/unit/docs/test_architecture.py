"""The page on the architecture names files that are there, and a hop is read in few of them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/architecture.md"
MAX_FILES = 8
# Where a file without its package is: in that of the manager, of the agent, or of the file named before it.
PACKAGES = ("manager", "agent", "")


def located(name: str, before: Path) -> Path | None:
    """Returns the file that a name on the page stands for."""
    places = [before.parent, *(ROOT / package for package in PACKAGES)]
    return next((place / name for place in places if (place / name).is_file()), None)


def rows(heading: str) -> list[list[str]]:
    """Returns the cells of the table below a line of headings."""
    table = PAGE.read_text().split(f"{heading}\n", 1)[1].split("\n\n", 1)[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]


def test_hops_name_files_that_are_there() -> None:
    hops = rows("| hop | files, in the order in which they are read |")
    assert [hop for hop, _ in hops] == ["API", "scheduler", "dispatch", "agent", "status", "report", "watch"]
    for hop, cell in hops:
        before, steps = PAGE, re.split(r", ", cell)
        assert len(steps) <= MAX_FILES, hop
        names = re.findall(r"`([^`]+)`", cell)
        assert names, hop
        for name in names:
            found = located(name, before)
            assert found is not None, f"{hop}: {name}"
            before = found


def test_packages_are_there() -> None:
    named = {name for names, _ in rows("| package | what it holds |") for name in re.findall(r"`([^`]+)`", names)}
    folders = {
        f"{side}/{path.name}"
        for side in ("manager", "agent")
        for path in (ROOT / side).iterdir()
        # Stubs are links into what is made of the protos.
        if path.is_dir() and not path.is_symlink() and path.name != "__pycache__"
    }
    assert folders <= named
    assert all((ROOT / name).is_dir() for name in named)
