"""Runs measurements and prints their lines: `name value unit peer ratio`,
and for medians the smallest and largest value.

`python -m tests.bench [NAME...]` runs the named modules of this package, or all that are programs. Figures that got
worse by more than their spread since those in docs/performance.md are named at the end. With `--write` the newest
figures go into the table there; those of measurements that did not run stay.

With `--quick`, small instances are measured where there are any, and compared with `quick.txt` beside this module: the
run fails when a figure is worse by a factor of two. With `--write` the newest figures go into that file.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.bench import document
from tests.bench.comparison import far_worse, got_worse, stored_in
from tests.bench.goals import Figure

HERE = Path(__file__).parent
HEADING = "name value unit peer ratio"
QUICK = HERE / "quick.txt"
"""Figures of small instances, as they were printed."""
QUICK_FACTOR = 2.0


def programs() -> dict[str, Path]:
    """The measurements there are, by name: a new module of this package that can be run appears by itself."""
    return {
        path.stem: path
        for path in sorted(HERE.glob("*.py"))
        if not path.stem.startswith("_") and 'if __name__ == "__main__":' in path.read_text()
    }


def parse(line: str) -> Figure | None:
    """The figure of a line; None when it is none."""
    words = line.split()
    try:
        name, value, unit, peer, ratio = words[:5]
        spread = {key: float(number) for key, _, number in (word.partition("=") for word in words[5:])}
        # Some name their peer: `create_session=4.2`.
        against = peer.rpartition("=")[2]
        return Figure(
            name,
            float(value),
            unit,
            None if against == "-" else float(against),
            None if ratio == "-" else float(ratio),
            (spread["min"], spread["max"]) if {"min", "max"} <= spread.keys() else None,
        )
    except ValueError:
        return None


def run(program: Path, *, quick: bool) -> tuple[list[Figure], bool]:
    """The figures of one measurement, printed as they come, and whether it ended well."""
    arguments = ["--quick"] if quick and '"--quick"' in program.read_text() else []
    figures = []
    command = [sys.executable, "-m", f"tests.bench.{program.stem}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if (figure := parse(line)) is not None:
                figures.append(figure)
    return figures, process.returncode == 0


def main() -> int:
    """Returns the number of measurements that failed, and of figures of small instances that are far worse."""
    known = programs()
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--quick", action="store_true", help="small instances where there are any, for a look")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/performance.md")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - known.keys()):
        parser.error(f"no such measurement: {', '.join(unknown)}")
    print(HEADING, flush=True)
    failed, figures = [], []
    for name in given.names or known:
        found, well = run(known[name], quick=given.quick)
        figures += found
        if not well:
            failed.append(name)
    worse = _compared(figures, quick=given.quick, write=given.write)
    for name in failed:
        print(f"{name} failed", file=sys.stderr)
    return len(failed) + worse


def _compared(figures: list[Figure], *, quick: bool, write: bool) -> int:
    """Names the figures that got worse, stores the newest, and returns how many make the run fail."""
    if not quick:
        for sentence in got_worse(figures, stored_in(document.DOCUMENT.read_text())):
            print(sentence)
        if write:
            document.write(figures)
        return 0
    stored = {figure.name: figure for line in QUICK.read_text().splitlines() if (figure := parse(line)) is not None}
    if write:
        stored |= {figure.name: figure for figure in figures}
        QUICK.write_text("".join(f"{printed(stored[name])}\n" for name in sorted(stored)))
        return 0
    far = list(far_worse(figures, stored, QUICK_FACTOR))
    for sentence in far:
        print(sentence, file=sys.stderr)
    return len(far)


def printed(figure: Figure) -> str:
    """The line of a figure, as measurements print it."""
    peer, ratio = ("-" if number is None else f"{number:.6g}" for number in (figure.peer, figure.ratio))
    spread = "" if figure.spread is None else f" min={figure.spread[0]:.6g} max={figure.spread[1]:.6g}"
    return f"{figure.name} {figure.value:.6g} {figure.unit} {peer} {ratio}{spread}"


if __name__ == "__main__":
    sys.exit(main())
