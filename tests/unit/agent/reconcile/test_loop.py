"""The loop: what fails is tried again, what is slow holds up nothing else, and few are created at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.attempts import AttemptSpec, DesiredAttempt, Goal, ObservedAttempt, Phase, PublishedPort, Step
from retinue.agent.network.core.topology import Member, Network, hosts_text
from retinue.agent.network.errors import NetworkError
from retinue.agent.reconcile.loop import PARALLEL_CREATES, Reconciler
from retinue.rpc.core.reasons import AgentConditionType
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from retinue.agent.inside.log_file import Output


NETWORK = Network(
    "s", 0, "10.1.0.0/28", 1450, (Member("a", "main1", "10.1.0.2", "02:00:00:00:00:02", "192.0.2.1", True),)
)


@dataclass(frozen=True)
class MemoryKernel:
    """A kernel whose network namespace is a name only."""

    attempt_id: str

    def network_attachment(self) -> str:
        return f"/proc/{self.attempt_id}/ns/net"

    def fence_target(self) -> None:
        return None


class MemoryRuntime:
    """Attempts that are values only; `gates` hold up the creation of some."""

    name = "memory"
    capacity = None

    def __init__(self) -> None:
        self.attempts: dict[str, ObservedAttempt] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.creating = 0
        self.most_creating = 0
        self.marked: list[str] = []
        self.hosts: dict[str, str] = {}
        self.listener: Callable[[], None] = lambda: None

    async def open(self, listener: Callable[[], None]) -> None:
        self.listener = listener

    async def close(self) -> None:
        self.attempts.clear()

    def observe(self) -> Mapping[str, ObservedAttempt]:
        return self.attempts

    def _set(self, attempt: ObservedAttempt) -> None:
        self.attempts[attempt.id] = attempt
        self.listener()

    async def prepare(self, spec: AttemptSpec, hosts: str) -> None:
        self.creating += 1
        self.most_creating = max(self.most_creating, self.creating)
        try:
            if (gate := self.gates.get(spec.id)) is not None:
                await gate.wait()
            assert spec.id not in self.attempts
            self.hosts[spec.id] = hosts
            attempt = ObservedAttempt(spec.id, spec.session_id, spec.kernel_id, spec.networked, Phase.CREATED)
            self._set(replace(attempt, egress=spec.egress))
        finally:
            self.creating -= 1

    async def decline(self, spec: AttemptSpec, phase: Phase, reason: str, message: str) -> None:
        attempt = ObservedAttempt(spec.id, spec.session_id, spec.kernel_id, spec.networked, phase)
        self._set(replace(attempt, reason=reason, message=message))

    async def identify(self, spec: AttemptSpec) -> None:
        self._set(replace(self.attempts[spec.id], session_id=spec.session_id, networked=spec.networked))

    def kernel(self, attempt_id: str) -> MemoryKernel:
        return MemoryKernel(attempt_id)

    async def mark_attached(self, attempt_id: str) -> None:
        self.marked.append(attempt_id)
        self._set(replace(self.attempts[attempt_id], attached=True))

    async def authorize(self, attempt_id: str, keys: tuple[str, ...]) -> None:
        raise NotImplementedError

    async def start(self, attempt_id: str) -> None:
        self._set(replace(self.attempts[attempt_id], phase=Phase.RUNNING, start_time=1.0))

    async def stop(self, attempt_id: str, grace: float) -> None:
        kill_at = time.monotonic() + grace
        self._set(replace(self.attempts[attempt_id], phase=Phase.STOPPING, kill_at=kill_at, stop_grace=grace))

    async def kill(self, attempt_id: str) -> None:
        self._set(replace(self.attempts[attempt_id], phase=Phase.EXITED, kill_at=None))

    async def remove(self, attempt_id: str) -> None:
        del self.attempts[attempt_id]
        self.listener()

    def output(self, attempt_id: str) -> Output:
        raise NotImplementedError(attempt_id)


class MemoryLinks:
    """Networks that are names only, and fail a few times."""

    def __init__(self) -> None:
        self.failures = 0
        self.there: set[str] = set()
        self.repairs = 0
        self.attached: list[tuple[str, str]] = []
        self.attach_failures = 0

    async def ensure(self, network: Network) -> int:
        steps = int(network.session_id not in self.there)
        self.there.add(network.session_id)
        if self.failures > 0:
            self.failures -= 1
            raise NetworkError("the cable is out")
        return steps

    async def attach(self, network: Network, kernel_id: str, namespace: Any) -> int:
        assert network.session_id in self.there
        if self.attach_failures > 0:
            self.attach_failures -= 1
            raise NetworkError("the port is stuck")
        self.attached.append((kernel_id, namespace))
        repaired, self.repairs = self.repairs, 0
        return repaired

    async def remove(self, session_id: str) -> None:
        self.there.discard(session_id)

    async def observed(self) -> set[str]:
        return set(self.there)


class MemoryWays:
    """Egress links that are names only, and whose removal fails a few times."""

    def __init__(self) -> None:
        self.failures = 0
        self.attach_failures = 0
        self.attached: dict[str, str] = {}
        self.refreshed: list[str] = []
        self.session_addresses: dict[str, str] = {}
        self.published: dict[str, tuple[int, bool]] = {}

    async def publish(self, attempt_id: str, port: int, *, closed: bool) -> None:
        assert attempt_id in self.attached
        self.published[attempt_id] = port, closed

    async def refresh(self, attempt_id: str, namespace: Any) -> None:
        assert self.attached[attempt_id] == namespace
        self.refreshed.append(attempt_id)

    async def attach(self, attempt_id: str, namespace: Any, session_address: str = "") -> int:
        if self.attach_failures > 0:
            self.attach_failures -= 1
            raise NetworkError("no link")
        steps = int(attempt_id not in self.attached)
        self.attached[attempt_id] = namespace
        self.session_addresses[attempt_id] = session_address
        return steps

    async def remove(self, attempt_id: str) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise NetworkError("the cable is stuck")
        del self.attached[attempt_id]


@dataclass
class Bench:
    backend: MemoryRuntime
    links: MemoryLinks
    ways: MemoryWays
    loop: Reconciler

    async def until(self, condition: Callable[[], bool]) -> None:
        await eventually(condition)

    def phase(self, attempt_id: str) -> Phase | None:
        attempt = self.backend.attempts.get(attempt_id)
        return None if attempt is None else attempt.phase


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    backend, links, ways = MemoryRuntime(), MemoryLinks(), MemoryWays()
    # As much of a backend as the loop needs.
    known: Any = backend
    loop = Reconciler(
        known,
        links,
        ways,
        ways,
        clock=time.monotonic,
        random_numbers=random.SystemRandom(),
        inspection_interval=0.05,
    )
    await backend.open(loop.changed)
    stopping = asyncio.Event()
    task = asyncio.create_task(loop.run(stopping))
    yield Bench(backend, links, ways, loop)
    stopping.set()
    for gate in backend.gates.values():
        gate.set()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def wanted(
    name: str, session: str = "s", goal: Goal = Goal.RUNNING, networked: bool = False, grace: float = 0.0
) -> DesiredAttempt:
    return DesiredAttempt(AttemptSpec(f"{name}.1", session, name, 1, name, networked=networked), goal, grace)


async def test_network_that_fails_is_tried_again(bench: Bench) -> None:
    bench.links.failures = 2
    bench.loop.set_desired([wanted("a", networked=True)], [NETWORK])
    await bench.until(lambda: bench.loop.trouble("a.1") == "the cable is out")
    assert bench.phase("a.1") is None
    await bench.until(lambda: bench.phase("a.1") is Phase.RUNNING)
    assert bench.loop.trouble("a.1") == ""
    # A loop that is late inspects the network as well, and attaches again what is attached.
    assert set(bench.links.attached) == {("a", "/proc/a.1/ns/net")}
    assert bench.backend.hosts["a.1"] == hosts_text(NETWORK)


async def test_slow_one_holds_up_no_other_session(bench: Bench) -> None:
    bench.backend.gates["slow.1"] = asyncio.Event()
    bench.loop.set_desired([wanted("slow", "one"), wanted("mate", "one"), wanted("quick", "two")], [])
    await bench.until(lambda: bench.phase("quick.1") is Phase.RUNNING and bench.phase("mate.1") is Phase.CREATED)
    assert bench.phase("slow.1") is None
    bench.backend.gates["slow.1"].set()
    await bench.until(lambda: bench.phase("slow.1") is Phase.RUNNING and bench.phase("mate.1") is Phase.RUNNING)
    assert "127.0.0.1\tslow" in bench.backend.hosts["slow.1"]


async def test_one_that_waits_for_the_node_says_so_and_can_be_stopped(bench: Bench) -> None:
    waits = {"a": "ssh is being built", "b": "ssh is being built"}
    bench.loop._waits_for = lambda spec: waits.get(spec.hostname, "")  # noqa: SLF001  # given when it is made
    bench.loop.set_desired([wanted("a", "one"), wanted("b", "two"), wanted("c", "three")], [])
    await bench.until(lambda: bench.phase("c.1") is Phase.RUNNING and bench.loop.trouble("a.1") == "ssh is being built")
    assert (bench.phase("a.1"), bench.phase("b.1")) == (None, None)
    bench.loop.change_desired([wanted("b", "two", goal=Goal.STOPPED)], [], [], [])
    await bench.until(lambda: bench.phase("b.1") is Phase.EXITED)
    waits.clear()
    bench.loop.changed()
    await bench.until(lambda: bench.phase("a.1") is Phase.RUNNING)
    assert bench.loop.trouble("a.1") == ""


async def test_few_are_created_at_once(bench: Bench) -> None:
    gate = asyncio.Event()
    names = [f"k{number}" for number in range(20)]
    bench.backend.gates = {f"{name}.1": gate for name in names}
    bench.loop.set_desired([wanted(name, name) for name in names], [])
    await bench.until(lambda: bench.backend.creating == PARALLEL_CREATES)
    gate.set()
    await bench.until(lambda: all(bench.phase(f"{name}.1") is Phase.RUNNING for name in names))
    assert bench.backend.most_creating == PARALLEL_CREATES


async def test_grace_runs_out_by_itself_and_the_end_is_kept_until_settled(bench: Bench) -> None:
    bench.loop.set_desired([wanted("a", networked=True)], [NETWORK])
    await bench.until(lambda: bench.phase("a.1") is Phase.RUNNING)
    bench.loop.change_desired([wanted("a", goal=Goal.STOPPED, networked=True, grace=0.05)], [], [], [])
    await bench.until(lambda: bench.phase("a.1") is Phase.EXITED)
    bench.loop.change_desired([], ["a.1"], [], ["s"])
    assert bench.loop.networks() == {"s"}
    bench.loop.settle(["a.1"])
    await bench.until(lambda: not bench.backend.attempts and not bench.loop.networks())
    assert bench.links.there == set()
    assert bench.loop.settled == frozenset()


async def test_an_attempt_is_forgotten_only_once_its_egress_link_is_gone(bench: Bench) -> None:
    out = replace(wanted("out").spec, egress=True)
    bench.loop.set_desired([DesiredAttempt(out, Goal.RUNNING, 0.0), wanted("in", "t")], [])
    await bench.until(lambda: all(bench.phase(name) is Phase.RUNNING for name in ("out.1", "in.1")))
    assert bench.ways.attached == {"out.1": "/proc/out.1/ns/net"}
    bench.ways.failures = 1
    bench.loop.set_desired([], [])
    for name in ("out.1", "in.1"):
        await bench.backend.kill(name)
    bench.loop.settle(["out.1", "in.1"])
    await bench.until(lambda: bench.loop.trouble("out.1") == "the cable is stuck")
    assert bench.backend.attempts.keys() == {"out.1"}
    await bench.until(lambda: not bench.backend.attempts)
    assert bench.ways.attached == {}


async def test_stopped_before_it_was_created(bench: Bench) -> None:
    bench.loop.set_desired([wanted("a", goal=Goal.STOPPED)], [])
    await bench.until(lambda: bench.phase("a.1") is Phase.EXITED)
    assert bench.backend.attempts["a.1"].reason == "STOPPED"
    assert bench.backend.hosts == {}


async def test_only_what_is_named_is_removed_when_absence_does_not(bench: Bench) -> None:
    attempts = [wanted("a", goal=Goal.RUNNING), wanted("b", goal=Goal.RUNNING)]
    bench.loop.set_desired(attempts, [])
    await bench.until(lambda: bench.phase("a.1") is bench.phase("b.1") is Phase.RUNNING)
    bench.loop.set_desired([], [], ["a.1"], absence_removes=False)
    await bench.until(lambda: bench.phase("a.1") is Phase.STOPPING)
    assert bench.phase("b.1") is Phase.RUNNING
    bench.loop.change_desired([], ["b.1"], [], [])
    await bench.until(lambda: bench.phase("b.1") is Phase.STOPPING)


async def test_a_rebuilt_attempt_outlives_its_absence_and_is_identified_by_name(bench: Bench) -> None:
    lost = ObservedAttempt("a.1", "", "a", False, Phase.RUNNING, start_time=1.0, rebuilt=True)
    bench.backend.attempts["a.1"] = lost
    bench.loop.set_desired([wanted("b", goal=Goal.RUNNING)], [])
    await bench.until(lambda: bench.phase("b.1") is Phase.RUNNING)
    assert bench.phase("a.1") is Phase.RUNNING
    bench.loop.change_desired([wanted("a", goal=Goal.RUNNING)], [], [], [])
    await bench.until(lambda: bench.backend.attempts["a.1"].session_id != "")
    bench.loop.change_desired([], ["a.1"], [], [])
    await bench.until(lambda: bench.phase("a.1") is Phase.STOPPING)


async def test_a_network_that_others_removed_is_made_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.loop.set_desired([wanted("a", networked=True)], [NETWORK])
    await bench.until(lambda: bench.phase("a.1") is Phase.RUNNING)
    attached = len(bench.links.attached)
    assert bench.backend.marked == ["a.1"]
    bench.links.repairs = 1
    bench.links.there.clear()
    await bench.until(lambda: bench.links.there == {"s"} and len(bench.links.attached) > attached)
    # What stands between the kernel and an interface that was made again is joined again.
    await bench.until(lambda: bench.backend.marked == ["a.1", "a.1"])
    # At once, and not because joining the kernel to it failed.
    await bench.until(lambda: "it was repaired in 2 steps" in caplog.text)
    assert bench.loop.conditions.all() == ()


async def test_a_network_that_cannot_be_repaired_is_reported_until_it_is(bench: Bench) -> None:
    bench.loop.set_desired([wanted("a", networked=True)], [NETWORK])
    await bench.until(lambda: bench.phase("a.1") is Phase.RUNNING)
    bench.links.failures = 2
    await bench.until(lambda: bench.loop.trouble("a.1") == "the cable is out")
    assert [each.type for each in bench.loop.conditions.all()] == [AgentConditionType.NETWORK_DEGRADED]
    assert bench.phase("a.1") is Phase.RUNNING
    await bench.until(lambda: bench.loop.conditions.all() == ())
    # What is removed is not degraded any more.
    bench.links.failures = 1000
    await bench.until(lambda: bench.loop.conditions.all() != ())
    bench.loop.change_desired([], ["a.1"], [], ["s"])
    await bench.until(lambda: bench.phase("a.1") is Phase.STOPPING)
    bench.backend.attempts.clear()
    bench.loop.changed()
    await bench.until(lambda: bench.loop.conditions.all() == ())


async def test_a_step_that_fails_again_and_again_is_told_with_its_number_until_it_succeeds(bench: Bench) -> None:
    bench.links.failures = 1000
    bench.loop.set_desired([wanted("a", networked=True)], [NETWORK])
    await bench.until(lambda: bool(bench.loop.failing_steps("a.1")))
    first = bench.loop.failing_steps("a.1")[0]
    assert (first.step, first.retries.error) == (Step.NETWORK, "the cable is out")
    await bench.until(lambda: bench.loop.failing_steps("a.1")[0].retries.tries > first.retries.tries)
    assert bench.loop.failing_steps("a.1")[0].retries.since == first.retries.since
    # Nothing else is placed on the node meanwhile.
    assert [each.type for each in bench.loop.conditions.all()] == [AgentConditionType.NETWORK_DEGRADED]
    bench.links.failures = 0
    await bench.until(lambda: bench.phase("a.1") is Phase.RUNNING and not bench.loop.failing_steps("a.1"))
    await bench.until(lambda: bench.loop.conditions.all() == ())


async def test_a_network_that_was_never_made_is_degraded_until_it_is_removed(bench: Bench) -> None:
    bench.links.failures = 1000
    bench.loop.set_desired([wanted("a", networked=True)], [NETWORK])
    await bench.until(lambda: bench.loop.conditions.all() != ())
    bench.loop.change_desired([], ["a.1"], [], ["s"])
    await bench.until(lambda: bench.loop.conditions.all() == () and not bench.loop.networks())
    assert bench.loop.failing_steps("a.1") == ()


async def test_an_egress_link_that_cannot_be_made_is_a_failing_step_of_its_kernel(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.ways.attach_failures = 1000
    out = replace(wanted("out").spec, egress=True)
    bench.loop.set_desired([DesiredAttempt(out, Goal.RUNNING, 0.0)], [])
    await bench.until(lambda: [item.step for item in bench.loop.failing_steps("out.1")] == [Step.ATTACH])
    bench.ways.attach_failures = 0
    await bench.until(lambda: bench.phase("out.1") is Phase.RUNNING)
    assert bench.loop.failing_steps("out.1") == ()
    # Once for one error, however often it is tried.
    assert [record.levelname for record in caplog.records if "no link" in record.getMessage()] == ["WARNING"]


async def test_links_of_kernels_that_cannot_be_made_again_are_tried_less_and_less_often(bench: Bench) -> None:
    bench.loop.set_desired([wanted("a", networked=True)], [NETWORK])
    await bench.until(lambda: bench.phase("a.1") is Phase.RUNNING)
    bench.links.attach_failures = 1000
    # The network itself is made each time, which is no end of the failures in a row.
    await bench.until(lambda: any(item.retries.tries >= 4 for item in bench.loop.failing_steps("a.1")))
    bench.links.attach_failures = 0
    await bench.until(lambda: bench.loop.failing_steps("a.1") == () and bench.loop.conditions.all() == ())


async def test_an_egress_link_that_others_delete_is_made_again_with_its_ports(bench: Bench) -> None:
    out = replace(wanted("out").spec, egress=True, published=PublishedPort(8000))
    bench.loop.set_desired([DesiredAttempt(out, Goal.RUNNING, 0.0)], [])
    await bench.until(lambda: bench.phase("out.1") is Phase.RUNNING)
    bench.ways.attached.clear()
    bench.backend.marked.clear()
    await bench.until(lambda: "out.1" in bench.ways.attached and "out.1" in bench.ways.refreshed)
    # A virtual machine is joined to what was made again.
    await bench.until(lambda: bench.backend.marked == ["out.1"])
    bench.ways.attach_failures = 1000
    await bench.until(lambda: any(item.retries.tries >= 4 for item in bench.loop.failing_steps("out.1")))
    assert [each.type for each in bench.loop.conditions.all()] == [AgentConditionType.NETWORK_DEGRADED]
    bench.ways.attach_failures = 0
    await bench.until(lambda: bench.loop.failing_steps("out.1") == () and bench.loop.conditions.all() == ())
