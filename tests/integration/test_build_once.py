"""`scripts/build-once`: two checkouts of one user, and what is built in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/build-once"
# It makes a folder of two files, one of them a program, and says that it ran.
COMMAND = (
    "mkdir -p made && cp source.txt made/copy && cp source.txt made/program && chmod +x made/program && echo >>../runs"
)


class Checkout:
    def __init__(self, root: Path, source: str) -> None:
        self.root = root
        (root / "scripts").mkdir(parents=True)
        shutil.copy(SCRIPT, root / "scripts")
        self.write(source)

    def write(self, source: str) -> None:
        (self.root / "source.txt").write_text(source)

    def start(self, command: str = COMMAND) -> subprocess.Popen[bytes]:
        script = [sys.executable, str(self.root / "scripts/build-once"), "thing"]
        return subprocess.Popen(
            [*script, "--of", "source.txt", "--gives", "made", "--", "sh", "-euc", command],
            env={**os.environ, "RETINUE_BUILD_CACHE": str(self.root.parent / "cache")},
        )

    def build(self, command: str = COMMAND) -> int:
        return self.start(command).wait()

    @property
    def made(self) -> str:
        return (self.root / "made/copy").read_text()


@pytest.fixture
def two(tmp_path: Path) -> tuple[Checkout, Checkout]:
    return Checkout(tmp_path / "one", "first"), Checkout(tmp_path / "other", "first")


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().splitlines())


def entries(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith("."))


def test_the_same_content_is_built_once(two: tuple[Checkout, Checkout], tmp_path: Path) -> None:
    for checkout in (*two, *two):
        assert checkout.build() == 0
    assert runs(tmp_path) == 1
    assert two[1].made == "first"
    assert os.access(two[1].root / "made/program", os.X_OK)
    assert not os.access(two[1].root / "made/copy", os.X_OK)


def test_two_that_build_at_the_same_time_build_once(two: tuple[Checkout, Checkout], tmp_path: Path) -> None:
    started = [checkout.start() for checkout in two]
    assert [process.wait() for process in started] == [0, 0]
    assert runs(tmp_path) == 1
    assert [checkout.made for checkout in two] == ["first", "first"]


def test_other_content_is_built_again(two: tuple[Checkout, Checkout], tmp_path: Path) -> None:
    for checkout in two:
        assert checkout.build() == 0
    two[1].write("second")
    assert two[1].build() == 0
    assert (runs(tmp_path), two[1].made) == (2, "second")
    # And what was there before is there still.
    two[1].write("first")
    assert two[1].build() == 0
    assert (runs(tmp_path), two[1].made) == (2, "first")


def test_what_is_gone_comes_back(two: tuple[Checkout, Checkout], tmp_path: Path) -> None:
    checkout = two[0]
    assert checkout.build() == 0
    shutil.rmtree(checkout.root / "made")
    assert checkout.build() == 0
    assert (runs(tmp_path), checkout.made) == (1, "first")


def test_of_a_failed_build_nothing_is_kept(two: tuple[Checkout, Checkout], tmp_path: Path) -> None:
    for checkout in two:
        assert checkout.build(f"{COMMAND}; exit 3") == 3
    assert (runs(tmp_path), entries(tmp_path)) == (2, [])


def test_the_newest_few_are_kept(two: tuple[Checkout, Checkout], tmp_path: Path) -> None:
    checkout = two[0]
    for number in range(5):
        checkout.write(f"content {number}")
        assert checkout.build() == 0
    assert len(entries(tmp_path)) == 3
    for content, built in (("content 4", 5), ("content 0", 6)):
        two[1].write(content)
        assert two[1].build() == 0
        assert runs(tmp_path) == built
