"""`retinue sinfo`: agents by resource group, as Slurm lists nodes by partition."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.slurm.finding import split_words
from retinue.client.command.slurm.job import NULL
from retinue.client.command.slurm.layout import Field, Layout, by_letters, by_names
from retinue.client.command.slurm.node import SHORT_STATES, Node, Partition, partitions_of
from retinue.client.command.slurm.slurm_command import LEFT_OUT, SlurmCommand, version_option
from retinue.client.command.slurm_scripts.hostlist import compress, expand
from retinue.client.command.slurm_scripts.times import moment_text
from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_DEFAULT = "%#P %.5a %.10l %.6D %.6t %N"
_SUMMARY = "%#P %.5a %.10l %.16F  %N"
_LONG = "%#P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
_NODES = "%#N %.6D %#P %6t"
_LONG_NODES = "%#N %.6D %#P %.11T %.4c %.8z %.6m %.8d %.6w %.8f %20E"
_REASONS = "%20E %9u %19H %N"
_WIDENED = re.compile(r"%#(\d*)([A-Za-z])")


@dataclass(frozen=True, slots=True)
class Row:
    """A line: nodes of a partition that are alike in what is printed."""

    partition: Partition
    nodes: tuple[Node, ...]

    def counts(self, *, total: bool) -> str:
        """Returns how many are used, idle, neither, and in all: `1/2/0/3`; of a pair the first two."""
        used, idle = sum(node.is_used for node in self.nodes), sum(node.is_idle for node in self.nodes)
        return f"{used}/{idle}/{len(self.nodes) - used - idle}/{len(self.nodes)}" if total else f"{used}/{idle}"

    def cpu_counts(self) -> str:
        """Returns the processors that are held, free, neither, and in all."""
        held = sum(node.cpus_allocated for node in self.nodes)
        usable = [node for node in self.nodes if node.is_idle or node.is_used]
        free = sum(node.cpus - node.cpus_allocated for node in usable)
        total = sum(node.cpus for node in self.nodes)
        return f"{held}/{free}/{total - held - free}/{total}"


def _of_node(value: Callable[[Node], str], without: str = "0") -> Callable[[Row], str]:
    """Returns the value of the nodes of a line, which is one: they are alike in it."""
    return lambda row: safe(value(row.nodes[0])) if row.nodes else without


def _of(value: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: safe(value(row))


# By the letter of `-o` and the names of `-O`, each with its title; whether nodes that differ have lines of their own.
_FIELDS: tuple[tuple[str, str, bool, Field[Row]], ...] = (
    ("a", "available", False, Field("AVAIL", _of(lambda _: "up"))),
    ("A", "nodeai", False, Field("NODES(A/I)", _of(lambda row: row.counts(total=False)))),
    ("b", "featuresact", True, Field("ACTIVE_FEATURES", _of_node(lambda node: node.agent.architecture or NULL, NULL))),
    ("B", "maxcpuspernode", False, Field("MAX_CPUS_PER_NODE", _of(lambda _: "UNLIMITED"))),
    ("c", "cpus", True, Field("CPUS", _of_node(lambda node: str(node.cpus)))),
    ("C", "cpusstate", False, Field("CPUS(A/I/O/T)", _of(lambda row: row.cpu_counts()))),
    ("d", "disk", True, Field("TMP_DISK", _of_node(lambda node: str(node.disk)))),
    ("D", "nodes", False, Field("NODES", _of(lambda row: str(len(row.nodes))))),
    ("e", "freemem", True, Field("FREE_MEM", _of_node(lambda node: str(node.memory - node.memory_allocated)))),
    ("E", "reason", True, Field("REASON", _of_node(lambda node: node.reason, "none"))),
    ("f", "features", True, Field("AVAIL_FEATURES", _of_node(lambda node: node.agent.architecture or NULL, NULL))),
    ("F", "nodeaiot", False, Field("NODES(A/I/O/T)", _of(lambda row: row.counts(total=True)))),
    ("g", "groups", False, Field("GROUPS", _of(lambda _: "all"))),
    ("G", "gres", True, Field("GRES", _of_node(lambda node: node.gres, NULL))),
    ("h", "oversubscribe", False, Field("OVERSUBSCRIBE", _of(lambda _: "NO"))),
    (
        "H",
        "timestamp",
        True,
        Field("TIMESTAMP", _of_node(lambda node: moment_text(node.reason_time, "Unknown"), "n/a")),
    ),
    ("l", "time", False, Field("TIMELIMIT", _of(lambda _: "infinite"))),
    ("L", "defaulttime", False, Field("DEFAULTTIME", _of(lambda _: "n/a"))),
    ("m", "memory", True, Field("MEMORY", _of_node(lambda node: str(node.memory)))),
    ("M", "preemptmode", False, Field("PREEMPT_MODE", _of(lambda _: "OFF"))),
    ("n", "nodehost", True, Field("HOSTNAMES", _of_node(lambda node: node.name, ""))),
    ("N", "nodelist", False, Field("NODELIST", _of(lambda row: compress(node.name for node in row.nodes)))),
    ("o", "nodeaddr", True, Field("NODE_ADDR", _of_node(lambda node: node.agent.address.rpartition(":")[0], ""))),
    ("O", "cpusload", False, Field("CPU_LOAD", _of(lambda _: "N/A"))),
    ("p", "prioritytier", False, Field("PRIO_TIER", _of(lambda _: "1"))),
    ("P", "partition", False, Field("PARTITION", _of(lambda row: row.partition.marked_name))),
    ("r", "root", False, Field("ROOT", _of(lambda _: "no"))),
    ("R", "partitionname", False, Field("PARTITION", _of(lambda row: row.partition.name))),
    ("s", "size", False, Field("JOB_SIZE", _of(lambda _: "1-infinite"))),
    ("S", "allocnodes", False, Field("ALLOCNODES", _of(lambda _: "all"))),
    ("t", "statecompact", True, Field("STATE", _of_node(lambda node: node.short_state, "n/a"))),
    ("T", "statelong", True, Field("STATE", _of_node(lambda node: node.state, "n/a"))),
    ("u", "user", False, Field("USER", _of(lambda _: "Unknown"))),
    ("v", "version", True, Field("VERSION", _of_node(lambda node: node.agent.version or "N/A", "n/a"))),
    ("w", "weight", False, Field("WEIGHT", _of(lambda _: "1"))),
    ("X", "sockets", True, Field("SOCKETS", _of_node(lambda node: str(node.cpus)))),
    ("Y", "cores", False, Field("CORES", _of(lambda _: "1"))),
    ("Z", "threads", False, Field("THREADS", _of(lambda _: "1"))),
    ("z", "socketcorethread", True, Field("S:C:T", _of_node(lambda node: f"{node.cpus}:1:1"))),
    ("", "allocmem", True, Field("ALLOCMEM", _of_node(lambda node: str(node.memory_allocated)))),
    ("", "cluster", False, Field("CLUSTER", _of(lambda _: "retinue"))),
)
LETTERS: Mapping[str, Field[Row]] = {letter: field for letter, _, _, field in _FIELDS if letter}
NAMES: Mapping[str, Field[Row]] = {name: field for _, names, _, field in _FIELDS for name in names.split()}
_OF_NODES = frozenset(field for _, _, apart, field in _FIELDS if apart)


def rows_of(partitions: Iterable[Partition], fields: Sequence[Field[Row]], *, each: bool) -> list[Row]:
    """Returns the lines: nodes of a partition together that are alike in these fields, or `each` alone."""
    apart = [field for field in fields if field in _OF_NODES]
    found = list[Row]()
    for partition in partitions:
        alike: dict[tuple[str, ...], list[Node]] = {}
        for node in partition.nodes:
            row = Row(partition, (node,))
            alike.setdefault((*(field.value(row) for field in apart), node.name if each else ""), []).append(node)
        found += [Row(partition, tuple(nodes)) for nodes in alike.values()] or ([] if each else [Row(partition, ())])
    return found


def parse_states(text: str) -> frozenset[str]:
    """Returns the long states of a list of names or letters, in any case. Raises UsageError."""
    found = set[str]()
    for word in split_words([text]):
        lower = word.lower().rstrip("*")
        several = {"drain": ("draining", "drained"), "all": tuple(SHORT_STATES), "mix": ("mixed",)}.get(lower)
        single = [long for long, short in SHORT_STATES.items() if lower in (long, short)]
        if not several and not single and lower not in _OTHER_STATES:
            raise UsageError(f"Bad state string: {word!r}")
        found.update(several or single)
    return frozenset(found)


# States of Slurm that no agent has.
_OTHER_STATES = frozenset(
    {
        *("fail", "failing", "maint", "reserved", "resv", "planned", "plnd", "power_down", "power_up", "powered_down"),
        *("powering_down", "powering_up", "reboot", "future", "futr", "completing", "comp", "no_respond", "perfctrs"),
    }
)


@click.command("sinfo", cls=SlurmCommand)
@click.option("-a", "--all", is_flag=True, expose_value=False, help="All groups, as always.")
@click.option("-M", "--clusters", expose_value=False, metavar="NAME", help="There is one cluster.")
@click.option("-d", "--dead", is_flag=True, help="Only nodes that do not answer.")
@click.option("-e", "--exact", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("--federation", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-o", "--format", "letters", envvar="SINFO_FORMAT", metavar='"%P %D"', help="Columns by letters.")
@click.option("-O", "--Format", "columns", metavar="partition,nodes:5", help="Columns by names.")
@click.option("--hide", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-i", "--iterate", type=click.IntRange(1), metavar="SECONDS", help="Again and again.")
@click.option("-R", "--list-reasons", "reasons", is_flag=True, help="List nodes that take no sessions, with reasons.")
@click.option("--local", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-l", "--long", "long_", is_flag=True, help="Many columns.")
@click.option("--noconvert", is_flag=True, expose_value=False, help=LEFT_OUT)
@click.option("-N", "--Node", "each", is_flag=True, help="A line for each agent.")
@click.option("-n", "--nodes", metavar="AGENT,…", help="These agents.")
@click.option("-h", "--noheader", is_flag=True, help="Print no header.")
@click.option("-p", "--partition", "groups", envvar="SINFO_PARTITION", metavar="GROUP,…", help="These groups.")
@click.option("-r", "--responding", is_flag=True, help="Only nodes that answer.")
@click.option("-S", "--sort", expose_value=False, metavar="LETTERS", help=LEFT_OUT)
@click.option("-t", "--states", metavar="idle,mix", help="Only these states.")
@click.option("-s", "--summarize", is_flag=True, help="A line for each group.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help=LEFT_OUT)
@version_option
@pass_connection
@asynchronous
async def sinfo_command(
    connection: Connection,
    *,
    dead: bool,
    letters: str | None,
    columns: str | None,
    iterate: int | None,
    reasons: bool,
    long_: bool,
    each: bool,
    nodes: str | None,
    noheader: bool,
    groups: str | None,
    responding: bool,
    states: str | None,
    summarize: bool,
) -> int:
    """List agents by resource group, as Slurm's sinfo lists nodes by partition.

    The default group has a star. Unless you are an administrator, every agent that takes sessions appears as idle.
    """
    default = _REASONS if reasons else _SUMMARY if summarize else _LONG if long_ else _DEFAULT
    if each:
        default = _LONG_NODES if long_ else _NODES
    wanted = parse_states(states) if states else None
    names = None if nodes is None else frozenset(expand(nodes, "--nodes"))
    chosen = split_words([groups or ""])

    def accept(node: Node) -> bool:
        answers = not node.state.endswith("*")
        return (
            (wanted is None or node.state.rstrip("*") in wanted)
            and (names is None or node.name in names)
            and not (dead and answers)
            and not (responding and not answers)
            and not (reasons and (node.is_idle or node.is_used))
        )

    every = wanted is None and names is None and not (dead or responding or reasons)
    async with connection.client() as client:
        while True:
            listed = [group async for group in client.resource_groups.list() if not chosen or group.name in chosen]
            agents = [agent async for agent in client.agents.list()]
            partitions = [
                Partition(partition.name, tuple(filter(accept, partition.nodes)))
                for partition in partitions_of(listed, agents)
            ]
            shown = [partition for partition in partitions if every or partition.nodes]
            for line in _lines(letters or default, columns, shown, each=each, noheader=noheader):
                click.echo(line)
            if not iterate:
                return ExitCode.OK
            await _pause(iterate)


def _lines(
    letters: str, columns: str | None, partitions: Sequence[Partition], *, each: bool, noheader: bool
) -> list[str]:
    layout: Layout[Row] = by_letters(letters, LETTERS, "--format")
    if columns is not None:
        layout = by_names(columns, NAMES, "--Format")
    rows = rows_of(partitions, [column.field for column in layout.columns], each=each)
    if columns is None:
        layout = by_letters(_widened(letters, rows), LETTERS, "--format")
    return [*([] if noheader else [layout.header()]), *map(layout.line, rows)]


def _widened(letters: str, rows: Sequence[Row]) -> str:
    """Returns a format in which each `%#P` has the width of its longest value."""

    def width(found: re.Match[str]) -> str:
        field = LETTERS[found[2]]
        return f"%{max([len(field.title), *(len(field.value(row)) for row in rows)])}{found[2]}"

    return _WIDENED.sub(width, letters)


async def _pause(seconds: float) -> None:
    import asyncio  # noqa: PLC0415  # few calls need it

    click.echo()
    await asyncio.sleep(seconds)
    click.echo(time.strftime("%a %b %d %H:%M:%S %Y"))
