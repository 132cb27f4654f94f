"""Reasons in code are those of the contract, and come from the closed sets."""

from __future__ import annotations

import ast
import re
from enum import StrEnum
from pathlib import Path

import pytest

from docs.generator import ROOT, reasons
from docs.generator.protos import Contract
from retinue.manager.domain import reasons as manager_reasons
from retinue.rpc.core import reasons as agent_reasons

_SETS = [*vars(manager_reasons).values(), *vars(agent_reasons).values()]
REASONS = {str(one) for kind in _SETS if isinstance(kind, type) and issubclass(kind, StrEnum) for one in kind}
# Words that also are values of other closed sets: states, goals, types of condition, isolations.
_AMBIGUOUS = {"EXITED", "HELD", "OTHER", "PAUSED", "PROCESS", "STOPPED", "UNAVAILABLE"}
_SOURCES = {"manager/domain/reasons.py", "rpc/core/reasons.py"}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("SessionReason", manager_reasons.SessionReason),
        ("ConditionType", manager_reasons.ConditionType),
        ("AgentConditionType", agent_reasons.AgentConditionType),
        ("ErrorReason", agent_reasons.ErrorReason),
        ("AgentConditionReason", agent_reasons.AgentConditionReason),
        ("AttemptReason", agent_reasons.AttemptReason),
    ],
)
def test_a_closed_set_is_the_enum_of_the_contract(name: str, known: type[StrEnum]) -> None:
    assert [str(one) for one in known] == list(reasons.values(Contract.read(ROOT / "protos"), name))
    assert all(one.name == one.value for one in known)


def literals(text: str) -> set[str]:
    """Returns the reasons that Python code spells out: as strings, or quoted inside SQL."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= REASONS.intersection({node.value, *re.findall(r"'([A-Z_]+)'", node.value)})
    return found


def test_no_code_spells_out_a_reason() -> None:
    """Only what has to stay readable when the sets change may: migrations."""
    spelled = {
        (name, reason)
        for folder in ("manager", "agent", "proxy", "router", "rpc")
        for path in sorted(Path(ROOT, folder).rglob("*.py"))
        if (name := str(path.relative_to(ROOT))) not in _SOURCES and "/migrations/" not in name
        for reason in literals(path.read_text()) - _AMBIGUOUS
    }
    assert not spelled, "take it from manager/domain/reasons.py or rpc/core/reasons.py"


def test_literals_are_found_in_code_and_in_sql() -> None:
    assert literals("x = f(reason='IMAGE_MOVED')") == {"IMAGE_MOVED"}
    assert literals("x = \"WHERE reason = 'QUEUED'\"") == {"QUEUED"}
    assert literals('"""Says IMAGE_MOVED in words."""') == set()
