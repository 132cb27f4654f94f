"""Replicas whose streams end by a file: whatever is done to one is done in the middle of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.integration.sessions.replicas import PROGRAM, run

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.manager.v1 import endpoint_pb2 as epb

_COUNTED = "for number in range(pieces):"
_HELD = 'for number, _ in enumerate(iter(lambda: os.path.exists("/home/work/end"), True)):'
assert _COUNTED in PROGRAM
_PROGRAM = PROGRAM.replace(_COUNTED, f'open("/home/work/begun", "a").write(".")\n        {_HELD}')
PATH = "/stream?0"


def held_kernel(name: str, **fields: Any) -> dict[str, Any]:
    """Returns the kernel of a manifest whose replicas hold their streams, which have `PATH`."""
    return {"command": ["python3", "-c", _PROGRAM, name], **fields}


async def count_begun(client: Client, replica: epb.Replica) -> int:
    """Returns how many streams a replica has begun."""
    return len(await run(client, replica.session_id, "cat /home/work/begun 2>/dev/null || true"))


async def end_streams(client: Client, replica: epb.Replica) -> None:
    """Ends the streams of a replica, and those that are still to come at once."""
    assert await run(client, replica.session_id, "touch /home/work/end") == ""
