"""Makes the pages of docs/reference from what the code itself goes by: protos, states, strategies, errors, commands;
and the page on attacks from the table of the tests.
"""

from __future__ import annotations

from pathlib import Path

from docs.generator import amounts, api, attacks, commands, errors, metrics, reasons, scheduling, states, streams
from docs.generator.protos import Contract
from docs.generator.wrapping import wrap

ROOT = Path(__file__).parents[2]
REFERENCE = Path("docs/reference")
ATTACKS = Path("docs/security.md")
_MADE = "<!-- Made by `make docs`; change what it is made from. -->\n\n"


def pages(root: Path = ROOT) -> dict[Path, str]:
    """Returns every generated page: its path below the repository's root, and its text."""
    contract = Contract.read(root / "protos")
    made = {
        "amounts.md": amounts.page(),
        "states.md": states.page(),
        "scheduling.md": scheduling.page(),
        "streams.md": streams.page(contract),
        "errors.md": errors.page(contract),
        "reasons.md": reasons.page(contract),
        "metrics.md": metrics.page(),
        "commands.md": commands.page(),
        "daemons.md": commands.daemons(),
        **{f"api/{name}": text for name, text in api.pages(contract).items()},
    }
    return {
        ATTACKS: wrap(_MADE + attacks.page()),
        **{REFERENCE / name: wrap(_MADE + text) for name, text in made.items()},
    }


def write(root: Path) -> list[Path]:
    """Writes every page that is not there as it should be, and removes those that are no more.
    Returns what was changed.
    """
    wanted = pages(root)
    changed = []
    for path in sorted(set(present(root)) - set(wanted)):
        (root / path).unlink()
        changed.append(path)
    for path, text in wanted.items():
        file = root / path
        if not file.exists() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            changed.append(path)
    return changed


def present(root: Path) -> list[Path]:
    """Returns the generated pages that are there."""
    found = [root / ATTACKS, *(root / REFERENCE).rglob("*.md")]
    return [path.relative_to(root) for path in found if path.exists() and path.read_text().startswith(_MADE)]
