"""Lines of a log: what they hold, and what is left out."""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from retinue.agent.main import main as agent
from retinue.manager.main import main as manager
from retinue.rpc.logs import JsonFormatter, TextFormatter, is_not_lost_caller, options
from tests.support.eventually import NEVER


def record_of(error: Exception | None, message: str = "raised") -> logging.LogRecord:
    raised = None if error is None else (type(error), error, None)
    record = logging.LogRecord("some.logger", logging.WARNING, "", 0, "%s", (message,), raised)
    record.created = 1_000_000_000.25
    return record


def test_the_traceback_of_a_lost_caller_is_left_out() -> None:
    # No types are published for it.
    failed = importlib.import_module("grpc._cython.cygrpc").ExecuteBatchError("failed")
    assert not is_not_lost_caller(record_of(failed))
    assert is_not_lost_caller(record_of(ValueError("other")))
    assert is_not_lost_caller(record_of(None))


@pytest.mark.attack("log-injection")
def test_text() -> None:
    text = TextFormatter().format(record_of(None, "three\nlines\x1b[2J\x9b é"))
    assert text == r"2001-09-09 01:46:40.250 warning some.logger: three\nlines\x1b[2J\x9b é"
    failed = TextFormatter().format(record_of(ValueError("a\n\x1b[2Jb")))
    assert failed.splitlines()[1:] == ["    ValueError: a", r"    \x1b[2Jb"]


@pytest.mark.attack("log-injection")
def test_json() -> None:
    text = JsonFormatter().format(record_of(ValueError("a\nb"), "two\nlines\x1b[2J\x9b\udcff"))
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text) == {
        "time": "2001-09-09T01:46:40.250+00:00",
        "level": "warning",
        "logger": "some.logger",
        "message": "two\nlines\x1b[2J\x9b\udcff",
        "exception": "ValueError: a\nb",
    }


@pytest.mark.parametrize("level", ["debug", "DEBUG"])
def test_options(level: str) -> None:
    @click.command()
    @options
    def command(log_format: str, log_level: str) -> None:
        click.echo(f"{log_format} {log_level}")

    assert CliRunner().invoke(command, []).output == "text info\n"
    assert CliRunner().invoke(command, ["--log-format", "json", "--log-level", level]).output == "json debug\n"


def test_both_daemons_take_the_same_options_and_variables() -> None:
    shared = {"--data-dir", "--listen", "--advertise", "--log-format", "--log-level"}
    for command, prefix in ((manager.commands["serve"], "RETINUE_MANAGER"), (agent.commands["run"], "RETINUE_AGENT")):
        found = {name: option for option in command.params for name in option.opts}
        assert shared <= set(found)
        assert command.context_settings["auto_envvar_prefix"] == prefix
        for option in command.params:
            given = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
            assert not given or given[0].startswith(f"{prefix}_")


_PROGRAM = """
import asyncio, logging, sys, threading, warnings
from retinue.rpc import logs

logs.configure_logging("json", "info")
warnings.warn("deprecated\\nin two lines", DeprecationWarning, stacklevel=1)
logging.getLogger("some").info("too few %s %s", 1)
logging.getLogger("some").warning("%d", "no number")

class Unraisable:
    def __del__(self):
        raise ValueError("in a finalizer")

class Odd(Exception):
    def __str__(self):
        raise ValueError("no words")

Unraisable()

def fail():
    raise ValueError("in a thread")

thread = threading.Thread(target=fail, name="worker")
thread.start()
thread.join()

async def forget():
    asyncio.get_running_loop().create_task(lost())
    await asyncio.sleep(0.01)

async def lost():
    raise ValueError("never retrieved")

asyncio.run(forget())
logging.getLogger("some").error("odd: %s", Odd())
raise RuntimeError("of the whole program")
"""


def test_whatever_a_program_writes_is_json() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", _PROGRAM], capture_output=True, text=True, check=False, timeout=NEVER
    )
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    said = [f"{line['level']} {line['message']} {line.get('exception', '')}" for line in lines]
    assert ended.returncode == 1
    for expected in (
        "deprecated",
        "too few",
        "no number",
        "in a finalizer",
        "thread worker ended by an error",
        "never retrieved",
        "odd:",
        "of the whole program",
    ):
        assert any(expected in text for text in said), (expected, said)
    assert lines[-1]["level"] == "critical"
