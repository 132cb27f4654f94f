"""How the program ends whose terminal was closed while it had something to say."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, contextlib, os, sys
from retinue.client.command import application
def run(arguments):
    print("ready", flush=True)
    with contextlib.suppress(OSError):
        os.read(0, 1)
    {end}
    return 130
application.run = run
application.main()
"""


WRITES = ("sys.stdout.write('the end')", "sys.stderr.write('the end')")


@pytest.mark.parametrize("end", [*WRITES, *(f"atexit.register(lambda: {write})" for write in WRITES)])
def test_a_closed_terminal_does_not_change_the_exit_code(end: str) -> None:
    ours, its = pty.openpty()
    # What is written right away leaves nothing for the end.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(end=end)],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        env=environment,
    )
    os.close(its)
    assert os.read(ours, 5) == b"ready"
    os.close(ours)
    assert program.wait() == 130
