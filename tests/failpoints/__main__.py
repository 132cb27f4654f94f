"""Walks all failpoints: `python -m tests.failpoints`; ends with 0 and `faults: ok` when nothing was found."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from tests.failpoints.walk import Pick, Walk, everything, sample

# A round mostly waits: for what starts again, for steps that are late, for callers that try again.
_MAX_CLUSTERS = 4


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


async def _walk(given: argparse.Namespace) -> list[str]:
    part, _, parts = given.part.partition("/")
    count = 1 if given.picks or given.sample else given.clusters
    async with AsyncExitStack() as stack:
        walks = [await stack.enter_async_context(Walk.begin(_say, logs=given.logs)) for _ in range(count)]
        if given.picks:
            await walks[0].round(given.picks)
        elif given.sample:
            await sample(walks[0], given.sample, given.seed)
        else:
            missed = await everything(walks, int(part), int(parts or 1), given.seed, given.seconds)
            fired = sum(len(walk.fired) for walk in walks)
            _say(f"{fired} failed once; not passed again: {', '.join(map(str, missed)) or 'none'}")
        return [found for walk in walks for found in walk.found]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1", metavar="N/M", help="one of M parts of the walk")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no further round begins")
    parser.add_argument(
        "--clusters", type=int, default=min(_MAX_CLUSTERS, os.cpu_count() or 1), metavar="N", help="side by side"
    )
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="only so many, chosen by the seed")
    parser.add_argument("--logs", type=Path, metavar="DIRECTORY", help="where logs of rounds that find something stay")
    parser.add_argument(
        "picks", type=Pick.parse, nargs="*", metavar="POINT=ACTION", help="one round with these alone, to see it again"
    )
    found = asyncio.run(_walk(parser.parse_args()))
    _say("faults: ok" if not found else f"faults: {len(found)} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
