"""Agents as nodes: their states, and the lines of sinfo."""

from __future__ import annotations

import os

import click
import pytest

from retinue.client.command.application import cli
from retinue.client.command.slurm.layout import by_letters
from retinue.client.command.slurm.node import Node, partitions_of
from retinue.client.command.slurm.sinfo import LETTERS, parse_states, rows_of
from retinue.client.command.slurm.slurm_commands import DIRECTORY
from retinue.client.errors import UsageError
from retinue.manager.v1 import fleet_service_pb2 as pb


def agent(name: str = "n1", state: str = "ALIVE", occupied: str = "", **fields: object) -> pb.Agent:
    found = pb.Agent(id=name, resource_group="default", **fields)  # type: ignore[arg-type]
    found.state = pb.AgentState.Value(f"AGENT_STATE_{state}")
    found.capacity.update({"cpu": "4", "mem": "2g"})
    if occupied:
        found.occupied.update({"cpu": occupied, "mem": "1g"})
    return found


_BLOCKING = pb.AgentCondition(message="full", blocks_placement=True)


@pytest.mark.parametrize(
    ("one", "long", "short"),
    [
        (agent(), "idle", "idle"),
        (agent(occupied="1500m"), "mixed", "mix"),
        (agent(occupied="4"), "allocated", "alloc"),
        (agent(drained=True), "drained", "drain"),
        (agent(occupied="1", drained=True), "draining", "drng"),
        (agent(conditions=[_BLOCKING]), "down", "down"),
        (agent(state="LOST"), "down*", "down*"),
        (agent(state="SUSPECT"), "idle*", "idle*"),
        (agent(state="JOINING"), "unknown*", "unk*"),
    ],
)
def test_states(one: pb.Agent, long: str, short: str) -> None:
    assert (Node(one).state, Node(one).short_state) == (long, short)


def test_nodes_that_are_alike_are_one_line() -> None:
    agents = [agent("n1"), agent("n2", occupied="1"), agent("n3")]
    groups = [pb.ResourceGroup(name="default"), pb.ResourceGroup(name="empty")]
    partitions = partitions_of(groups, agents)

    def lines(text: str, *, each: bool = False) -> list[str]:
        layout = by_letters(text, LETTERS, "-o")
        return [layout.line(row) for row in rows_of(partitions, [column.field for column in layout.columns], each=each)]

    assert lines("%P %D %t %N %C") == [
        "default* 2 idle n[1,3] 0/8/0/8",
        "default* 1 mix n2 1/3/0/4",
        "empty 0 n/a  0/0/0/0",
    ]
    assert lines("%R %F") == ["default 1/2/0/3", "empty 0/0/0/0"]
    assert lines("%n %c", each=True) == ["n1 4", "n2 4", "n3 4"]


def test_states_to_choose_by() -> None:
    assert parse_states("idle,MIX,drain") == {"idle", "mixed", "draining", "drained"}
    assert parse_states("maint") == frozenset()
    with pytest.raises(UsageError, match="'frob'"):
        parse_states("frob")


def test_programs_by_the_names_of_slurm_call_commands_of_ours() -> None:
    programs = list(DIRECTORY.iterdir())
    assert {"sbatch", "squeue", "scancel", "sacct", "sinfo", "scontrol", "srun"} <= {path.name for path in programs}
    for path in programs:
        assert cli.get_command(click.Context(cli), path.name) is not None
        lines = path.read_text().splitlines()
        assert (lines[0], lines[-1]) == ("#!/bin/sh", f'exec retinue {path.name} "$@"')
        assert os.access(path, os.X_OK)
