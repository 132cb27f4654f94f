"""What the daemons say of themselves, and what they load for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

import retinue.agent.main
import retinue.manager.main
import retinue.router.main
from retinue.rpc.version import software_version
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

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
    assert CliRunner().invoke(PROGRAMS[name], ["--version"], prog_name=name).output == f"{name} {software_version()}\n"


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


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    ("arguments", "variable", "said"),
    [
        (["--log-format", "json", "--listen"], "", "requires an argument"),
        (["--log-format=json", "--nonsense"], "", "No such option"),
        (["--data-dir", "/dev/null/x", "--advertise"], "json", "requires an argument"),
        (["--log-format", "json", "--log-level", "loud"], "", "loud"),
        (["--log-format", "json", "--id", "-"], "", "a"),
        (["--config", "FILE"], "", "did you mean log-level"),
        (["--config", "FILE"], "json", "did you mean log-level"),
        (["--log-format", "json", "--config", "/nonexistent/file"], "", "cannot read /nonexistent/file"),
    ],
)
def test_wrong_settings_are_lines_of_a_log_for_machines(
    name: str, arguments: list[str], variable: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "file.toml"
    file.write_text('log-format = "json"\nlog-leve = "info"\n')
    command = "serve" if name == "retinue-manager" else "run"
    given = [str(file) if argument == "FILE" else argument for argument in arguments]
    environment = {f"{name.upper().replace('-', '_')}_LOG_FORMAT": variable} if variable else {}
    ended = subprocess.run(
        [sys.executable, "-m", f"{name.replace('-', '.')}.main", command, *given],
        capture_output=True,
        text=True,
        check=False,
        env={**{key: value for key, value in os.environ.items() if not key.startswith("RETINUE_")}, **environment},
        timeout=NEVER,
    )
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (ended.returncode, ended.stdout) == (1 if "--config" in arguments else 2, "")
    assert [(line["level"], said in line["message"]) for line in lines] == [("error", True)]


def test_without_the_format_wrong_settings_are_text() -> None:
    refused = CliRunner().invoke(PROGRAMS["retinue-manager"], ["serve", "--nonsense"])
    assert refused.exit_code == 2
    assert "No such option" in refused.output
    assert not refused.output.startswith("{")
