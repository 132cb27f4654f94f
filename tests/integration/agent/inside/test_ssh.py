"""`ssh` between the kernels of a session, as its user has it; on the node's own root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.agent.output import printed
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Nothing waits for anything here: all of it works as soon as the command runs.
SCRIPT = """
ssh sub1 hostname
ssh sub2 'echo $BACKENDAI_CLUSTER_HOST $BACKENDAI_CLUSTER_ROLE "$GREETING" $HOME; pwd; exit 7'; echo code $?
ssh sub1 ssh sub2 ssh main1 hostname
echo text | ssh sub1 'cat > copied' && ssh sub1 cat copied
head -c 300000 /dev/zero > zeros && scp -q zeros sub2: && ssh sub2 wc -c zeros
for number in $(seq 40); do ssh sub$((number % 2 + 1)) "echo $number" >>answers & done; wait
sort -n answers | uniq | wc -l
ssh -o BatchMode=yes -o ConnectionAttempts=1 127.0.0.1 true 2>/dev/null || echo no stranger
ssh sub1 'echo $SHELL ${BASH:+bash}'; echo $SHELL
echo 'shopt -q login_shell && echo is-login; exit' | ssh -tt sub1 2>&1 | tr -d '\\r' | grep -o -e 'work@sub1:~' -e '^is-login' | sort -u
ssh -tt sub1 tty </dev/null | tr -d '\\r'
"""
ANSWERS = [
    "sub1",
    "sub2 sub hello world /home/work",
    "/home/work",
    "code 7",
    "main1",
    "text",
    "300000 zeros",
    "40",
    "no stranger",
    # As the node's Debian has it.
    "/bin/bash bash",
    "/bin/bash",
    "is-login",
    "work@sub1:~",
]


async def test_ssh_works_at_once(client: Client) -> None:
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", SCRIPT],
        environment={"GREETING": "hello world"},
        cluster_size=3,
        cluster_mode="multi-node",
        # No node has room for all three.
        slots={"cpu": "2", "mem": "128m"},
    )
    await session.wait_ended(NEVER)
    lines = (await printed(client, session.id)).splitlines()
    assert lines[:-1] == ANSWERS, lines
    assert lines[-1].startswith("/dev/pts/")
    assert len({kernel.agent for kernel in session.kernels}) == 2
