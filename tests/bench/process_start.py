"""Time from asking for a process kernel to its command running, against bare bubblewrap with the same options.

Each pair of runs is done back to back, in turns, so that both meet the same noise; the command prints the time at which
it runs. The peer has the same root, mounted by the same calls, and the same arguments; it has no limits, no record, no
agent to wait for at its gate and no agent. Whatever a kernel costs beyond that counts against it.

Prints one line: `name value unit peer ratio`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from retinue.agent.attempts import AttemptSpec, Owner, Phase
from retinue.agent.host.cgroups import MOUNT, Cgroups
from retinue.agent.host.core.limits import MemoryFiles
from retinue.agent.host.launch_threads import in_own_thread
from retinue.agent.host.seccomp import build_filter
from retinue.agent.kernel.build import CACHE, ENCLOSE, build
from retinue.agent.process import bubblewrap
from retinue.agent.process.core.visible_paths import VisiblePaths
from retinue.agent.process.options import ProcessOptions
from retinue.agent.process.root_layer import RootLayer
from retinue.agent.process.runtime import ProcessRuntime

COMMAND = ("date", "+%s.%N")
HOSTS = "127.0.0.1\tlocalhost\n"
GROUPS = {str(MOUNT / name): str(MOUNT / name) for name in Cgroups("bench").directories("")}
USER = Owner(60_000, 60_000)
SLOTS = {"cpu": 1000, "mem": 256 << 20}


async def kernel(backend: ProcessRuntime, number: int) -> float:
    """Seconds from create to the command running."""
    name = f"bench{number}"
    spec = AttemptSpec(f"{name}.1", "bench", name, 1, "main1", command=COMMAND, slots=SLOTS)
    begin = time.time()
    await backend.prepare(spec, HOSTS)
    await backend.start(spec.id)
    async with asyncio.timeout(30):
        while not (observed := backend.observe()[spec.id]).phase.ended:
            await asyncio.sleep(0.001)
    if observed.phase is not Phase.EXITED or observed.exit_code != 0:
        raise RuntimeError(observed.message)
    piece = backend.output(spec.id).read(0)
    await backend.remove(spec.id)
    if piece is None:
        raise RuntimeError("the command printed nothing")
    return float(piece.data) - begin


def bare(settings: bubblewrap.Settings, directory: Path, number: int) -> float:
    """Seconds from starting bubblewrap to the command running."""
    work = directory / f"work{number}"
    work.mkdir()
    os.chown(work, USER.uid, USER.gid)
    like = bubblewrap.Sandbox("main1", COMMAND, {}, {"etc/hosts": HOSTS}, GROUPS, work, USER, MemoryFiles.of({}, 0))

    def run() -> float:
        begin = time.time()
        root = bubblewrap.mount_root(like, settings)
        with (
            (directory / f"output{number}").open("w+b") as output,
            (directory / f"status{number}").open("wb") as status,
            bubblewrap.memory_file(settings.filter) as calls,
            settings.enclose.open("rb") as enclose,
        ):
            gate, line = os.pipe()
            os.write(line, b"\n")
            os.close(line)
            outer = bubblewrap.outer_arguments(like, settings, root, status.fileno(), calls)
            inner = bubblewrap.inner_arguments(like, f"/proc/self/fd/{enclose.fileno()}")
            values = {f"e{n}": value for n, value in enumerate(bubblewrap.environment_of(like))}
            process = subprocess.Popen(
                ["bwrap", *outer, "--", *inner],  # noqa: S607
                stdin=gate,
                stdout=subprocess.DEVNULL,
                stderr=output,
                pass_fds=(status.fileno(), calls, enclose.fileno()),
                env={"PATH": bubblewrap.SEARCH_PATH} | values,
                start_new_session=True,
            )
            os.close(gate)
            if process.wait() != 0:
                raise RuntimeError(f"bubblewrap ended with {process.returncode}")
            output.seek(0)
            return float(output.read()) - begin

    return in_own_thread(run)


async def main(count: int) -> float:
    """Runs `count` pairs, prints the line and returns the ratio."""
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as name:
        directory = Path(name)
        backend = ProcessRuntime(
            ProcessOptions(f"rt-test-bench-{os.getpid()}", directory / "state", directory / "scratch", "boot")
        )
        await backend.open(lambda: None)
        mount_point = directory / "mount"
        mount_point.mkdir()
        settings = bubblewrap.Settings(
            mount_point, RootLayer(VisiblePaths.of((), ())), build_filter(), build(CACHE, ENCLOSE)
        )
        try:
            kernels, peers = [], []
            for number in range(-2, count):
                took = await kernel(backend, number + 2)
                against = await asyncio.to_thread(bare, settings, directory, number + 2)
                if number >= 0:
                    kernels.append(took)
                    peers.append(against)
        finally:
            await backend.close()
    value, peer = statistics.median(kernels) * 1000, statistics.median(peers) * 1000
    sys.stdout.write(f"process_kernel_start {value:.2f} ms {peer:.2f} {value / peer:.2f}\n")
    return value / peer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30, help="pairs of runs")
    asyncio.run(main(parser.parse_args().count))
