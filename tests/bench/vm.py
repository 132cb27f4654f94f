"""Virtual machines against bare QEMU with the same devices, in turns. Run as root;
each line is `name value unit peer ratio`.

Processor time counts, not that of a clock, where a machine boots: it is that of all processes in the machine's control
group, from the request to the start barrier. The peer is QEMU with the same arguments, without sandbox and agent, whose
first process loads its modules and powers off. Ten at once are compared with as many one after the other. Memory is
what QEMU has of its own beside the guest's, after much work in the guest; files that it maps, its own and the guest's
Linux, are the node's cache, which all machines share, and have a line of their own.

TCP is one stream from a guest to a process in another network namespace: ours through a session's network; the peer's,
which has the same devices, through a tap that is a port of a plain bridge.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import resource
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.attempts import AttemptSpec, Isolation, Owner, Phase
from retinue.agent.host.cgroups import Cgroups
from retinue.agent.host.processes import PROC
from retinue.agent.kernel.guest_linux import GuestLinux, find
from retinue.agent.network import namespaces, netlink
from retinue.agent.network.core.observed import Uplink
from retinue.agent.network.core.operations import Namespace
from retinue.agent.network.core.plan import BRIDGE, PROBE_LINK, plan_network
from retinue.agent.network.links import apply
from retinue.agent.network.observation import observe_session
from retinue.agent.vm import channels
from retinue.agent.vm.core import guest_frames
from retinue.agent.vm.core.guest_frames import Interface
from retinue.agent.vm.core.machine import (
    CONTROL,
    ROOT,
    SHARE,
    SHARED_PROGRAMS,
    SHARED_PYTHON,
    SOCKETS,
    Descriptors,
    arguments,
    device_address,
    machine_of,
)
from retinue.agent.vm.machines import FAMILY
from retinue.agent.vm.options import VmOptions
from retinue.agent.vm.runtime import VmRuntime
from retinue.agent.vm.sandbox import open_tap
from retinue.agent.vm.starting import guest_spec
from tests.bench import report
from tests.bench.network import attach, inside, mac, namespace, network_of, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

TIMEOUT = 600.0
AT_ONCE = 10
PORT = 7000
GUEST, OTHER, PREFIX = "10.250.0.1", "10.250.0.2", 24
MTU = 1450
TICKS = os.sysconf("SC_CLK_TCK")
SLOTS = {"cpu": 1000, "mem": 256 << 20}
FILL = "head -c 60000000 /dev/zero > /dev/shm/all; head -c 50000000 /dev/zero > ~/file; cat ~/file > /dev/null; echo filled"
SEND = f"""
import socket, time
connection = socket.create_connection(("{OTHER}", {PORT}), timeout=60)
piece, until = bytes(1 << 18), time.monotonic() + SECONDS
while time.monotonic() < until:
    connection.sendall(piece)
"""


def seconds_used(pids: Sequence[int]) -> float:
    """Processor time of processes."""
    used = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            used += int(fields[11]) + int(fields[12])
    return used / TICKS


class Vms:
    """The runtime of an agent that has nothing but virtual machines."""

    def __init__(self, directory: Path) -> None:
        self._agent_id = f"rt-test-bench-{os.getpid()}"
        self._changed = asyncio.Event()
        (directory / "run").mkdir()
        self.options = VmOptions(
            self._agent_id,
            directory / "state",
            directory / "scratch",
            "boot",
            run_dir=directory / "run",
            boot_timeout=TIMEOUT,
            starts=AT_ONCE,
        )
        self.runtime = VmRuntime(self.options)

    async def open(self) -> None:
        await self.runtime.open(self._changed.set)

    def spec(self, name: str, *command: str, networked: bool = False) -> AttemptSpec:
        return AttemptSpec(
            f"{name}.1",
            "bench",
            name,
            1,
            "main1",
            command=command,
            slots=SLOTS,
            isolation=Isolation.VM,
            networked=networked,
        )

    async def until(self, attempt_id: str, *phases: Phase) -> None:
        async with asyncio.timeout(TIMEOUT):
            while (observed := self.runtime.observe()[attempt_id]).phase not in phases:
                if observed.phase.ended:
                    raise RuntimeError(observed.message)
                self._changed.clear()
                await self._changed.wait()

    async def printed(self, attempt_id: str) -> None:
        """Returns once the command has printed something."""
        async with asyncio.timeout(TIMEOUT):
            while (piece := self.runtime.output(attempt_id).read(0)) is None or not piece.data:
                await asyncio.sleep(0.001)

    @asynccontextmanager
    async def held(self, *specs: AttemptSpec) -> AsyncIterator[None]:
        """Machines that wait at their barriers; nothing is left of them afterwards."""
        try:
            await asyncio.gather(*(self.runtime.prepare(spec, "127.0.0.1\tlocalhost\n") for spec in specs))
            for spec in specs:
                await self.until(spec.id, Phase.CREATED)
            yield
        finally:
            for spec in specs:
                await self.runtime.kill(spec.id)
                await self.until(spec.id, Phase.EXITED, Phase.FAILED)
                await self.runtime.remove(spec.id)

    def processes(self, attempt_id: str) -> list[int]:
        return list(Cgroups(FAMILY.format(self._agent_id)).processes(attempt_id))

    def used(self, *specs: AttemptSpec) -> float:
        return sum(seconds_used(self.processes(spec.id)) for spec in specs)

    def qemu(self, attempt_id: str) -> int:
        return next(pid for pid in self.processes(attempt_id) if (PROC / f"{pid}/comm").read_text().startswith("qemu"))


class Bare:
    """QEMU as the product has it, but by hand."""

    def __init__(self, directory: Path, linux: GuestLinux) -> None:
        self._linux = linux
        self.sockets, self._share = directory / "sockets", directory / "share"
        self.sockets.mkdir()
        for name in ("work", SHARED_PROGRAMS, SHARED_PYTHON):
            (self._share / name).mkdir(parents=True)

    @contextmanager
    def started(self, *, probe: bool, taps: tuple[int, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
        """One that boots; with `probe`, it powers off then."""
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in (self._linux.linux, self._linux.initramfs)]
            ends = [stack.enter_context(open(os.devnull, "ab")) for _ in range(3)]
            numbers = [file.fileno() for file in (*ends, *files)]
            words = arguments(
                machine_of(SLOTS, "tcg"), Descriptors(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], taps)
            )
            replaced = {SOCKETS: str(self.sockets), SHARE: str(self._share), f"path={ROOT}": "path=/"}
            for old, new in replaced.items():
                words = [word.replace(old, new) for word in words]
            if probe:
                words[words.index("-append") + 1] += " retinue.probe"
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=(*numbers, *taps))
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def boot(self) -> float:
        """Processor time of a machine from its start to its end."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with self.started(probe=True) as process:
            process.wait(TIMEOUT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


async def boots(vms: Vms, bare: Bare, count: int) -> float:
    """Processor time of a held machine, and of a bare boot; returns the former."""
    ours, theirs = [], []
    for number in range(count):
        theirs.append(await asyncio.to_thread(bare.boot))
        spec = vms.spec(f"held{number}", "true")
        async with vms.held(spec):
            ours.append(vms.used(spec))
    report("vm-held", statistics.median(ours), "s", statistics.median(theirs), spread=ours)
    return statistics.median(ours)


async def ten_at_once(vms: Vms, alone: float) -> None:
    specs = [vms.spec(f"many{number}", "true") for number in range(AT_ONCE)]
    async with vms.held(*specs):
        report("vm-held-10-at-once", vms.used(*specs) / AT_ONCE, "s", alone)


async def release(vms: Vms, count: int) -> None:
    """From the release to the first output on the node."""
    times = []
    for number in range(count):
        spec = vms.spec(f"go{number}", "sh", "-c", "echo here; exec sleep 1000")
        async with vms.held(spec):
            begin = time.perf_counter()
            await vms.runtime.start(spec.id)
            await vms.printed(spec.id)
            times.append((time.perf_counter() - begin) * 1000)
    report("vm-release-to-output", statistics.median(times), "ms", None, spread=times)


async def memory(vms: Vms) -> None:
    """What QEMU has beside the guest's memory: of its own, and mapped files."""
    spec = vms.spec("memory", "sh", "-c", f"{FILL}; exec sleep 1000")
    async with vms.held(spec):
        await vms.runtime.start(spec.id)
        await vms.printed(spec.id)
        text = (PROC / f"{vms.qemu(spec.id)}/smaps").read_text()
    sizes = [
        (int(size), int(rss), int(own))
        for size, rss, own in re.findall(
            r"^Size: +(\d+).*?^Rss: +(\d+).*?^Anonymous: +(\d+)", text, re.MULTILINE | re.DOTALL
        )
    ]
    # The largest mapping is the guest's memory.
    report("vm-memory-overhead", (sum(own for *_, own in sizes) - max(sizes)[2]) / 1024, "MiB", None)
    report("vm-memory-mapped-files", sum(rss - own for _, rss, own in sizes) / 1024, "MiB", None)


class Sink:
    """Takes what a guest sends, in a network namespace, and counts it."""

    def __init__(self, name: str) -> None:
        def listen() -> socket.socket:
            return socket.create_server((OTHER, PORT))

        self._listener = inside(name, listen)
        assert isinstance(self._listener, socket.socket)
        self._listener.settimeout(TIMEOUT)
        self.rate = 0.0
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        assert isinstance(self._listener, socket.socket)
        with self._listener, self._listener.accept()[0] as connection:
            connection.settimeout(TIMEOUT)
            begin, count, buffer = time.perf_counter(), 0, bytearray(1 << 18)
            while taken := connection.recv_into(buffer):
                count += taken
            self.rate = count * 8 / 1e6 / (time.perf_counter() - begin)

    async def taken(self) -> float:
        """Megabits per second of the connection, once it has ended."""
        await asyncio.to_thread(self._thread.join)
        return self.rate


async def through_a_session(vms: Vms, number: int, seconds: float) -> float:
    network = network_of([GUEST, OTHER], [0, 0], 0, 0, f"10.250.0.0/{PREFIX}")
    spec = vms.spec(f"k{number}", "/usr/bin/python3", "-c", SEND.replace("SECONDS", str(seconds)), networked=True)
    with namespace("s") as session, namespace("k") as other:
        with namespaces.opened(namespaces.DIRECTORY / session) as inner, netlink.connected(inner) as connection:
            uplink = Uplink(0, "up0", "192.0.2.1", 1500)
            steps = plan_network(network, uplink, observe_session(connection, BRIDGE, PROBE_LINK))
            apply(steps, {Namespace.SESSION: connection}, inner, inner)
        attach(session, other, network, network.members[1].kernel_id)
        async with vms.held(spec):
            target = vms.runtime.kernel(spec.id).fence_target()
            assert target is not None
            attach(session, f"/proc/{target.process.pid}/ns/net", network, network.members[0].kernel_id)
            await vms.runtime.mark_attached(spec.id)
            sink = Sink(other)
            await vms.runtime.start(spec.id)
            return await sink.taken()


async def through_a_bridge(vms: Vms, bare: Bare, seconds: float) -> float:
    spec = vms.spec("bare", "/usr/bin/python3", "-c", SEND.replace("SECONDS", str(seconds)))
    with namespace("b") as bridge, namespace("k") as other, ExitStack() as stack:
        inner = ("ip", "-n", bridge, "link")
        run(*inner, "add", "br1", "type", "bridge")
        run(*inner, "add", "p1", "type", "veth", "peer", "eth0", "address", mac(OTHER), "netns", other)
        run("ip", "-n", other, "address", "add", f"{OTHER}/{PREFIX}", "dev", "eth0")
        run("ip", "-n", other, "link", "set", "eth0", "mtu", str(MTU), "up")
        tap = inside(bridge, lambda: stack.enter_context(open_tap("tap0")))
        assert isinstance(tap, int)
        for name in ("p1", "tap0"):
            run(*inner, "set", name, "mtu", str(MTU), "master", "br1", "up")
        run(*inner, "set", "br1", "mtu", str(MTU), "up")
        sink = Sink(other)
        with bare.started(probe=False, taps=(tap,)):
            control = bare.sockets / CONTROL
            async with asyncio.timeout(TIMEOUT):
                while not control.exists():
                    await asyncio.sleep(0.01)
                await channels.wait_booted(control)
            guest = guest_frames.specification(
                guest_spec(spec, "", Owner(60_000, 60_000), vms.options, None, user=None)
            )
            await channels.ask(control, guest_frames.SPECIFY, guest, TIMEOUT)
            link = Interface(device_address(0), mac(GUEST), GUEST, PREFIX, MTU, "", "")
            await channels.ask(control, guest_frames.NETWORK, guest_frames.interface(link))
            await channels.ask(control, guest_frames.GO)
            return await sink.taken()


async def streams(vms: Vms, bare: Callable[[], Bare], count: int, seconds: float) -> None:
    ours, theirs = [], []
    for number in range(count):
        theirs.append(await through_a_bridge(vms, bare(), seconds))
        ours.append(await through_a_session(vms, number, seconds))
    report("vm-tcp", statistics.median(ours), "Mbit/s", statistics.median(theirs), spread=ours)


async def main(*, quick: bool) -> None:
    """Prints all lines."""
    linux = await asyncio.to_thread(find)
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        made = 0

        def bare() -> Bare:
            nonlocal made
            made += 1
            (directory / str(made)).mkdir()
            return Bare(directory / str(made), linux)

        vms = Vms(directory)
        await vms.open()
        try:
            alone = await boots(vms, bare(), 1 if quick else 5)
            await ten_at_once(vms, alone)
            await release(vms, 1 if quick else 5)
            await memory(vms)
            await streams(vms, bare, 1 if quick else 3, 2 if quick else 10)
        finally:
            await vms.runtime.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of each")
    asyncio.run(main(quick=parser.parse_args().quick))
