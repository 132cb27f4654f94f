"""The page on attacks: the table of the tests, row by row, with the tests that show each answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from docs.generator.markdown import line
from tests.attacks import ATTACKS, Attack, Attacker, State, marked

_MISSING = {State.PARTLY: "Partly", State.OPEN: "Open"}


def page(rows: Sequence[Attack] = ATTACKS, tests: Mapping[str, Sequence[str]] | None = None) -> str:
    """Returns the whole page. `tests` are those of each row; None for those that are marked."""
    found = marked() if tests is None else tests
    counts = Counter(row.state for row in rows)
    sections = "\n".join(
        f"## {attacker}\n\n" + "\n".join(_row(row, found.get(row.name, ())) for row in rows if row.attacker is attacker)
        for attacker in Attacker
    )
    return f"""# Attacks and their answers

What an attacker tries, what Retinue answers, and the tests that show it. `make attack` runs these tests, on one machine
with real managers, agents, routers and kernels. [Security](../SECURITY.md) says what is trusted.

Of {len(rows)} attacks, {counts[State.WHOLE]} have their whole answer, {counts[State.PARTLY]} a part of it, and
{counts[State.OPEN]} are open; {counts[State.NO_FEATURE]} are on what Retinue does not have. A status is that of gRPC, a
reason [that of an error](reference/errors.md) or [of a session or node](reference/reasons.md).

{sections}"""


def _row(row: Attack, tests: Sequence[str]) -> str:
    parts = [f"### {row.name}", f"{line(row.attempt)} **Answer:** {line(row.answer)}"]
    if row.state is State.NO_FEATURE:
        parts[1] = f"{line(row.attempt)} **No such feature:** {line(row.answer)}"
    if row.missing:
        parts.append(f"**{_MISSING[row.state]}:** {line(row.missing)}")
    parts.append("\n".join(f"* `{test}`" for test in tests))
    return "\n\n".join(part for part in parts if part) + "\n"
