"""Commands of a manager's machine, in processes of their own."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_REFUSED = """
import json, sys
from click.testing import CliRunner
from retinue.manager.main import main
for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(main, arguments)
    assert isinstance(result.exception, SystemExit), (arguments, result.exception, result.output)
    print(json.dumps([result.exit_code, result.output]))
"""


async def _run(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", *arguments), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    return process.returncode or 0, output.decode(), errors.decode()


async def command(*arguments: str) -> tuple[int, str, str]:
    """Runs one; returns its exit code, its output and its errors."""
    return await _run("-m", "retinue.manager.main", *arguments)


async def refusals(*commands: Sequence[str]) -> list[tuple[int, str]]:
    """Exit code and output of each of several that are all refused: a process is started once for all of them."""
    code, output, errors = await _run("-c", _REFUSED, json.dumps(commands))
    assert code == 0, errors
    return [(number, said) for number, said in map(json.loads, output.splitlines())]
