"""The table of job scripts in docs/how-to/from-slurm.md: what each of them asks for, as sbatch reads it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from retinue.client.command.sessions import submit
from retinue.client.command.sessions.script_options import read_script
from retinue.client.errors import UsageError

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "from-slurm.md"
SCRIPTS = ROOT / "tests" / "programs" / "jobs"
_ROW = re.compile(
    r"^\| \[(?P<name>[\w-]+)\]\(\.\./\.\./tests/programs/jobs/(?P=name)\.sh\) \| (?P<rest>.*) \|$", re.MULTILINE
)


def row(script: Path) -> tuple[str, str]:
    """Returns what a row of the table says of a script: its own comment, and what it means or why it is refused."""
    text = script.read_text()
    comment = text.splitlines()[1].removeprefix("# ").rstrip(".")
    try:
        options = read_script(text, script.name, own=submit.own_options())
    except UsageError as error:
        reasons = [re.sub(rf"^{script.name}:(\d+:)? ", "", line) for line in str(error).splitlines()]
        return comment, "refused: " + "; ".join(reasons)
    array = [] if options.array is None else ["--array …"]
    # The name of a job is a label.
    return comment, f"`{' '.join([shlex.join(options.arguments), *array]) or ' '}`"


def test_the_table_says_what_each_script_means() -> None:
    found = {match["name"]: match["rest"].split(" | ")[:2] for match in _ROW.finditer(PAGE.read_text())}
    expected = {script.stem: list(row(script)) for script in sorted(SCRIPTS.glob("*.sh"))}
    wrong = {name: cells for name, cells in expected.items() if found.get(name) != cells}
    rows = [
        f"| [{name}](../../tests/programs/jobs/{name}.sh) | {' | '.join(cells)} | … |" for name, cells in wrong.items()
    ]
    assert not rows, "the rows are:\n" + "\n".join(rows)
    assert set(found) == set(expected)
