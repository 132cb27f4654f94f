"""An endpoint on a cluster with a router: waking from zero, and revoked tokens. Run as root;
each line is `name value unit peer ratio`.

`endpoint-wake` is the time of a request that finds an endpoint asleep, from its sending to its answer. The peer is the
bare start of such a replica: a session with the same command, from its request until its port takes a connection.
`endpoint-wake-beyond` is the difference of both. `endpoint-token-revoked` is the time from the answer to a revocation
until a request with the token is refused, in turns with requests that pass.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import TYPE_CHECKING

from retinue.client.errors import CallError
from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.v1 import endpoint_pb2 as epb
from tests.integration.router.clients import request
from tests.integration.sessions.replicas import PORT, PROGRAM, Deployed, manifest
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client

WAKES, TOKENS = 7, 10
_POLL_SECONDS = 0.01


async def bare_start(client: Client) -> float:
    """Returns how long a session takes whose program listens at the port."""
    began = time.perf_counter()
    session = await client.sessions.create(
        type="interactive",
        command=["python3", "-c", PROGRAM, "bare"],
        slots={"cpu": "0.2", "mem": "64m"},
        termination_grace=0,
        ports=[("web", "http", PORT)],
    )
    try:
        await session.wait("RUNNING", timeout=60)
        while True:
            try:
                async with session.open_port("web"):
                    return time.perf_counter() - began
            except CallError:
                await asyncio.sleep(_POLL_SECONDS)
    finally:
        await session.terminate(force=True)
        await session.wait_ended(60)


async def wake(endpoint: Deployed) -> float:
    """Returns how long a request takes that finds the endpoint asleep."""
    await eventually(endpoint.get, lambda found: found.state == epb.ENDPOINT_STATE_ASLEEP, seconds=120)
    began = time.perf_counter()
    assert (await endpoint.ask()).status == 200
    return time.perf_counter() - began


async def revoked(endpoint: Deployed) -> float:
    """Returns how long a token passes after it was revoked."""
    created = await endpoint.client.endpoints.create_token(endpoint.name)
    bearer = f"Bearer {created.secret}"

    async def status() -> int:
        return (await request(endpoint.port, endpoint.host, authorization=bearer)).status

    assert await status() == 200
    await endpoint.client.endpoints.revoke_token(endpoint.name, created.token.id)
    began = time.perf_counter()
    while await status() != 403:
        pass
    return time.perf_counter() - began


async def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer of everything")
    wakes, tokens = (1, 2) if parser.parse_args().quick else (WAKES, TOKENS)
    options = ClusterOptions(agents=1, router=True)
    async with Cluster(options=options) as cluster, cluster.client() as client:
        awake = await Deployed.create(client, manifest("awake", "awake", scaling={"min": 1, "max": 1}))
        await awake.reach((1, "READY"))
        times = [1000 * await revoked(awake) for _ in range(tokens)]
        spread = f"min={min(times):.0f} max={max(times):.0f}"
        print(f"endpoint-token-revoked {statistics.median(times):.0f} ms - - {spread}", flush=True)
        await awake.delete()
        asleep = await Deployed.create(
            client, manifest("asleep", "asleep", scaling={"min": 0, "max": 1, "idleAfter": "10s"})
        )
        await asleep.reach((1, "READY"))
        both = [(await wake(asleep), await bare_start(client)) for _ in range(wakes)]
        woken, bare = (1000 * statistics.median(times) for times in zip(*both, strict=True))
        spread = f"min={1000 * min(both)[0]:.0f} max={1000 * max(both)[0]:.0f}"
        print(f"endpoint-wake {woken:.0f} ms session={bare:.0f} {woken / bare:.2f} {spread}", flush=True)
        print(f"endpoint-wake-beyond {woken - bare:.0f} ms - -", flush=True)
        await asleep.delete()


if __name__ == "__main__":
    asyncio.run(main())
