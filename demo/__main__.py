"""Runs the demonstration: a manager, its database and two agents on nodes of their own, then five parts."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace

from demo import cleaning, code, containers, fairness, placement, word_count
from demo.stage import DemoError, Stage
from retinue.client.aio import RetinueError
from retinue.devtools import engine
from retinue.devtools.cluster import Cluster, ClusterOptions

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OPTIONS = ClusterOptions(agents=2, slots={"cpu": "9", "mem": "18g"}, prefix="demo-")


async def demonstrate(stage: Stage) -> None:
    """Runs all parts, on a cluster that is removed afterwards. Raises DemoError, RetinueError, TimeoutError,
    OSError.
    """
    stage.heading("A manager, its database, and two agents, each on its own node")
    host = await asyncio.to_thread(containers.find_engine)
    made = host is not None and await asyncio.to_thread(containers.make_image, host, word_count.TEXTS)
    image = containers.IMAGE if made else ""
    if image and host:
        stage.say(f"the Docker engine at {host} answers: the word count runs in containers")
    else:
        stage.say("no Docker engine answers: everything runs as native processes")
    options = replace(_OPTIONS, engine=(lambda *_: host) if image and host else None)
    cluster = Cluster(options=options, say=stage.say)
    try:
        async with cluster, cluster.client() as client:
            for agent in [agent async for agent in client.agents.list()]:
                stage.say(f"agent {agent.id} at {agent.address} has {dict(sorted(agent.capacity.items()))}")
            try:
                await word_count.show(stage, client, image)
                await fairness.show(stage, cluster, client)
                together, *_ = await placement.show(stage, cluster, client)
                await code.show(stage, together)
                await cleaning.show(stage, cluster, client)
            except (DemoError, RetinueError, TimeoutError):
                for child in cluster.casualties():
                    stage.say(f"{child.name} {child.exit_report()}")
                raise
    finally:
        if image and host:
            await asyncio.to_thread(engine.remove_image, host, image)


async def _until_interrupted(stage: Stage) -> int:
    work = asyncio.create_task(demonstrate(stage))
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        # Only once: the next one would cancel the cleaning up.
        for number in _SIGNALS:
            loop.add_signal_handler(number, stage.say, "still cleaning up")
        work.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        await work
    except asyncio.CancelledError:
        stage.say("demo: interrupted; everything was removed")
        return 130
    except (DemoError, RetinueError, TimeoutError, OSError) as error:
        stage.console.print(f"\ndemo: failed: {error or type(error).__name__}", markup=False, highlight=False)
        return 1
    stage.console.print("\ndemo: ok", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_until_interrupted(Stage())))
