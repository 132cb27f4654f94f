"""The generated pages are those that the code makes, and no link of a page leads nowhere."""

from __future__ import annotations

import re
from typing import Any

import pytest

from docs.generator import ROOT, markdown, pages, present, states
from docs.generator.protos import Contract
from retinue.manager.domain.session.states import KERNEL_MOVES, SESSION_MOVES
from tests.unit.docs.project_files import listed

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def test_the_pages_are_what_make_docs_makes() -> None:
    wanted = pages()
    stale = [
        str(path) for path, text in wanted.items() if not (ROOT / path).exists() or (ROOT / path).read_text() != text
    ]
    assert not stale, "run make docs"
    assert set(present(ROOT)) == set(wanted)


@pytest.mark.parametrize("moves", [SESSION_MOVES, KERNEL_MOVES], ids=["sessions", "kernels"])
def test_a_diagram_has_every_move_and_no_other(moves: Any) -> None:
    drawn = re.findall(r"^ {4}(\w+) --> (\w+)$", states.diagram(moves), re.MULTILINE)
    assert sorted(drawn) == sorted((state, after) for state, all_after in moves.items() for after in all_after)


def test_everything_in_the_contract_has_its_comment_on_a_page() -> None:
    contract, made = Contract.read(ROOT / "protos"), pages()
    for file in contract.files:
        page = next(text for path, text in made.items() if path.name == file.page and path.parent.name == "api")
        text = page + " ".join(page.split())
        for service, _ in file.services():
            for method, comment in file.methods(service):
                assert f"### {method.name}\n" in text
                assert markdown.line(comment.strip().splitlines()[0]) in text
        for name, message, place in file.messages():
            assert f"### {name}\n" in text
            for field, comment in file.fields(message, place):
                assert comment.strip(), f"{name}.{field.name}"
                assert f"| `{field.name}` |" in text


def test_no_link_leads_nowhere() -> None:
    dead = []
    for name in listed("*.md"):
        file = ROOT / name
        for target in _LINK.findall(_FENCE.sub("", file.read_text())):
            path, _, anchor = target.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            there = (file.parent / path).resolve() if path else file
            if not there.exists() or (anchor and there.suffix == ".md" and anchor not in _anchors(there.read_text())):
                dead.append(f"{name}: {target}")
    assert not dead


def _anchors(text: str) -> set[str]:
    """Names of a page's headings as links write them."""
    heads = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
