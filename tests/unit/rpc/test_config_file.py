"""Files of options: which names and values they may hold, what wins over them, and what is printed of them."""

from __future__ import annotations

import contextlib
import io
import itertools
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner, Result

from retinue.agent.main import main as agent
from retinue.manager.main import main as manager
from retinue.router.main import main as router
from retinue.rpc import config_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODE = 'id = "n1"\nmanager = "m1:7440"\n'


def checked(program: click.Command, path: Path, content: str, *arguments: str, **variables: str) -> Result:
    """What `config check` says of a file."""
    path.write_text(content)
    return CliRunner().invoke(program, ["config", "check", "--config", str(path), *arguments], env=variables)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "options.toml"
    made.touch(0o640)
    return made


def test_each_source_wins_over_the_next(path: Path) -> None:
    content = 'listen = "127.0.0.1:1"\nheartbeat = 3\nhttp-direct = false\nadvertise = ["a.test", "b.test"]\n'
    said = checked(manager, path, content, "--listen", "127.0.0.1:2", RETINUE_MANAGER_HEARTBEAT="4")
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines() == [
        'listen = "127.0.0.1:2"  # argument',
        'advertise = "a.test,b.test"  # file',
        "heartbeat = 4.0  # variable",
        "http-direct = false  # file",
        "# the configuration is good",
    ]


def test_the_file_may_be_named_by_a_variable(path: Path) -> None:
    path.write_text("heartbeat = 3\n")
    said = CliRunner().invoke(manager, ["config", "check"], env={"RETINUE_MANAGER_CONFIG": str(path)})
    assert "heartbeat = 3.0  # file" in said.stdout


@pytest.mark.parametrize("program", [agent, router], ids=["agent", "router"])
def test_programs_of_nodes_read_files(program: click.Command, path: Path) -> None:
    said = checked(program, path, NODE + 'metrics = "127.0.0.1:9443"\n')
    assert said.exit_code == 0, said.output
    assert 'id = "n1"  # file' in said.stdout
    assert checked(program, path, "").exit_code == 2


def test_lists_and_amounts_of_an_agent(path: Path) -> None:
    said = checked(agent, path, NODE + 'hide = ["/a", "/b"]\nreserve = "cpu=1"\n')
    assert {'hide = ["/a", "/b"]  # file', 'reserve = "cpu=1"  # file'} <= set(said.stdout.splitlines())


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("lisen = 'a:1'", "unknown key lisen: did you mean listen"),
        ("keep_sessions = 3", "unknown key keep_sessions: did you mean keep-sessions"),
        ("zzz = 1", "unknown key zzz"),
        ("null-kernels = true", "unknown key null-kernels"),
        ("listen = 1", "listen must be text in quotes, or a list of texts"),
        ("listen = [1]", "listen must be text in quotes"),
        ("keep-sessions = '3'", "keep-sessions must be a number"),
        ("keep-sessions = true", "keep-sessions must be a number"),
        ("keep-sessions = -1", "--keep-sessions"),
        ("http-direct = 'no'", "http-direct must be true or false"),
        ("heartbeat = 100", "must be positive and grow"),
        ("ca-seal-key-file = '/nowhere/key'", "ca-seal-key-file: cannot read /nowhere/key"),
        ("http-key = '/nowhere'", "go together"),
        ("listen = ", "Invalid value"),
        ("listen = '\ufffd", "Expected"),
    ],
)
def test_what_a_daemon_would_not_start_with(path: Path, line: str, error: str) -> None:
    said = checked(manager, path, line)
    assert said.exit_code in {1, 2}
    assert error in said.output
    assert "Traceback" not in said.output


def test_everything_that_is_wrong_is_said_at_once(path: Path) -> None:
    said = checked(manager, path, "a1 = 1\nlisten = 1\nkeep-sessions = 'x'\n")
    assert len([line for line in said.stderr.splitlines() if str(path) in line]) == 3


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    said = CliRunner().invoke(manager, ["config", "check", "--config", str(tmp_path / "none.toml")])
    assert (said.exit_code, "No such file" in said.output) == (1, True)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    said = CliRunner().invoke(manager, ["config", "check", "--config", str(tmp_path / "binary.toml")])
    assert (said.exit_code, "binary.toml" in said.output) == (1, True)


@pytest.mark.attack("secrets-in-logs")
def test_secrets_are_for_a_few_and_are_not_printed(path: Path) -> None:
    content = 'database-url = "postgresql://retinue:hunter2@db.test/retinue"\n'
    said = checked(manager, path, content)
    assert said.exit_code == 0
    assert "postgresql://retinue:********@db.test/retinue" in said.stdout
    path.chmod(0o644)
    said = checked(manager, path, content)
    assert said.exit_code == 1
    assert f"database-url holds a secret, and every user can read the file: chmod 640 {path}" in said.output
    assert "hunter2" not in said.output
    named = checked(manager, path, 'database-url = "postgresql://retinue@db.test/retinue?passfile=/etc/pgpass"\n')
    assert named.exit_code == 0
    assert checked(agent, path, NODE + 'join-token = "rtj_secret"\n').exit_code == 1
    assert checked(agent, path, NODE + 'join-token = "/run/token"\n').exit_code == 0
    path.chmod(0o640)
    assert "rtj_secret" not in checked(agent, path, NODE + 'join-token = "rtj_secret"\n').output


def test_other_commands_take_what_is_theirs(path: Path, tmp_path: Path) -> None:
    path.write_text(f'data-dir = "{tmp_path}"\nadvertise = "a.test"\n')
    said = CliRunner().invoke(manager, ["create-admin", "ada", "--config", str(path)])
    assert said.exit_code == 1
    assert f"{tmp_path} is not the data directory of a manager" in said.output


# What options take whose type does not say it.
TEXTS: dict[str, str | list[str]] = {
    "advertise": "a.test,192.0.2.1",
    "agent-listen": "127.0.0.1:2",
    "ca-fingerprint": "ab" * 32,
    "database-url": "host=a,b dbname=x options='-c search_path=y'",
    "direct-listen": "127.0.0.1:3",
    "endpoint-domain": "e.test",
    "hide": ["/a,b", '/c "d"'],
    "host-names": "a.test",
    "http-domain": "h.test:443",
    "http-listen": "127.0.0.1:4",
    "id": "n1",
    "join-token": "/run/token",
    "listen": "127.0.0.1:1,127.0.0.2:1",
    "manager": "m1:7440,m2:7440",
    "metrics": "127.0.0.1:9",
    "prometheus-url": "http://p.test:9090",
    "reserve": "cpu=1,mem=1g",
    "session-subnets": "10.64.0.0/16",
    "slots": "cpu=4,mem=8g",
    "uid-range": "100000-165535",
    "webhook-allow": "10.0.0.0/8,192.0.2.0/24",
    "webhook-deny": "10.1.0.0/16",
}


def check_command(program: click.Command) -> click.Command:
    assert isinstance(program, click.Group)
    group = program.commands["config"]
    assert isinstance(group, click.Group)
    return group.commands["check"]


def options_of(program: click.Command) -> Iterator[click.Option]:
    for parameter in check_command(program).params:
        if isinstance(parameter, click.Option) and parameter.expose_value:
            yield parameter


def read(program: click.Command, *arguments: str) -> tuple[dict[str, Any], list[str]]:
    """What a program is given, and what it prints of it, before it looks at what belongs together."""
    printed = io.StringIO()
    with check_command(program).make_context("check", list(arguments)) as context, contextlib.redirect_stdout(printed):
        config_file.check(context)
        return dict(context.params), printed.getvalue().splitlines()


CASES = [
    pytest.param(program, option, id=f"{name}-{option.name}")
    for name, program in {"manager": manager, "agent": agent, "router": router}.items()
    for option in options_of(program)
]


@pytest.mark.parametrize(("program", "option"), CASES)
def test_what_is_printed_is_read_as_the_same(
    program: click.Command, option: click.Option, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    name = max(option.opts, key=len)
    key = name.lstrip("-")
    given: list[str]
    match option.type:
        case _ if option.is_flag:
            given = [name]
        case click.IntRange(max=int() as most):
            given = [name, str(most)]
        case click.types.IntParamType():
            given = [name, "100000"]
        case click.types.FloatParamType():
            given = [name, "12.5"]
        case click.Choice(choices=choices):
            given = [name, str(list(choices)[-1])]
        case click.Path() if key not in TEXTS:
            given = [name, str(file if option.type.file_okay else tmp_path)]
        case _:
            texts = TEXTS.get(key, f"{key}.test")
            given = list(
                itertools.chain.from_iterable((name, text) for text in ([texts] if isinstance(texts, str) else texts))
            )
    needed = ["--id", "x", "--manager", "m:1"] if program is not manager and key not in {"id", "manager"} else []
    needed += {"id": ["--manager", "m:1"], "manager": ["--id", "x"]}.get(key, []) if program is not manager else []
    before, first = read(program, *needed, *given)
    (line,) = [line for line in first if line.startswith(f"{key} = ")]
    path.write_text(line)
    after, second = read(program, "--config", str(path), *needed)
    assert after == before
    assert line.replace("# argument", "# file") in second
