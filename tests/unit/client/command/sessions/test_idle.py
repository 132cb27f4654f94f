"""Idle policies as they are written on the command line, and what is shown of them."""

from __future__ import annotations

import click
import pytest

from retinue.client.command.admin.groups import groups_command
from retinue.client.command.sessions.idle import policy, policy_text
from retinue.client.command.sessions.session_views import check_facts
from retinue.client.command.shell.connection import Connection
from retinue.manager.v1 import idle_pb2, session_pb2

WHOLE = (
    "grace=10m,warning=90s,extension=4h,interaction=90m,lifetime=3d,window=2h,cpu=5,mem=2.5,operator=any,checkers=any"
)


def parsed(*values: str) -> tuple[idle_pb2.IdlePolicy, list[str]] | None:
    command = click.Command("x", params=[click.Option(["--idle"], multiple=True)])
    return policy(click.Context(command), command.params[0], values)


def test_what_is_written_is_shown_again() -> None:
    found = parsed(*WHOLE.split(",", 3))
    assert found is not None
    message, exempt = found
    assert exempt == []
    assert message.interaction_timeout.seconds == 5400
    assert message.utilization.thresholds == {"cpu": 5, "mem": 2.5}
    text = policy_text(message)
    assert (
        text
        == "grace=10m,warning=90s,extension=4h,interaction=90m,lifetime=3d,window=2h,cpu=5,mem=2.5,operator=any,checkers=any"
    )
    assert parsed(text) == found


def test_none() -> None:
    assert parsed() is None
    assert parsed("none") == (idle_pb2.IdlePolicy(), [])
    found = parsed("interaction=8h,lifetime=none,window=none")
    assert found is not None
    assert found[1] == ["lifetime", "utilization"]
    exempt = [idle_pb2.IDLE_CHECKER_LIFETIME, idle_pb2.IDLE_CHECKER_UTILIZATION]
    assert policy_text(found[0], exempt) == "interaction=8h,lifetime=none,window=none"
    assert policy_text(idle_pb2.IdlePolicy()) == "-"


@pytest.mark.parametrize(
    "text", ["interaction=x", "operator=some", "checkers=some", "cpu=lots", "interaction", "warning=none"]
)
def test_what_is_wrong(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parsed(text)


def test_a_group_has_no_exemptions() -> None:
    with pytest.raises(click.UsageError, match="leave out"):
        groups_command.main(
            ["update", "g", "--idle", "lifetime=none"], standalone_mode=False, obj=Connection(None, None, None, None)
        )


def test_what_is_left_is_shown() -> None:
    session = session_pb2.Session()
    check = session.idle_checks.add(
        checker=idle_pb2.IDLE_CHECKER_INTERACTION, status=idle_pb2.IDLE_STATUS_WARNED, measured="nobody\n"
    )
    check.remaining.seconds = 75
    session.idle_checks.add(
        checker=idle_pb2.IDLE_CHECKER_UTILIZATION, status=idle_pb2.IDLE_STATUS_NO_DATA, measured="?"
    )
    session.extension_end_time.FromSeconds(0)
    assert check_facts(session) == [
        ("idle interaction", r"1m15s left, warned: nobody\n"),
        ("idle utilization", "-, stands still: not known now: ?"),
        ("extended until", "1970-01-01 00:00:00 UTC"),
    ]
