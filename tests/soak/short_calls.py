"""Short commands and short connections beside a busy machine: each ends.

`python -m tests.soak.short_calls --commands 2000 --cycles 20000`; ends with 0 and `short calls: ok`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from retinue.devtools.cluster import Cluster, ClusterOptions

BOUND = 120.0
"""Seconds that a command, and a hundred cycles, may take on a machine that has other work: far more than they do."""
_COMMANDS = (["ls", "-a", "--limit", "4"], ["agents", "ls"], ["ls", "-o", "json"], ["quotas", "ls"])
_PARALLEL = 3
PROGRAM = Path(sys.executable).with_name("retinue")
# One process is what a program that embeds the client is; it says where it stands when it is stopped.
_CYCLES = """\
import asyncio, faulthandler, sys
from retinue.client.aio import Client
endpoint, token, ca, cycles, bound = *sys.argv[1:4], int(sys.argv[4]), float(sys.argv[5])

async def cycle():
    async with Client.connect(endpoint, token=token, ca=ca) as client:
        async for _ in client.sessions.list(limit=1):
            pass

async def main():
    for number in range(cycles // 2):
        if number % 50 == 0:
            faulthandler.dump_traceback_later(bound, exit=True)
        await asyncio.gather(cycle(), cycle())

asyncio.run(main())
"""


class NotEnded(Exception):  # noqa: N818  # a finding
    """A program that did not end within the bound, with its last words."""


async def _run(program: list[str], environment: dict[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *program, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), BOUND)
    except TimeoutError:
        # Python says where each of its threads is.
        process.send_signal(signal.SIGABRT)
        output, _ = await process.communicate()
        raise NotEnded(f"{program}: not ended after {BOUND:g} s\n{output.decode(errors='replace')}") from None
    if process.returncode:
        raise NotEnded(f"{program}: ended with {process.returncode}\n{output.decode(errors='replace')}")


async def _commands(count: int, environment: dict[str, str]) -> None:
    left = iter(range(count))

    async def one_after_another() -> None:
        for number in left:
            await _run([str(PROGRAM), *_COMMANDS[number % len(_COMMANDS)]], environment)
            if number % 100 == 0:
                sys.stdout.write(f"{time.strftime('%H:%M:%S')} {number} commands\n")
                sys.stdout.flush()

    async with asyncio.TaskGroup() as group:
        for _ in range(_PARALLEL):
            group.create_task(one_after_another())


async def _cycles(count: int, cluster: Cluster) -> None:
    settings = cluster.settings
    arguments = [settings.endpoint, settings.token or "", settings.ca or "", str(count), str(BOUND)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CYCLES, *arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, errors = await process.communicate()
    if process.returncode:
        raise NotEnded(f"cycles: ended with {process.returncode}\n{errors.decode(errors='replace')}")


async def short_calls(commands: int, cycles: int) -> list[str]:
    """Returns what did not end, or ended otherwise than with 0."""
    async with Cluster(options=ClusterOptions(agents=0, prefix="rt-short-")) as cluster:
        settings = cluster.settings
        environment = {
            **os.environ,
            "RETINUE_ENDPOINT": settings.endpoint,
            "RETINUE_TOKEN": settings.token or "",
            "RETINUE_CA": settings.ca or "",
            "PYTHONFAULTHANDLER": "1",
        }
        busy = await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
        found: list[str] = []
        try:
            await _cycles(cycles, cluster)
            await _commands(commands, environment)
        except* NotEnded as group:
            found += map(str, group.exceptions)
        finally:
            busy.kill()
            await busy.wait()
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=2_000)
    parser.add_argument("--cycles", type=int, default=20_000)
    given = parser.parse_args()
    found = asyncio.run(short_calls(given.commands, given.cycles))
    sys.stdout.write("\n".join([*found, "short calls: ok" if not found else f"short calls: {len(found)} found"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
