"""Attempts as pods while the API refuses, forgets, answers twice or not at all: each ends as it should, nothing of the
node is freed that is still used, and few calls are made. The API is one of the tests' own.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import signal
from typing import TYPE_CHECKING

import grpc
import pytest

from retinue.agent.attempts import AttemptSpec, Isolation, Phase
from retinue.agent.errors import KernelRuntimeError
from retinue.agent.host.processes import identify
from retinue.agent.kubernetes import cluster, pods
from retinue.agent.kubernetes.options import KubernetesOptions
from retinue.agent.kubernetes.runtime import KubernetesRuntime
from retinue.agent.kubernetes.runtime_images import STATUS
from retinue.agent.runtime.attempt_records import Record, Records
from retinue.agent.runtime.options import Shared
from tests.integration.agent.opened import HOSTS, Runtimes
from tests.support.eventually import NEVER, eventually
from tests.unit.agent.kubernetes.fake_api import FakeApi, Fault, Raw, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.agent.attempts import ObservedAttempt
    from tests.integration.agent.conftest import Place

NAME, FETCHING = "retinue-k.1", "retinue-fetch-k.1"
MAX_CALLS = 5
"""Calls that an attempt may take, without faults of the API."""
PULL_FAILED: Raw = {
    "phase": "Pending",
    "containerStatuses": [
        {
            "name": "kernel",
            "image": "i",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "i: not found"}},
        }
    ],
}
REFUSED: Raw = {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"}
INTERNAL, UNAVAILABLE = Fault(500, refusal(500, "InternalError")), Fault(503, refusal(503, "ServiceUnavailable"))


class FakePods(Runtimes[KubernetesRuntime]):
    """Runtimes of pods that a test's own API has."""

    def __init__(self, place: Place, api: FakeApi, config: Path) -> None:
        super().__init__(place)
        self.api = api
        self.config = config
        self.shared = Shared()

    async def open(self, **values: object) -> KubernetesRuntime:
        if self.current is not None:
            await self.current.close()
        self.shared = Shared()
        settings: dict[str, object] = {
            "agent_id": self.place.agent_id,
            "state_dir": self.place.directory / "state",
            "scratch_dir": self.place.directory / "scratch",
            "boot_id": "this-boot",
            "node_name": "n1",
            "config": self.config,
        }
        self.current = KubernetesRuntime(KubernetesOptions(**(settings | values)), self.shared)  # type: ignore[arg-type]
        await self.current.open(self._changed)
        await eventually(lambda: self.current is not None and self.current.statuses[0].available)
        return self.current

    async def begun(self) -> KubernetesRuntime:
        """Opens a runtime and has it prepare an attempt."""
        runtime = await self.open()
        await runtime.prepare(self.spec(), HOSTS)
        return runtime

    def spec(self) -> AttemptSpec:
        slots = {"cpu": 100, "mem": 64 << 20}
        return AttemptSpec(
            "k.1",
            "session",
            "k",
            1,
            slots=slots,
            hostname="main1",
            command=("true",),
            image="i",
            isolation=Isolation.CONTAINER,
        )

    async def refused(self) -> ObservedAttempt:
        """Has the node refuse the pod once it is there, and removes the attempt."""
        await eventually(lambda: NAME in self.api.pods)
        self.api.set_status(NAME, **REFUSED)
        failed = await self.until("k.1", Phase.FAILED)
        assert self.current is not None
        await self.current.remove("k.1")
        assert not self.api.pods
        return failed


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def faulty(
    place: Place, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FakePods]:
    monkeypatch.setattr(pods, "RETRY", 0.01)
    monkeypatch.setattr(cluster, "FIRST_BACKOFF", 0.01)
    # The node of this API has no kubelet that would say how a pod ended, or that it gives one up.
    monkeypatch.setattr(pods, "WITNESS_TIMEOUT", 0.1)
    monkeypatch.setattr(pods, "SETTLE_TIMEOUT", 0.1)
    async with api.serving(tmp_path) as config:
        faulty = FakePods(place, api, config)
        yield faulty
        if faulty.current is not None:
            await faulty.current.close()


@pytest.mark.parametrize(
    ("status", "reason"), [(PULL_FAILED, "IMAGE_NOT_FOUND"), (REFUSED, "NODE_REFUSED"), (None, "EVICTED")]
)
async def test_what_never_starts_fails_soon_with_few_calls(
    faulty: FakePods, api: FakeApi, status: Raw | None, reason: str
) -> None:
    runtime = await faulty.begun()
    await eventually(lambda: NAME in api.pods)
    if status is None:
        api.drop(NAME)
    else:
        api.set_status(NAME, **status)
    failed = await faulty.until("k.1", Phase.FAILED)
    assert failed.reason == reason, failed.message
    await runtime.remove("k.1")
    assert not api.pods
    assert len(api.verbs) <= MAX_CALLS, api.verbs


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(lost=True, done=True)],
        [Fault(201, "{", done=True)],
        [Fault(504, refusal(504, "Timeout"), done=True)],
        [Fault(409, refusal(409, "Conflict"))],
        [Fault(429, refusal(429, "TooManyRequests"), (("Retry-After", "1"),))],
        [INTERNAL, UNAVAILABLE, Fault(502, "<html>", (("Content-Type", "text/html"),))],
    ],
)
async def test_a_creation_that_fails_is_repeated_and_makes_one_pod(
    faulty: FakePods, api: FakeApi, faults: list[Fault]
) -> None:
    api.will("create", *faults)
    await faulty.begun()
    failed = await faulty.refused()
    assert failed.reason == "NODE_REFUSED", failed.message
    assert api.verbs.count("create") == len(faults) + 1


@contextlib.asynccontextmanager
async def runtime_without_images(socket: Path, answer: bytes = b"") -> AsyncIterator[list[bytes]]:
    """A container runtime that says of each image that it is not there, or this; yields what it was asked."""
    asked = []

    class Service(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
            assert details.method == STATUS

            async def status(request: bytes, context: object) -> bytes:
                del context
                asked.append(request)
                return answer

            return grpc.unary_unary_rpc_method_handler(status)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Service(),))
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield asked
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("status", "reason"), [(PULL_FAILED, "IMAGE_NOT_FOUND"), (REFUSED, "NODE_REFUSED"), (None, "EVICTED")]
)
async def test_an_image_that_cannot_be_fetched_fails_its_attempt(
    faulty: FakePods, api: FakeApi, tmp_path: Path, status: Raw | None, reason: str
) -> None:
    """Without a trace of what was to fetch it, whose first answer is lost."""
    async with runtime_without_images(tmp_path / "cri"):
        runtime = await faulty.open(runtime=tmp_path / "cri")
        api.will("create", Fault(lost=True, done=True))
        await runtime.prepare(faulty.spec(), HOSTS)
        await eventually(lambda: api.verbs == ["create", "create", "get"])
        assert runtime.observe()["k.1"].phase is Phase.PULLING
        if status is None:
            api.drop(FETCHING)
        else:
            api.set_status(FETCHING, **status)
        failed = await faulty.until("k.1", Phase.FAILED)
        assert failed.reason == reason, failed.message
        await runtime.remove("k.1")
        await eventually(lambda: not api.pods)


async def test_what_comes_to_be_after_its_fetch_was_given_up_is_removed(
    faulty: FakePods, api: FakeApi, tmp_path: Path
) -> None:
    async with runtime_without_images(tmp_path / "cri") as asked:
        runtime = await faulty.open(runtime=tmp_path / "cri")
        await runtime.prepare(faulty.spec(), HOSTS)
        await eventually(lambda: set(api.pods) == {FETCHING})
        # The name that kubelet makes of it, which is the beginning of no image's id.
        assert asked
        assert all(b"i:latest" in request for request in asked)
        later = copy.deepcopy(api.pods[FETCHING])
        api.drop(FETCHING)
        await faulty.until("k.1", Phase.FAILED)
        await runtime.remove("k.1")
        del later["metadata"]["uid"]
        api.add(later)
        await eventually(lambda: not api.pods)


@pytest.mark.parametrize("answer", [None, b"nonsense"])
async def test_nothing_is_asked_for_while_the_container_runtime_does_not_answer(
    faulty: FakePods, api: FakeApi, tmp_path: Path, answer: bytes | None
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if answer is not None:
            await stack.enter_async_context(runtime_without_images(tmp_path / "cri", answer))
        runtime = await faulty.open(runtime=tmp_path / "cri")
        with pytest.raises(KernelRuntimeError, match="container runtime"):
            await runtime.prepare(faulty.spec(), HOSTS)
        assert not runtime.observe()
        assert not api.verbs


async def test_a_lost_answer_and_an_api_that_fails_then_make_one_pod(faulty: FakePods, api: FakeApi) -> None:
    api.will("create", Fault(lost=True, done=True))
    api.will("get", INTERNAL, UNAVAILABLE)
    await faulty.begun()
    assert (await faulty.refused()).reason == "NODE_REFUSED"


async def test_two_creations_at_a_time_make_one_pod(faulty: FakePods, api: FakeApi) -> None:
    runtime = await faulty.open()
    await asyncio.gather(*(runtime.prepare(faulty.spec(), HOSTS) for _ in range(2)))
    assert (await faulty.refused()).reason == "NODE_REFUSED"
    assert api.verbs.count("create") == 1


@pytest.mark.parametrize("code", [403, 422])
async def test_what_the_api_refuses_for_good_is_not_repeated(faulty: FakePods, api: FakeApi, code: int) -> None:
    api.always["create"] = Fault(code, refusal(code, "exceeded quota"))
    runtime = await faulty.begun()
    failed = await faulty.until("k.1", Phase.FAILED)
    assert failed.reason == ("NODE_REFUSED" if code == 403 else "START_FAILED")
    assert "exceeded quota" in failed.message
    await runtime.remove("k.1")
    assert api.verbs.count("create") == 1
    assert len(api.verbs) <= MAX_CALLS, api.verbs


async def test_a_pod_of_another_with_the_same_name_is_left_alone(faulty: FakePods, api: FakeApi) -> None:
    foreign = api.add({"metadata": {"name": NAME, "labels": {}}})
    runtime = await faulty.begun()
    failed = await faulty.until("k.1", Phase.FAILED)
    assert (failed.reason, f"there is a pod {NAME} already" in failed.message) == ("START_FAILED", True)
    await runtime.remove("k.1")
    assert api.pods == {NAME: foreign}
    assert "deletionTimestamp" not in foreign["metadata"]


async def test_a_later_pod_of_the_same_name_is_left_alone(faulty: FakePods, api: FakeApi) -> None:
    runtime = await faulty.begun()
    await eventually(lambda: NAME in api.pods)
    labels = api.pods[NAME]["metadata"]["labels"]
    api.set_status(NAME, **REFUSED)
    await faulty.until("k.1", Phase.FAILED)
    api.stalled = True
    api.pods.pop(NAME)
    later = api.add({"metadata": {"name": NAME, "labels": labels}})
    await runtime.remove("k.1")
    assert api.pods == {NAME: later}
    assert "deletionTimestamp" not in later["metadata"]


async def test_an_api_that_goes_away_after_the_creation_delays_only_the_end(faulty: FakePods, api: FakeApi) -> None:
    runtime = await faulty.begun()
    await eventually(lambda: NAME in api.pods)
    for verb in ("get", "delete", "patch"):
        api.will(verb, Fault(lost=True), UNAVAILABLE)
    api.set_status(NAME, **PULL_FAILED)
    assert (await faulty.until("k.1", Phase.FAILED)).reason == "IMAGE_NOT_FOUND"

    async def removed() -> bool:
        with contextlib.suppress(cluster.ClusterError):
            await runtime.remove("k.1")
            return True
        return False

    await eventually(removed)
    assert not api.pods


async def test_what_kubelet_may_be_about_to_start_is_removed_once_it_is_not(
    faulty: FakePods, api: FakeApi, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Container runtimes make the directories that are mounted into a container, also those that were just removed."""
    monkeypatch.setattr(pods, "SETTLE_TIMEOUT", NEVER)
    runtime = await faulty.begun()
    await eventually(lambda: NAME in api.pods)
    await runtime.stop("k.1", 1)
    await faulty.until("k.1", Phase.EXITED)
    asked = api.verbs.count("delete")
    removing = asyncio.create_task(runtime.remove("k.1"))
    await eventually(lambda: api.verbs.count("delete") > asked)

    def reason() -> str:
        pod = runtime._watched.get("k.1")  # noqa: SLF001
        return "" if pod is None else pod.reason

    # What kubelet says else changes nothing.
    api.set_status(NAME, phase="Pending", reason="other")
    await eventually(lambda: reason() == "other")
    assert await asyncio.to_thread((place.directory / "scratch/k.1").exists)
    assert (removing.done(), "patch" in api.verbs) == (False, False)
    api.set_status(NAME, phase="Failed")
    await removing
    assert not api.pods
    assert not (place.directory / "scratch/k.1").exists()


async def test_a_pod_whose_status_makes_no_sense_can_be_removed(faulty: FakePods, api: FakeApi) -> None:
    runtime = await faulty.begun()
    await eventually(lambda: NAME in api.pods)
    api.set_status(NAME, phase={"?": []})
    await runtime.stop("k.1", 1)
    await faulty.until("k.1", Phase.EXITED)
    await runtime.remove("k.1")
    assert not api.pods


async def test_a_kernel_whose_pod_is_gone_keeps_what_it_has_until_its_process_ends(
    faulty: FakePods, api: FakeApi, place: Place
) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "infinity")
    try:
        init = identify(process.pid)
        assert init is not None
        records = Records(place.directory / "state/kubernetes/attempts")
        records.load()
        record = Record("k.1", "session", "k", "this-boot", init=init, phase=Phase.RUNNING, start_time=1.0, gpus=("g",))
        assert records.add(record)
        labels = {"retinue.io/agent": place.agent_id, "retinue.io/attempt": "k.1"}
        api.add({"metadata": {"name": NAME, "labels": labels}, "status": {"phase": "Running"}})
        runtime = await faulty.open()
        for _ in range(2):
            # Its end is seen by the watch, and once more by the list of the next agent.
            api.pods.pop(NAME, None)
            api.add({"metadata": {"name": "retinue-j.1", "labels": labels | {"retinue.io/attempt": "j.1"}}})
            api.drop("retinue-j.1")
            runtime = await faulty.open()
            assert runtime.observe()["k.1"].phase is Phase.RUNNING
            assert faulty.shared.holdings.gpus_of("k.1") == ("g",)
        os.kill(init.pid, signal.SIGKILL)
        await process.wait()
        ended = await faulty.until("k.1", Phase.EXITED)
        assert ended.reason in {"KILLED", "EXITED"}, ended
        assert not faulty.shared.holdings.gpus_of("k.1")
        await runtime.remove("k.1")
        assert len(api.verbs) <= MAX_CALLS, api.verbs
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
