"""What the daemons say of themselves, and what they load for it."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import retinue.agent.main
import retinue.manager.main
import retinue.router.main
from tests.support.eventually import NEVER

PROGRAMS = {
    "retinue-manager": retinue.manager.main.main,
    "retinue-agent": retinue.agent.main.main,
    "retinue-router": retinue.router.main.main,
}
# What only work needs: the database, messages, numbers, HTTP.
HEAVY = (
    "aiohttp",
    "alembic",
    "cryptography",
    "google.protobuf",
    "grpc",
    "numpy",
    "psycopg",
    "pyroute2",
    "sqlalchemy",
    "xds",
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_page_of_help_is_whole_at_80_columns(name: str) -> None:
    pages = {"": CliRunner().invoke(PROGRAMS[name], ["-h"], terminal_width=80, prog_name=name).output}
    for command, found in PROGRAMS[name].commands.items():
        said = CliRunner().invoke(PROGRAMS[name], [command, "-h"], terminal_width=80, prog_name=name)
        assert said.exit_code == 0
        assert said.output.startswith(f"Usage: {name} {command}")
        if isinstance(found, click.Group):
            pages[command] = said.output
    assert "..." not in "".join(pages.values()).replace("[ARGS]...", "")
    assert max(map(len, "\n".join(pages.values()).splitlines())) <= 80


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_says_its_version(name: str) -> None:
    assert CliRunner().invoke(PROGRAMS[name], ["--version"], prog_name=name).output.startswith(f"{name} 0.")


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("manager", ["-h"], 0),
        ("manager", ["--version"], 0),
        ("manager", ["create-admin", "NAME"], 2),
        ("manager", ["admin", "-h"], 0),
        ("manager", ["serve", "--heartbeat", "x"], 2),
        ("manager", ["health", "--data-dir", "/nonexistent"], 1),
        ("agent", ["run", "-h"], 0),
        ("router", ["run", "-h"], 0),
    ],
)
def test_help_and_refusals_load_nothing_that_only_work_needs(name: str, arguments: list[str], code: int) -> None:
    program = f"""
import sys
from retinue.{name}.main import main
try:
    main({arguments!r})
except SystemExit as ended:
    loaded = [name for name in {HEAVY!r} if name in sys.modules]
    print("ended", ended.code, loaded, file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=NEVER)
    assert ended.stderr.splitlines()[-1] == f"ended {code} []"
