"""What an explanation advises on conditions."""

from __future__ import annotations

import pytest

from retinue.manager.api.sessions.convert import advice_on
from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.events import Condition


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ConditionType.PATH_BROKEN, "firewalls"),
        (ConditionType.PATH_UNPROVED, "upgrade the agent"),
        (ConditionType.NETWORK_DEGRADED, "retinue doctor"),
        (ConditionType.RETRYING, "goes on trying"),
        (ConditionType.AGENT_NOT_REACHED, "TCP 7443"),
        (ConditionType.AGENT_LOST, "retinue agents rm"),
        (ConditionType.OUTPUT_LOST, "free space"),
        (ConditionType.OOM_KILLED, "`mem`"),
        (ConditionType.PAUSED, "docker unpause"),
    ],
)
def test_a_condition_is_named_with_what_to_do_once(kind: ConditionType, words: str) -> None:
    (advice,) = advice_on([Condition(kind, "on n1", None, "n1"), Condition(kind, "on n2", None, "n2")])
    assert advice.startswith(f"{kind}: ")
    assert words in advice


def test_of_conditions_that_need_nothing_or_are_not_known_nothing_is_advised() -> None:
    found = [Condition(ConditionType.LIFETIME_WARNING, "soon", None), Condition("OF_ANOTHER_VERSION", "odd", None)]
    assert advice_on(found) == []
