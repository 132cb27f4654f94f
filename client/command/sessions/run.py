"""`retinue run`: creates a session, shows its progress and output, and exits with its exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from retinue.client.command.inside.exec import NOT_FOUND, hinted
from retinue.client.command.sessions.attached_run import AttachedRun
from retinue.client.command.sessions.session_views import session_facts
from retinue.client.command.sessions.spec_options import named_options
from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text_files import TextFile
from retinue.client.command.shell.variables import env_options
from retinue.client.command.show.output import output_option, print_one
from retinue.client.command.show.session_follower import SessionFollower
from retinue.client.errors import UsageError
from retinue.client.spec import session_spec
from retinue.manager.v1 import session_service_pb2

if TYPE_CHECKING:
    from retinue.manager.v1 import session_pb2


_TYPES = ("batch", "interactive", "inference", "system")


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("-i", "--stdin", "interactive", is_flag=True, help="Run COMMAND in an interactive session, with stdin.")
@click.option("-t", "--tty", is_flag=True, help="The same on a terminal; -it without COMMAND runs a shell.")
@click.option("--keep", is_flag=True, help="With -i or -t: keep the session after COMMAND ends.")
@click.option(
    "--type",
    "kind",
    type=click.Choice(_TYPES),
    help="Type; a system session serves its mounts over SFTP.  [default: batch with a command or an image]",
)
@click.option("-n", "--name", default="", help="Name of the session.  [default: generated]")
@click.option("--size", type=click.IntRange(1), help="Number of kernels.  [default: 1]")
@click.option(
    "--template",
    default="",
    metavar="NAME[@VERSION]",
    shell_complete=completed_names.templates,
    help="Start from a template; other options override it.",
)
@options.set_option
@options.unset_option
@click.option(
    "--mode", type=click.Choice(["single-node", "multi-node"]), help="Put kernels on one node, or on several."
)
@click.option("--slots", multiple=True, callback=options.slots, metavar="cpu=2,mem=1g", help="Slots of each kernel.")
@click.option("--disk", default="", metavar="SIZE", help="Disk of each kernel, as 20g: the same as --slots disk=20g.")
@click.option("--main-slots", multiple=True, callback=options.slots, metavar="…", help="Slots of main1, if different.")
@click.option("--sub-slots", multiple=True, callback=options.slots, metavar="…", help="Slots of subs, if different.")
@click.option("--shared-memory", default="", metavar="SIZE", help="Size of /dev/shm, as 1g; a part of mem.")
@env_options
@click.option("--label", multiple=True, callback=options.labels, metavar="NAME=VALUE", help="Label of the session.")
@click.option("--image", default="", help="Image of kernels.  [default: the agent's own host, read-only]")
@click.option(
    "-w",
    "--workdir",
    default="",
    metavar="PATH",
    help="Working directory.  [default: the image's, else /home/work]",
)
@click.option(
    "--pull",
    type=options.PULL_POLICIES,
    help="When to pull the image.  [default: the resource group's, else missing]",
)
@click.option(
    "--isolation",
    type=options.ISOLATIONS,
    help="Isolation of kernels.  [default: the resource group's, else container with an image]",
)
@click.option("--sub-isolation", type=options.ISOLATIONS, help="Isolation of subs, if different.")
@click.option(
    "--mount",
    multiple=True,
    callback=options.mounts,
    metavar="SRC:DST[:rw]",
    help="Mount a directory of the nodes into every kernel; read-only unless `rw`.",
)
@click.option(
    "-p",
    "--port",
    "ports",
    multiple=True,
    callback=options.ports,
    metavar="NAME:[PROTOCOL:]NUMBER[:host=localhost]",
    help="Port of main1 that clients reach; the protocol is tcp or http. With `host=localhost`, an http program takes "
    "requests through the gateway for its own machine's.",
)
@click.option(
    "--app",
    "apps",
    multiple=True,
    callback=options.apps,
    metavar="NAME[='COMMAND {port}']",
    help="Define a program for `retinue app start`, at port NAME; those of `retinue app ls` need no command or port.",
)
@click.option(
    "--preopen",
    multiple=True,
    callback=options.port_ranges,
    metavar="FIRST[-LAST]",
    help="Let clients reach these ports of main1 by number.",
)
@click.option("--sub-command", callback=options.words, metavar="'sh -c …'", help="Command of subs.  [default: idle]")
@click.option("--group", default="", shell_complete=completed_names.groups, help="Resource group.")
@click.option("--project", default="", help="Project.")
@click.option("--description", default="", metavar="TEXT", help="Purpose of the session, for people.")
@click.option("--priority", type=click.IntRange(0, 100), help="Priority in the queue; 0 is last, 100 first.")
@click.option("--grace", callback=options.span, metavar="TIME", help="Time between the stop signal and SIGKILL.")
@click.option("--stop-signal", default="", metavar="NAME", help="Stop signal.  [default: the image's, or TERM]")
@click.option(
    "--signal",
    "time_warning",
    callback=options.time_warning,
    metavar="[started:]NAME@TIME",
    help="Send a signal before the time limit, to the command or to the processes that it started.",
)
@click.option("--time-limit", callback=options.span, metavar="TIME", help="End the session after this time.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="ID",
    shell_complete=completed_names.agents,
    help="Prefer this agent; may be repeated.",
)
@click.option("--strict-agents", is_flag=True, help="With --agent: run on no other agents.")
@click.option("--arch", default="", help="Require agents of this architecture.")
@click.option("--endpoint", default="", help="Endpoint to which this replica belongs.")
@click.option(
    "--replicas",
    type=click.Choice(["spread", "pack"]),
    help="Spread the endpoint's replicas over agents, or pack them.",
)
@click.option("--preemptible", is_flag=True, help="Let sessions of higher priority preempt this one.")
@click.option("--hold", is_flag=True, help="Hold the session until `retinue release`.")
@click.option(
    "--depends-on",
    multiple=True,
    callback=options.listed,
    metavar="SESSION,…",
    shell_complete=completed_names.sessions,
    help="Start after these sessions succeed; an array stands for all of its sessions. May be repeated.",
)
@click.option(
    "--after",
    multiple=True,
    callback=options.listed,
    metavar="SESSION,…",
    shell_complete=completed_names.sessions,
    help="Start after these sessions end, with any result; may be repeated.",
)
@click.option(
    "--after-failure",
    multiple=True,
    callback=options.listed,
    metavar="SESSION,…",
    shell_complete=completed_names.sessions,
    help="Start after these sessions end without success; may be repeated.",
)
@click.option(
    "--after-label",
    default="",
    metavar="NAME",
    help="Start after your earlier sessions with the same value of this label.",
)
@click.option(
    "--earliest-start-time",
    callback=options.future,
    metavar="TIME",
    help="Start no earlier: 30m from now, or RFC 3339.",
)
@click.option(
    "--retry", type=click.IntRange(1, 100), metavar="TRIES", help="Run again if its node is lost, in so many attempts."
)
@click.option("--retry-on-failure", is_flag=True, help="With --retry: run again after a failure, too.")
@click.option(
    "--retry-backoff", callback=options.span, metavar="TIME", help="Wait before the second attempt; doubled each time."
)
@click.option(
    "--authorized-keys", type=TextFile(), metavar="FILE", help="Public keys that may open the system session, too."
)
@click.option(
    "--max-file-size",
    callback=options.size,
    metavar="SIZE",
    help="Largest file that clients may write through a system session, as 20g.",
)
@click.option("--umask", default="", metavar="022", help="Permissions to clear on new files in a system session.")
@click.option("--bootstrap", type=TextFile(), metavar="FILE", help="Script to run first in every kernel.")
@click.option("-d", "--detach", is_flag=True, help="Submit the session, print its id, and exit.")
@click.option("-q", "--quiet", is_flag=True, help="Print problems on standard error, but no progress.")
@click.option("--fail-fast", is_flag=True, help="Exit with 6 if the session can never fit on the configured agents.")
@click.option(
    "--dry-run",
    "--validate-only",
    is_flag=True,
    help="Check the request, and report where it would run; submit nothing.",
)
@output_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@pass_connection
@asynchronous
async def run_command(
    connection: Connection,
    /,
    *,
    interactive: bool,
    tty: bool,
    keep: bool,
    detach: bool,
    dry_run: bool,
    fail_fast: bool,
    quiet: bool,
    output: str,
    **given: Any,
) -> int:
    """Start a session that runs COMMAND, follow it to its end, and exit with its code.

    Without COMMAND, a batch session runs the ENTRYPOINT and CMD of its image.

    The output of a batch session goes to standard output and standard error, as the session printed it. Progress goes
    to standard error; without a terminal, only start, end and problems. For an interactive session, the command returns
    as soon as the session runs. The first Ctrl-C ends the session; on a terminal it asks. With -i or -t, COMMAND runs
    as by `retinue exec`, and the session ends with it.

    \b
      retinue run -- echo hello
      retinue run -it --slots cpu=2,mem=4g
      retinue run --size 3 --mode multi-node --slots cpu=2 \\
          --sub-command 'sleep 60' -- ssh sub1 hostname
    """
    command = given["command"]
    if interactive or tty:
        given |= _attached(given, tty=tty, detach=detach)
    elif keep:
        raise click.UsageError("--keep needs -i or -t; `retinue rm` ends other sessions")
    spec = request(given)
    with named_options(spec):
        async with connection.client() as client:
            if dry_run:
                checked = await client.sessions.check_from(spec)
                facts = [*session_facts(checked.session), ("would go to", _preview_text(checked.preview))]
                print_one(output, checked, facts, safe(checked.session.spec.name))
                never = fail_fast and checked.preview.tier == session_service_pb2.REASON_TIER_CONFIGURATION
                return ExitCode.UNSCHEDULABLE if never else ExitCode.OK
            if interactive or tty:
                run = AttachedRun(client.sessions, spec, fail_fast=fail_fast, keep=keep, quiet=quiet)
                return hinted(await run(command, interactive=interactive, tty=tty), command)
            session = await client.sessions.create_from(spec)
            if detach:
                hinted(NOT_FOUND, command)
                if output in ("table", "wide"):
                    click.echo(session.id)
                else:
                    print_one(output, session.view, session_facts(session.view), session.id)
                return ExitCode.OK
            console = Console(stderr=True)
            if not quiet:
                console.print(f"{safe(session.name)}: {session.id}", markup=False, highlight=False, soft_wrap=True)
            return hinted(await SessionFollower(session, console, fail_fast=fail_fast, quiet=quiet).follow(), command)


def _attached(given: dict[str, Any], *, tty: bool, detach: bool) -> dict[str, Any]:
    """Returns the options of the session in which the command is attached. Raises UsageError."""
    if tty and given["command"][:1] and given["command"][0] in _TYPES:
        raise click.UsageError(f"-t asks for a terminal: write --type {given['command'][0]}")
    if given["kind"] not in {None, "interactive"}:
        raise click.UsageError(f"-i and -t are for interactive sessions, not for {given['kind']} ones")
    if detach:
        raise click.UsageError("--detach excludes -i and -t; --keep keeps the session after COMMAND")
    return {"kind": "interactive", "command": ()}


def _preview_text(preview: session_service_pb2.PlacementPreview) -> str:
    if preview.kernels:
        return ", ".join(f"{safe(kernel.hostname)} on {safe(kernel.agent)}" for kernel in preview.kernels)
    return "nowhere yet"


def request(given: dict[str, Any]) -> session_pb2.SessionSpec:
    """Returns the session that the command's options ask for. Raises UsageError."""
    command = list(given["command"])
    template, version = options.template_version(given["template"])
    # An image has a command of its own.
    kind = given["kind"] or ("" if template else "batch" if command or given["image"] else "interactive")
    if kind == "batch" and not command and not template and not given["image"]:
        raise UsageError("a batch session needs a command: retinue run -- COMMAND…")
    spec = session_spec(
        type=options.chosen_word(kind),
        name=given["name"],
        project=given["project"],
        resource_group=given["group"],
        cluster_size=given["size"] or (0 if template else 1),
        cluster_mode=options.chosen_word(given["mode"]),
        image=given["image"],
        command=command,
        environment=given["env"],
        slots={**given["slots"], **({"disk": given["disk"]} if given["disk"] else {})},
        shared_memory=given["shared_memory"],
        working_directory=given["workdir"],
        pull_policy=options.chosen_word(given["pull"]),
        isolation=options.chosen_word(given["isolation"]),
        sub_isolation=options.chosen_word(given["sub_isolation"]),
        main_slots=given["main_slots"],
        sub_slots=given["sub_slots"],
        sub_command=given["sub_command"] or [],
        labels=given["label"],
        mounts=given["mount"],
        ports=given["ports"],
        preopen_ports=given["preopen"],
        apps=given["apps"],
        agents=given["agents"],
        agent_choice=options.chosen_word("strict" if given["strict_agents"] else None),
        architecture=given["arch"],
        endpoint=given["endpoint"],
        replica_placement=options.chosen_word(given["replicas"]),
        preemptible=given["preemptible"],
        hold=given["hold"],
        authorized_keys=_lines(given["authorized_keys"]) if given["authorized_keys"] is not None else (),
        max_file_bytes=given["max_file_size"] or 0,
        umask=given["umask"],
        template=template,
        template_version=version,
    )
    if given["time_limit"] is not None:
        spec.time_limit.FromNanoseconds(round(given["time_limit"] * 1e9))
    _add_batch_options(spec, given)
    if given["priority"] is not None:
        spec.priority = given["priority"]
    if given["grace"] is not None:
        spec.termination_grace.FromNanoseconds(round(given["grace"] * 1e9))
    spec.stop_signal = given["stop_signal"]
    spec.description = given["description"]
    if given["time_warning"] is not None:
        spec.time_warning.CopyFrom(given["time_warning"])
    options.override(spec, given["assignments"], given["unset"])
    return spec


def _lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]


def _add_batch_options(spec: session_pb2.SessionSpec, given: dict[str, Any]) -> None:
    spec.depends_on.extend(given["depends_on"])
    spec.runs_after.extend(given["after"])
    spec.runs_after_failure.extend(given["after_failure"])
    spec.runs_after_label = given["after_label"]
    if given["earliest_start_time"] is not None:
        spec.earliest_start_time.FromDatetime(given["earliest_start_time"])
    if given["bootstrap"] is not None:
        spec.bootstrap_script = given["bootstrap"]
    if given["retry"] is None:
        if given["retry_on_failure"] or given["retry_backoff"] is not None:
            raise UsageError("--retry-on-failure and --retry-backoff need --retry")
        return
    spec.retry.max_attempts, spec.retry.on_failure = given["retry"], given["retry_on_failure"]
    if given["retry_backoff"] is not None:
        spec.retry.backoff.FromNanoseconds(round(given["retry_backoff"] * 1e9))
