"""Options as fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass

import click
from click.testing import CliRunner

from retinue.rpc.bound_options import bound, declared, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    data_dir: str = setting(default="/srv", help="Where.")
    many: tuple[str, ...] = setting(multiple=True)
    identity: str = setting("--id", required=True)
    builds: bool = setting("--build/--no-build", default=True)
    shared: int = declared(click.option("--shared", default=0))


@click.command(context_settings={"auto_envvar_prefix": "TEST"})
@click.option("--own", default="")
@bound(_Options)
def _command(given: _Options, own: str) -> None:
    click.echo(f"{given} {own}")


def _run(*arguments: str, **variables: str) -> str:
    result = CliRunner().invoke(_command, arguments, env=variables)
    return result.output.strip()


def test_a_command_gets_one_value_beside_its_own_options() -> None:
    expected = _Options(data_dir="/srv", many=("a", "b"), identity="n", builds=False, shared=3)
    assert _run("--many", "a", "--id=n", "--many=b", "--no-build", "--shared=3", "--own=x") == f"{expected} x"
    assert _run("--id=n", TEST_DATA_DIR="/other").startswith("_Options(data_dir='/other', many=(),")


def test_help_has_fields_in_their_order_and_the_defaults_that_say_something() -> None:
    text = _run("--help")
    places = [text.index(flag) for flag in ("--own", "--data-dir", "--many", "--id", "--build", "--shared")]
    assert places == sorted(places)
    assert "[default: /srv]" in text
    assert text.count("[default:") == 2
    assert "Missing option '--id'" in _run()
