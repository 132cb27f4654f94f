"""The pages of the command line and of the daemons, from the commands themselves."""

from __future__ import annotations

import inspect
import re

import click

import retinue.agent.main
import retinue.manager.main
import retinue.router.main
from docs.generator.markdown import line, table
from retinue.client.command.application import cli
from retinue.client.command.shell.exit_codes import ExitCode

_CODE = re.compile(r"^\b$", re.MULTILINE)


def page() -> str:
    """Returns the whole page."""
    codes = [(str(int(code)), code.name.lower().replace("_", " ")) for code in ExitCode]
    return (
        f"# The command line\n\n{_help(cli)}\n\n{_options(cli)}\n## Exit codes\n\n{table(['code', 'meaning'], codes)}\n\n"
        "`run`, `watch`, `wait` and `exec` end with the session's own code. `RETINUE_EXIT_ERROR=N` puts N in place of 1 and 3 to 7.\n\n"
        + "\n".join(_commands(_context(cli, "retinue"), cli))
    ).rstrip() + "\n"


def daemons() -> str:
    """Returns the whole page of the programs of servers."""
    programs = {
        "retinue-manager": retinue.manager.main.main,
        "retinue-agent": retinue.agent.main.main,
        "retinue-router": retinue.router.main.main,
    }
    made = [
        "# The daemons\n\nEvery option can be a key of a [configuration file](../install.md#configuration-files), and a variable: the program's "
        "name and the option's in capitals, such as `RETINUE_MANAGER_LOG_LEVEL`.\n"
    ]
    for name, program in programs.items():
        made += _commands(_context(program, name), program)
    return "\n".join(made).rstrip() + "\n"


def _context(program: click.Group, name: str) -> click.Context:
    """Returns a context as the program makes it: commands keep the option of help of the first one that asks."""
    names = program.context_settings.get("help_option_names")
    return click.Context(program, info_name=name, help_option_names=names)


def _commands(context: click.Context, group: click.Group) -> list[str]:
    made = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None  # noqa: S101  # it was listed
        if command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        usage = " ".join([inner.command_path, *command.collect_usage_pieces(inner)])
        made.append(
            f"## {inner.command_path}\n\n```\n{usage}\n```\n\n{_help(command)}\n\n{_options(command)}".rstrip() + "\n"
        )
        if isinstance(command, click.Group):
            made += _commands(inner, command)
    return made


def _help(command: click.Command) -> str:
    parts = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "").replace("\f", "")):
        if part.startswith("\b\n"):
            parts.append(f"```\n{inspect.cleandoc(part[2:])}\n```")
        else:
            parts.append(line(part))
    return "\n\n".join(parts)


def _options(command: click.Command) -> str:
    rows = []
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
            rows.append((names, _value(option), line(option.help or "") + _default(option)))
    return table(["option", "value", "meaning"], rows) if rows else ""


def _value(option: click.Option) -> str:
    if option.is_flag or option.count:
        return ""
    if option.metavar:
        shown = option.metavar
    elif isinstance(option.type, click.Choice):
        shown = "|".join(str(one) for one in option.type.choices)
    else:
        own = option.type.get_metavar(option, click.Context(click.Command("")))
        shown = own.strip("[]") if own else option.type.name.upper()
    return f"`{shown}`" + (" …" if option.multiple else "")


def _default(option: click.Option) -> str:
    if not option.show_default:
        return ""
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    return f" Default `{shown}`."
