"""`retinue dev`: a whole cluster on this machine, for as long as it is wanted."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from retinue.client.command.shell import options
from retinue.client.command.shell.connection import asynchronous
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.errors import UsageError
from retinue.client.settings import contexts_path, read_contexts, write_context
from retinue.rpc.daemons import missing_extras

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.client.settings import Settings
    from retinue.devtools.cluster import Cluster
    from retinue.devtools.first_builds import FirstBuilds
    from retinue.devtools.process import ChildProcess

_CONTEXT = "dev"
_POLL_SECONDS = 0.2


@click.command("dev")
@click.option(
    "--agents",
    type=click.IntRange(0, 64),
    default=2,
    show_default=True,
    help="Number of agents; 0: one, without a node of its own.",
)
@click.option("--slots", callback=options.slots, multiple=True, metavar="cpu=4,mem=2g", help="Slots of each agent.")
@click.option(
    "--port",
    type=click.IntRange(1, 65532),
    default=7440,
    show_default=True,
    help="Port of the manager; the next three are used, too.",
)
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Keep the database here.")
@click.option("--vm", is_flag=True, help="Run kernels as virtual machines by default.")
@click.option(
    "--envoy", type=click.Path(dir_okay=False, exists=True, path_type=Path), help="Envoy program for the router."
)
@asynchronous
async def dev_command(
    *, agents: int, slots: Mapping[str, str], port: int, data_dir: Path | None, vm: bool, envoy: Path | None
) -> int:
    """Run a manager, its database and agents on nodes of their own, until Ctrl-C; needs root.

    A node is a network namespace. The context `dev` exists as long as the cluster runs. Without --data-dir nothing
    stays; the next cluster removes the remains of a killed one. With retinue[router] installed it serves endpoints,
    too:

    \b
      retinue endpoint create hello --public --port 8000 --wait -- python3 -m http.server 8000
      curl "$(retinue endpoint open hello)"
    """
    if missing := missing_extras("manager", "agent"):
        what = " and the ".join(missing)
        raise UsageError(
            f"the {what} {'is' if len(missing) == 1 else 'are'} not installed: pip install 'retinue[manager,agent]'"
        )
    from retinue.devtools.cluster import Cluster, ClusterOptions  # noqa: PLC0415  # part of an extra
    from retinue.devtools.first_builds import CONSOLE, FirstBuilds  # noqa: PLC0415

    chosen = ClusterOptions(
        agents=agents,
        port=port,
        slots=slots or {"cpu": "4", "mem": "2g"},
        gateway=True,
        router=has_router(),
        envoy=envoy,
        vm=vm,
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, stopping.set)
    cluster = Cluster(data_dir, chosen, say=lambda text: click.echo(f"{text} …", err=True))
    path = contexts_path(os.environ)
    previous, _ = read_contexts(path)
    written: Settings | None = None
    builds = FirstBuilds()
    try:
        await builds.begin()
        starting = asyncio.create_task(cluster.start())
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return ExitCode.INTERRUPTED
        starting.result()
        written = cluster.settings
        write_context(path, _CONTEXT, written, make_current=True)
        logs = cluster.directory / "logs"
        console = "" if CONSOLE in builds.missing else await _console_link(cluster)
        click.echo(introduction(cluster.settings, path, logs, console=console, router=chosen.router, vm=vm))
        building = asyncio.create_task(_build(cluster, builds, logs))
        try:
            await _supervise(cluster, stopped)
        finally:
            building.cancel()
            await asyncio.gather(building, return_exceptions=True)
    finally:
        click.echo("stopping and cleaning up …", err=True)
        await builds.close()
        try:
            await cluster.stop()
        finally:
            if written is not None:
                _restore_context(path, written, previous)
            for number in signals:
                loop.remove_signal_handler(number)
    return ExitCode.OK


def has_router() -> bool:
    """Returns whether the extra of routers is installed."""
    try:
        metadata.version("xds-protos")
    except metadata.PackageNotFoundError:
        return False
    return True


async def _console_link(cluster: Cluster) -> str:
    async with cluster.client() as client:
        return (await client.tokens.create_console_ticket()).url


async def _build(cluster: Cluster, builds: FirstBuilds, logs: Path) -> None:
    """Builds what this machine has not yet, and reports what is ready."""
    from retinue.devtools.first_builds import CONSOLE  # noqa: PLC0415  # part of an extra

    if not builds.missing:
        return
    click.echo(f"Built now, once, in the background: {', '.join(builds.missing)}. What needs them waits.", err=True)
    async for title, failure in builds.run(logs):
        click.echo(f"{title} cannot be built: {failure}" if failure else f"{title}: ready", err=True)
        if title == CONSOLE and not failure:
            click.echo(f"  {await _console_link(cluster)}", err=True)


async def _supervise(cluster: Cluster, stopped: asyncio.Task[bool]) -> None:
    """Reports at once when a process ends by itself, and why, until stopped."""
    known = {cluster.manager, *cluster.routers, *(agent.process for agent in cluster.agents)}
    while not stopped.done():
        await asyncio.wait([stopped], timeout=_POLL_SECONDS)
        # An interrupt is for us and not for them; what ends after it was stopped.
        for child in [child for child in known if child.pid is None and not stopped.done()]:
            known.discard(child)
            click.echo(exit_notice(child, _part_of(cluster, child)), err=True)


_Part = Literal["manager", "router", "agent"]
_MEANING: dict[_Part, str] = {
    "manager": "Nothing answers until the cluster is started again.",
    "router": "Endpoints are served as before, but changes of them and requests to sleeping ones wait.",
    "agent": "What runs there runs on, but nothing starts or stops there.",
}


def _part_of(cluster: Cluster, child: ChildProcess) -> _Part:
    if child is cluster.manager:
        return "manager"
    return "router" if child in cluster.routers else "agent"


def exit_notice(child: ChildProcess, part: _Part) -> str:
    """Says how a process of a cluster ended, what that means, and what to do."""
    who = f"Agent {child.name}" if part == "agent" else f"The {part}"
    return f"\n{who} {child.exit_report()}\n{_MEANING[part]} Stop the cluster with Ctrl-C and start it again.\n"


def _restore_context(path: Path, written: Settings, previous: str | None) -> None:
    """Takes back what was written, unless another cluster has written its own since."""
    current, contexts = read_contexts(path)
    if contexts.get(_CONTEXT) != written:
        return
    write_context(path, _CONTEXT, None)
    if current == _CONTEXT and previous is not None and previous in contexts and previous != _CONTEXT:
        write_context(path, previous, contexts[previous], make_current=True)


_ENDPOINT = """
An endpoint, which scales with its load; curl resolves its name:
  retinue endpoint create hello --public --port 8000 --max 3 --wait -- python3 -m http.server 8000
  curl "$(retinue endpoint open hello)"
  retinue endpoint explain hello
"""
_VM = """
Kernels are virtual machines here unless they ask to be something else:
  retinue run --isolation process -- uname -r
  retinue agents ls -o wide
"""
_CONSOLE = """The web console; the link is good once, within a minute, and `retinue console` makes another:
  {link}
"""
_NO_CONSOLE = "The web console is not built yet; `retinue console` makes a link when it is.\n"
_NO_ROUTER = "\nEndpoints need a router, which is not installed: retinue[router].\n"


def introduction(settings: Settings, contexts: Path, logs: Path, *, console: str, router: bool, vm: bool) -> str:
    """Returns the introduction to a cluster that has started; `console` is a link, good once."""
    ca = shlex.quote(settings.ca or "")
    return f"""
The cluster is up at {settings.endpoint}; context `{_CONTEXT}` is in {contexts}, logs are in {logs}.

{_CONSOLE.format(link=console) if console else _NO_CONSOLE}
For programs:
  export RETINUE_ENDPOINT={settings.endpoint}
  export RETINUE_TOKEN={settings.token}
  export RETINUE_CA={ca}

Try:
  retinue run -- echo hello
  retinue run --size 3 --mode multi-node --slots cpu=2 -- ssh sub2 hostname
  retinue agents ls
  retinue run --type interactive -n web -d --port web:http:8000 -- python3 -m http.server 8000
  retinue open web web
{_VM if vm else ""}{_ENDPOINT if router else _NO_ROUTER}
Any gRPC tool, by reflection:
  grpcurl -cacert "$RETINUE_CA" -authority manager.retinue -H "authorization: Bearer $RETINUE_TOKEN" \\
      "$RETINUE_ENDPOINT" list

Ctrl-C stops it and removes everything.
"""
