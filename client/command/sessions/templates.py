"""`retinue template`: stored partial requests, which sessions are made from."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click
import yaml

from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.connection import Connection, asynchronous, pass_connection
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.text import or_dash, since
from retinue.client.command.shell.text_files import read_file
from retinue.client.command.show.output import (
    Column,
    list_output_option,
    output_option,
    plain,
    print_list,
    print_message,
    print_one,
)
from retinue.client.errors import NotFound, UsageError
from retinue.client.manifest import read_specs, read_templates
from retinue.manager.v1 import session_pb2
from retinue.manager.v1 import template_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from retinue.client.aio import Client

_file_option = click.option(
    "-f", "--file", "file", required=True, metavar="FILE", help="YAML or JSON; - is standard input."
)
_project_option = click.option("--project", default="", help="Project of the template.")
_check_option = click.option("--validate-only", "--dry-run", is_flag=True, help="Check the request; create nothing.")


@click.group("template")
def template_command() -> None:
    """List, show, create and change templates of sessions.

    A template is any part of a request for a session, kept in versions. `retinue run --template NAME` starts a session
    from it; other options override it field by field.

    \b
      name: training
      description: A server and its workers
      spec:
        type: interactive
        kernel: {slots: {cpu: 1, mem: 2g}}
        roles:
          - {role: server, kernel: {command: [python3, server.py]}}
          - {role: worker, count: 2, kernel: {command: [python3, worker.py], slots: {cpu: 4}}}
    """


def _columns(now: float) -> Sequence[Column[pb.Template]]:
    return (
        Column("NAME", lambda template: safe(template.name)),
        Column("PROJECT", lambda template: or_dash(template.project)),
        Column("VERSION", lambda template: str(template.version)),
        Column("DESCRIPTION", lambda template: or_dash(template.description)),
        Column("BY", lambda template: or_dash(template.author), wide=True),
        Column("ID", lambda template: safe(template.id), wide=True),
        Column("CHANGED", lambda template: since(template, "update_time", now)),
    )


def _print(output: str, template: pb.Template) -> None:
    facts = [(column.title.lower(), column.value(template)) for column in _columns(time.time())]
    print_one(output, template, facts, template.name)
    if output in {"table", "wide"}:
        click.echo()
        click.echo(safe_yaml(template.spec), nl=False)


def safe_yaml(message: Message) -> str:
    """Returns a message as YAML, with what a terminal would obey written out."""
    return yaml.safe_dump(plain(message), sort_keys=False)


@template_command.command("ls")
@_project_option
@click.option("--versions-of", default="", metavar="NAME", help="All versions of one template.")
@list_output_option
@pass_connection
@asynchronous
async def list_templates(connection: Connection, project: str, versions_of: str, output: str) -> None:
    """List templates by name."""
    async with connection.client() as client:
        found = client.templates.list(project=project, versions_of=versions_of, full=output in {"json", "yaml"})
        templates = [item async for item in found]
    message = pb.ListTemplatesResponse(templates=templates)
    print_list(output, message, templates, _columns(time.time()), lambda template: template.name)


@template_command.command("get")
@_project_option
@output_option
@click.argument("template", shell_complete=completed_names.templates, metavar="NAME[@VERSION]")
@pass_connection
@asynchronous
async def get_template(connection: Connection, template: str, project: str, output: str) -> None:
    """Show one template; `-o yaml` is what apply reads."""
    name, version = options.template_version(template)
    async with connection.client() as client:
        _print(output, await client.templates.get(name, project=project, version=version))


@template_command.command("create")
@_file_option
@_check_option
@output_option
@pass_connection
@asynchronous
async def create_templates(connection: Connection, file: str, validate_only: bool, output: str) -> None:
    """Create the templates in a file."""
    source, text = read_file(file)
    async with connection.client() as client:
        for template, _ in read_templates(text, source):
            _print(output, await client.templates.create(template, validate_only=validate_only))


@template_command.command("apply")
@_file_option
@_check_option
@output_option
@pass_connection
@asynchronous
async def apply_templates(connection: Connection, file: str, validate_only: bool, output: str) -> None:
    """Create the templates in a file, or new versions of those that are there already;
    without a difference, nothing.
    """
    source, text = read_file(file)
    async with connection.client() as client:
        for template, _ in read_templates(text, source):
            _print(output, await _apply(client, template, validate_only=validate_only))


async def _apply(client: Client, template: pb.Template, *, validate_only: bool) -> pb.Template:
    found = await _existing(client, template)
    if found is None:
        return await client.templates.create(template, validate_only=validate_only)
    changed = pb.Template(id=found.id, description=template.description, spec=template.spec)
    return await client.templates.update(changed, mask=("description", "spec"), validate_only=validate_only)


async def _existing(client: Client, template: pb.Template) -> pb.Template | None:
    """Returns the template of that name in the project that is meant, or of all projects if that is meant."""
    if template.for_all_projects:
        # By its name alone, one of a project would come before it.
        everything = [item async for item in client.templates.list()]
        return next((item for item in everything if item.for_all_projects and item.name == template.name), None)
    try:
        found = await client.templates.get(template.name, project=template.project)
    except NotFound:
        return None
    return None if found.for_all_projects else found


@template_command.command("edit")
@_project_option
@output_option
@click.argument("template", shell_complete=completed_names.templates, metavar="NAME")
@pass_connection
@asynchronous
async def edit_template(connection: Connection, template: str, project: str, output: str) -> None:
    """Open a template in an editor ($EDITOR) and make a new version of it."""
    async with connection.client() as client:
        found = await client.templates.get(template, project=project)
        shown = pb.Template(name=found.name, description=found.description, spec=found.spec)
        text = click.edit(safe_yaml(shown), extension=".yaml")
        if text is None:
            raise UsageError("nothing was changed")
        edited = read_templates(text, "edited text")
        if len(edited) != 1:
            raise UsageError("there must be one template in the text")
        changed = pb.Template(
            id=found.id, etag=found.etag, description=edited[0][0].description, spec=edited[0][0].spec
        )
        _print(output, await client.templates.update(changed, mask=("description", "spec")))


@template_command.command("render")
@_project_option
@options.set_option
@options.unset_option
@click.option("-f", "--file", "file", metavar="FILE", help="Overrides, as the spec of a session in YAML or JSON.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@click.argument("template", shell_complete=completed_names.templates, metavar="NAME[@VERSION]")
@pass_connection
@asynchronous
async def render_template(
    connection: Connection, /, template: str, file: str | None, output: str, **given: Any
) -> None:
    """Show what a session would be asked for with, before defaults are filled in."""
    name, version = options.template_version(template)
    spec = session_pb2.SessionSpec()
    if file is not None:
        source, text = read_file(file)
        found = read_specs(text, source)
        if len(found) != 1:
            raise UsageError(f"{source}: there must be one session in it")
        spec.CopyFrom(found[0][0])
    spec.template.name, spec.template.version = name, version
    spec.template.project = given["project"] or spec.template.project
    options.override(spec, given["assignments"], given["unset"])
    async with connection.client() as client:
        print_message(output, await client.templates.render(spec))


@template_command.command("rm")
@_project_option
@click.argument("templates", shell_complete=completed_names.templates, nargs=-1, required=True, metavar="NAME…")
@pass_connection
@asynchronous
async def remove_templates(connection: Connection, templates: tuple[str, ...], project: str) -> None:
    """Remove templates; sessions that were made from them stay as they are."""
    async with connection.client() as client:
        for template in templates:
            await client.templates.delete(template, project=project)
            click.echo(template)
            sys.stdout.flush()
