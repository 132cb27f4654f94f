"""Part 1: three kernels on two nodes count the words of real texts together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from demo import containers
from demo.stage import DemoError
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from demo.stage import Stage
    from retinue.client.aio import Client

TEXTS = Path("/usr/share/common-licenses")
SIZE = 3
_PROGRAM = Path(__file__).with_name("counting.py")


def count_directly(directory: Path) -> int:
    """Returns the number of words, counted in this process, for comparison."""
    texts = (path for path in directory.iterdir() if not path.is_symlink())
    return sum(len(path.read_text(encoding="utf-8", errors="replace").split()) for path in texts)


async def show(stage: Stage, client: Client, image: str) -> None:
    """Runs the count and checks its total; in containers of `image`, or natively if it is empty.
    Raises DemoError, RetinueError.
    """
    stage.heading(f"1. main1, sub1 and sub2 count the words under {TEXTS}, over two nodes")
    command = ["/usr/bin/python3", "-c", _PROGRAM.read_text(), str(TEXTS)]
    if image:
        command = ["/bin/sh", "-c", containers.PROGRAM, "count", str(TEXTS)]
    session = await client.sessions.create(
        type="batch",
        name="word-count",
        image=image,
        cluster_size=SIZE,
        cluster_mode="multi-node",
        # Two such kernels fill most of a node: the third has to go to the other one.
        slots={"cpu": "4", "mem": "512m"},
        command=command,
        sub_command=command,
    )
    await stage.follow(session)
    output = b"".join([chunk.data async for chunk in session.logs()]).decode()
    for line in output.splitlines():
        stage.say(f"main1 | {line}")
    agents = {kernel.hostname: kernel.agent for kernel in session.kernels}
    stage.check(len(set(agents.values())) > 1, f"the kernels were spread: {_text(agents)}")
    stage.check(session.view.network == session_pb2.NETWORK_KIND_VXLAN, "their private network was a VXLAN")
    stage.check(
        (session.state, session.result, session.exit_code) == ("TERMINATED", "SUCCESS", 0),
        f"the session ended {session.state} {session.result} with exit code {session.exit_code}",
    )
    total = re.search(r"^total (\d+)$", output, re.MULTILINE)
    if total is None:
        raise DemoError(f"main1 printed no total but {output!r}")
    direct = count_directly(TEXTS)
    stage.check(int(total[1]) == direct > 0, f"the total is {total[1]}; counted directly it is {direct}")


def _text(agents: dict[str, str]) -> str:
    return ", ".join(f"{hostname} on {agent}" for hostname, agent in agents.items())
