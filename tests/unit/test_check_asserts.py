"""What `make check` refuses in tests, as asserts that cannot fail."""

from __future__ import annotations

import ast
import textwrap
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("retinue.manager.dispatch.agent_link", "retinue.agent.main")
SELECTION = "asserts on each of a selection, which may be empty"
STREAM = "asserts on each of a stream, which may be empty"
ALL, NONE = "`all` of a selection, which may be empty", "none of a selection, which may be empty"
NOTHING = "it asserts nothing"


@pytest.fixture(scope="module")
def check() -> Any:
    loader = SourceFileLoader("check_asserts", str(ROOT / "scripts" / "check-asserts"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def found(check: Any, body: str, *, properties: bool = False) -> list[str]:
    tree = ast.parse("async def test_it(some, caplog, stream):\n" + textwrap.indent(textwrap.dedent(body), "    "))
    return [what for _, _, what in check.findings(tree, MODULES, check.asserting_names([tree]), properties=properties)]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("assert all(x.good for x in some if x.kind)", ALL),
        ("assert all([x.good for x in some if x.kind])", ALL),
        ("chosen = [x for x in some if x.kind]\nassert all(x.good for x in chosen)", ALL),
        ("chosen = sorted(filter(None, some))\nassert all(x.good for x in chosen)", ALL),
        ("chosen = [x for x in some if x.kind]\nassert not [x for x in chosen if x.bad]", NONE),
        ("chosen = [x for x in some if x.kind]\nassert not any(x.bad for x in chosen)", NONE),
        ("for x in some.glob('*.proto'):\n    assert x.good", SELECTION),
        ("for x in [x for x in some if x.kind]:\n    assert x.good", SELECTION),
        ("chosen = {x: 1 for x in some if x.kind}\nfor x, one in chosen.items():\n    assert x.good", SELECTION),
        ("async for x in stream:\n    assert x.good\n    break", STREAM),
        ("async for x in stream:\n    if x.kind:\n        assert x.good\n        return", STREAM),
    ],
)
def test_what_may_be_empty_is_found(check: Any, body: str, what: str) -> None:
    assert found(check, body) == [what]
    # One example of a property may select nothing.
    assert found(check, body, properties=True) == []


@pytest.mark.parametrize(
    "body",
    [
        "assert all(x.good for x in some)",
        "assert not [x for x in some if x.bad]",
        "for x in some:\n    assert x.good",
        "chosen = [x for x in some if x.kind]\nassert len(chosen) == 3\nassert all(x.good for x in chosen)",
        "chosen = [x for x in some if x.kind]\nassert chosen and all(x.good for x in chosen)",
        "chosen = [x for x in some if x.kind]\nfirst, second = chosen\nassert all(x.good for x in chosen)",
        "chosen = [x for x in some if x.kind]\nassert all(x.good for x in chosen)\nassert chosen[0].first",
        "chosen = [x for x in some if x.kind]\nassert not chosen or all(x.good for x in chosen)",
        "chosen = set(some.rglob('*'))\nassert chosen > {1}\nfor x in chosen:\n    assert x.good",
        "seen = 0\nfor x in some.glob('*'):\n    assert x.good\n    seen += 1\nassert seen",
        "async for x in stream:\n    assert x.good\n    break\nelse:\n    raise AssertionError('it ended')",
        "seen, last = 0, 0\nasync for x in stream:\n    assert x.good\n    seen, last = seen + 1, x\nassert last == 7",
        "seen = []\nasync for x in stream:\n    assert x.good\n    seen.append(x)\nreturn seen",
    ],
)
def test_what_is_known_not_to_be_empty_is_let_through(check: Any, body: str) -> None:
    assert found(check, body) == []


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("assert not [r for r in caplog.records if r.name.startswith('manager')]", "manager"),
        ("assert [record for record in caplog.records if record.name == 'agent.main']", "agent.main"),
        ("assert caplog.records[0].name.startswith(('sqlalchemy', 'router.'))", "router."),
        (
            "caplog.set_level('INFO', logger='retinue.manager.dispatcher')\nassert caplog.records",
            "retinue.manager.dispatcher",
        ),
        ("logging.getLogger('manager').disabled = True\nassert some", "manager"),
    ],
)
def test_a_logger_that_there_is_not_is_found(check: Any, body: str, name: str) -> None:
    assert found(check, body) == [f"no logger is named {name}"]


def test_loggers_that_there_are_are_let_through(check: Any) -> None:
    body = """
        caplog.set_level("INFO", logger="retinue")
        logging.getLogger("sqlalchemy.pool").disabled = True
        assert [r for r in caplog.records if r.name.startswith("retinue.manager")]
        assert [r for r in caplog.records if r.name == "retinue.agent.main"]
        assert some.name == "agent"
    """
    assert found(check, body) == []


def test_a_test_asserts_or_calls_what_does(check: Any) -> None:
    helpers = "def judge(x):\n    assert x\n\n\ndef look(x):\n    judge(x)\n\n\ndef walk(x):\n    return x\n\n\n"
    bodies = {
        "walk(1)": [NOTHING],
        "look(1)": [],
        "some.look()": [],
        "walk(judge)": [],
        "with pytest.raises(ValueError):\n        walk(1)": [],
        "subprocess.run(['true'], check=True)": [],
        "subprocess.run(['true'])": [NOTHING],
        "eventually(walk)": [],
    }
    for body, expected in bodies.items():
        tree = ast.parse(f"{helpers}def test_it(some):\n    {body}\n")
        result = check.findings(tree, MODULES, check.asserting_names([tree]))
        assert [what for _, _, what in result] == expected, body
