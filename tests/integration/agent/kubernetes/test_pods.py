"""Pods of a real cluster pass the suite that every runtime passes, and are lost and run twice by nothing that
happens to the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest
from lightkube.core.generic_client import GenericAsyncClient

from retinue.agent.attempts import Mount, Owner, Phase, PullPolicy
from retinue.agent.docker.core.image_labels import CORE_VARIABLES, MIN_SLOTS, SERVICE_PORTS
from retinue.agent.kubernetes.cluster import Cluster, ClusterUnavailableError
from retinue.agent.kubernetes.core.pod_spec import SHARED, TEMPORARY, fetch_id, pod_name
from retinue.agent.kubernetes.runtime_images import NO_LAYERS
from tests.integration.agent.docker import accounts
from tests.integration.agent.docker.made_images import Repository, configuration, layer
from tests.integration.agent.docker.registry import Registry
from tests.integration.agent.foreign_files import FOUND, OWNER, SCRIPT, made_by, make_files
from tests.integration.agent.kubernetes.kube_files import NAMESPACE, image_archive
from tests.integration.agent.opened import HOSTS
from tests.support.directories_contract import *  # noqa: F403  # the tests
from tests.support.eventually import NEVER, eventually
from tests.support.runtime_contract import *  # noqa: F403  # the tests
from tests.support.runtime_contract import held, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from httpx2 import Request
    from lightkube.resources.core_v1 import Pod

    from retinue.agent.kubernetes.core.pod_state import PodState
    from tests.integration.agent.kubernetes.conftest import KubePods

NAME = pod_name("k.1")
UNTIL_RELEASED = ("sh", "-c", "echo on; until [ -e go ]; do sleep 0.05; done; exit 9")


@pytest.fixture
def harness(pods: KubePods, patient: None) -> KubePods:
    del patient
    return pods


@contextlib.contextmanager
def standing_still(pods: KubePods, name: str) -> Iterator[None]:
    pods.cluster.signal(name, signal.SIGSTOP)
    try:
        yield
    finally:
        pods.cluster.signal(name, signal.SIGCONT)


def go(pods: KubePods) -> None:
    (pods.place.directory / "scratch/k.1/go").touch()


async def test_a_pod_has_no_network_of_the_cluster_no_account_and_no_rights(pods: KubePods) -> None:
    script = (
        "ls /sys/class/net; cat /etc/hosts /etc/resolv.conf; id -u; grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; "
        "ls /var/run/secrets; echo $(echo $HOME); ls -d /tmp/x /dev/shm; cat /proc/1/environ; grep -c . /proc/net/route"
    )
    observed, printed = await pods.ran(pods.spec("k", "sh", "-c", script, environment={"A": "$(HOME)"}))
    assert observed.exit_code == 0
    lines = printed.splitlines()
    assert lines[0] == "lo"
    assert lines[1:3] == ["127.0.0.1\tlocalhost", "10.1.2.3\tsub1"]
    assert {"CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "/home/work", SHARED} <= set(lines)
    assert "KUBERNETES_" not in printed
    assert "No such file" in next(line for line in lines if "secrets" in line)
    assert not pods.left()


async def test_a_pod_requests_and_is_limited_to_its_slots(pods: KubePods) -> None:
    """The cluster counts it, and its node offers what the cluster leaves."""
    runtime = await pods.open()
    await eventually(lambda: runtime.capacity is not None)
    assert runtime.capacity is not None
    assert runtime.capacity["disk"] > 1 << 30
    slots = {"cpu": 100, "mem": 64 << 20, "disk": 1 << 30}
    await pods.started(pods.spec("k", "sleep", "1000", slots=slots))
    asked, limited = await asyncio.to_thread(pods.cluster.resources, NAME)
    assert asked == limited
    assert limited["ephemeral-storage"] == str(1 << 30)


async def test_only_agents_make_pods_beside_kernels(pods: KubePods) -> None:
    await held(pods, "true")
    for user, why in (("other", "only agents"), ("agent", "no privileges")):
        refused = pods.cluster.refused(user)
        assert why in refused, refused
    for namespace in ("default", "retinue"):
        # Nor has the agent any other right.
        assert "forbidden" in pods.cluster.refused("agent", namespace)


async def test_an_end_is_seen_without_the_api(pods: KubePods) -> None:
    runtime, _ = await running(pods, *UNTIL_RELEASED)
    with standing_still(pods, "api"):
        go(pods)
        ended = await pods.until("k.1", Phase.EXITED)
        assert (ended.exit_code, ended.reason) == (9, "EXITED")
    await runtime.remove("k.1")
    assert not pods.left()


async def test_a_kernel_outlives_kubelet_and_the_api(pods: KubePods) -> None:
    runtime, _ = await running(pods, *UNTIL_RELEASED)
    for name in ("kubelet", "api"):
        pods.cluster.end(name)
    try:
        runtime = await pods.open_anyhow()
        assert runtime.observe()["k.1"].phase is Phase.RUNNING
        go(pods)
        assert (await pods.until("k.1", Phase.EXITED)).exit_code == 9
    finally:
        await asyncio.to_thread(pods.cluster.start_api)
        pods.cluster.start_program("kubelet")
    await eventually(lambda: runtime.statuses[0].available)
    await runtime.remove("k.1")
    await eventually(lambda: not pods.left())


async def test_a_lost_answer_makes_no_second_pod(pods: KubePods, monkeypatch: pytest.MonkeyPatch) -> None:
    create, asked = Cluster.create, 0

    async def lost(cluster: Cluster, pod: Pod) -> PodState:
        nonlocal asked
        asked += 1
        found = await create(cluster, pod)
        if asked == 1:
            raise ClusterUnavailableError("the connection broke")
        return found

    monkeypatch.setattr(Cluster, "create", lost)
    runtime = await held(pods, "echo", "once")
    assert (asked, pods.cluster.pods()) == (2, {NAME})
    assert runtime.observe()["k.1"].phase is Phase.CREATED
    await runtime.start("k.1")
    await pods.until("k.1", Phase.EXITED)
    assert pods.printed("k.1") == "once\n"


@pytest.mark.parametrize("after", ["record", "create"])
async def test_an_agent_that_dies_while_it_creates_leaves_nothing(
    pods: KubePods, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    create, reached = Cluster.create, asyncio.Event()

    async def hangs(cluster: Cluster, pod: Pod) -> PodState:
        if after == "create":
            await create(cluster, pod)
        reached.set()
        return await asyncio.Future()

    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "create", hangs)
        runtime = await pods.open()
        await runtime.prepare(pods.spec("k", "echo", "once"), HOSTS)
        await reached.wait()
        await runtime.close()
        pods.current = None
    runtime = await pods.open()
    ended = await pods.until("k.1", Phase.FAILED)
    assert (ended.reason, ended.message) == ("START_FAILED", "the agent ended while it was being created")
    await runtime.prepare(pods.spec("k", "echo", "once"), HOSTS)
    assert pods.printed("k.1") == ""
    await runtime.remove("k.1")
    await eventually(lambda: not pods.left())


async def test_a_lost_record_is_rebuilt_from_the_pod(pods: KubePods) -> None:
    runtime, _ = await running(pods, *UNTIL_RELEASED)
    await runtime.close()
    pods.current = None
    for directory in ("attempts.copies/k.1.json", "attempts/k.1/record.json"):
        (pods.place.directory / "state/kubernetes" / directory).unlink()
    runtime = await pods.open()
    found = runtime.observe()["k.1"]
    assert (found.phase, found.rebuilt) == (Phase.RUNNING, True)
    go(pods)
    assert (await pods.until("k.1", Phase.EXITED)).exit_code == 9


@pytest.mark.usefixtures("patient")
async def test_a_pod_that_is_deleted_by_others_is_evicted(pods: KubePods) -> None:
    runtime, _ = await running(pods, "sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.1; done")
    pods.cluster.delete(NAME)
    ended = await pods.until("k.1", Phase.EXITED)
    assert ended.reason == "EVICTED"
    await runtime.remove("k.1")
    assert not pods.left()


@pytest.mark.usefixtures("patient")
async def test_a_killed_kernel_is_distinguished_from_one_without_memory(pods: KubePods) -> None:
    observed, _ = await pods.ran(pods.spec("k", "sh", "-c", "x=x; while :; do x=$x$x; done"))
    assert (observed.reason, observed.memory_kills) == ("OOM_KILLED", 1)
    runtime = await pods.held(pods.spec("j", "sleep", "1000"))
    await runtime.start("j.1")
    target = runtime.kernel("j.1").fence_target()
    assert target is not None
    os.kill(target.process.pid, signal.SIGKILL)
    ended = await pods.until("j.1", Phase.EXITED)
    assert (ended.reason, ended.exit_code) == ("ENGINE_STOPPED", 137)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"image": "registry.invalid/UPPER"}, "IMAGE_INVALID"),
        ({"slots": {"cpu": 1_000_000, "mem": 64 << 20}}, "NODE_REFUSED"),
        ({"hostname": "not a name"}, "START_FAILED"),
    ],
)
async def test_what_cannot_run_fails_in_words(pods: KubePods, values: dict[str, object], reason: str) -> None:
    runtime = await pods.open()
    await runtime.prepare(pods.spec("k", "true", **values), HOSTS)
    failed = await pods.until("k.1", Phase.FAILED)
    assert failed.reason == reason, failed.message
    assert failed.message
    await runtime.remove("k.1")
    assert not pods.left()


async def test_a_start_is_given_up_when_it_is_stopped(pods: KubePods) -> None:
    runtime = await pods.open()
    with standing_still(pods, "kubelet"):
        await runtime.prepare(pods.spec("k", "true"), HOSTS)
        await eventually(lambda: pods.cluster.pods() == {NAME})
        await runtime.stop("k.1", NEVER)
        stopped = await pods.until("k.1", Phase.EXITED)
        assert stopped.reason == "STOPPED"
    await runtime.remove("k.1")
    await eventually(lambda: not pods.left())


async def test_a_deletion_is_of_one_pod_only(pods: KubePods) -> None:
    await held(pods, "true")
    others = Cluster(pods.cluster.config, NAMESPACE)
    try:
        assert not await others.delete(NAME, "another")
        found = await others.get(NAME)
    finally:
        await others.close()
    assert found is not None
    assert not found.deleted


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the API that are made, without those that follow what is there."""
    calls: list[str] = []
    send = GenericAsyncClient.send

    async def counted(client: GenericAsyncClient, request: Request, stream: bool = False) -> object:
        if request.method != "GET" or "/pods/" in request.url.path:
            calls.append(request.method)
        return await send(client, request, stream)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(GenericAsyncClient, "send", counted)
    return calls


@pytest.mark.usefixtures("patient")
async def test_an_attempt_takes_few_calls(pods: KubePods, calls: list[str]) -> None:
    await pods.ran(pods.spec("k", "true"))
    assert calls == ["POST", "DELETE", "PATCH"]


@pytest.mark.usefixtures("patient")
async def test_an_image_that_does_not_fit_fails_once_and_in_words(pods: KubePods) -> None:
    images, base = pods.place.directory / "images", layer({}, ["bin/sh"])
    foreign = "arm64" if os.uname().machine == "x86_64" else "amd64"
    with (
        Registry(pods.place.directory / "here", images=images) as here,
        Registry(pods.place.directory / "there", images=images, namespace=pods.cluster.namespace) as there,
    ):
        repository = Repository(here.address, "odd")
        await eventually(repository.answers)
        kinds = ("application/vnd.cncf.helm.config.v1+json", "application/vnd.cncf.helm.chart.content.v1.tar+gzip")
        await asyncio.to_thread(repository.image, "chart", [], b"{}", kinds=kinds, stored=[b"chart"])
        await asyncio.to_thread(repository.image, "foreign", [base], configuration([base], architecture=foreign))
        runtime = await pods.open()
        expected = {
            # By who says it first: kubelet that cannot unpack it, or the container runtime that has it.
            "chart": ("is broken: ", f"cannot be used: {NO_LAYERS}"),
            "foreign": (f"cannot be used: it is for linux/{foreign}, and ",),
        }
        for tag, words in expected.items():
            image = f"{there.address}/odd:{tag}"
            await runtime.prepare(pods.spec(tag, "true", image=image), HOSTS)
            failed = await pods.until(f"{tag}.1", Phase.FAILED)
            assert failed.reason == "IMAGE_INVALID", failed.message
            assert failed.message.startswith(tuple(f"image {image} {each}" for each in words))
            await runtime.remove(f"{tag}.1")


@pytest.mark.usefixtures("patient")
async def test_everyone_writes_to_the_temporary_directory(pods: KubePods) -> None:
    _, output = await pods.ran(pods.spec("k", "stat", "-c", "%a", TEMPORARY, SHARED))
    assert output == "1777\n1777\n"


@pytest.mark.usefixtures("patient")
async def test_an_image_is_fetched_before_its_kernel_is_made(pods: KubePods, calls: list[str]) -> None:
    """It has a user and labels, which the pod of the kernel is made with."""
    settings = {"User": "65000:65001", "Labels": {CORE_VARIABLES: "CORES", SERVICE_PORTS: "web:http:8080"}}
    with Registry(pods.place.directory / "registry", namespace=pods.cluster.namespace) as registry:
        image = f"{registry.address}/owned:1"
        await asyncio.to_thread(pods.cluster.push_image, image, image_archive(image, settings))
        runtime = await pods.open()
        with standing_still(pods, "kubelet"):
            await runtime.prepare(pods.spec("k", "sh", "-c", "id -u; id -g; echo $CORES; pwd", image=image), HOSTS)
            await eventually(lambda: pods.cluster.pods() == {pod_name(fetch_id("k.1"))})
            assert runtime.observe()["k.1"].phase is Phase.PULLING
        created = await pods.until("k.1", Phase.CREATED)
        assert created.image is not None
        assert [port.name for port in created.image.service_ports] == ["web"]
        await runtime.start("k.1")
        await pods.until("k.1", Phase.EXITED)
        assert pods.printed("k.1") == "65000\n65001\n1\n/home/work\n"
        await runtime.remove("k.1")
    # What has fetched it goes, however long that takes.
    await eventually(lambda: not pods.left())
    assert sorted(calls) == ["DELETE", "DELETE", "PATCH", "POST", "POST"]


@pytest.mark.usefixtures("patient")
async def test_pull_policies(pods: KubePods) -> None:
    """A tag that has moved is followed where that is asked for, and no registry is asked where that is not."""
    with Registry(pods.place.directory / "registry", namespace=pods.cluster.namespace) as registry:
        image, other = (f"{registry.address}/moving:{tag}" for tag in (1, 2))
        for reference, which in ((image, "first"), (other, "second")):
            archive = image_archive(reference, {"Env": [f"WHICH={which}"]})
            await asyncio.to_thread(pods.cluster.push_image, reference, archive)
        runtime = await pods.open()

        async def ran(name: str, policy: PullPolicy) -> tuple[str, str]:
            spec = pods.spec(name, "sh", "-c", "echo $WHICH", image=image, pull_policy=policy)
            await runtime.prepare(spec, HOSTS)
            held = await pods.until(spec.id, Phase.CREATED, Phase.FAILED)
            if held.phase is Phase.CREATED:
                await runtime.start(spec.id)
                held = await pods.until(spec.id, Phase.EXITED)
            said = pods.printed(spec.id)
            await runtime.remove(spec.id)
            return held.reason, said

        assert await ran("a", PullPolicy.NEVER) == ("IMAGE_NOT_PRESENT", "")
        assert await ran("b", PullPolicy.MISSING) == ("EXITED", "first\n")
        tags = registry.images / "docker/registry/v2/repositories/moving/_manifests/tags"
        await asyncio.to_thread(shutil.rmtree, tags / "1")
        await asyncio.to_thread(shutil.copytree, tags / "2", tags / "1")
        assert await ran("c", PullPolicy.MISSING) == ("EXITED", "first\n")
        assert await ran("d", PullPolicy.NEVER) == ("EXITED", "first\n")
        assert await ran("e", PullPolicy.ALWAYS) == ("EXITED", "second\n")
        assert await ran("f", PullPolicy.NEVER) == ("EXITED", "second\n")
    await eventually(lambda: not pods.left())


async def test_a_fetch_is_given_up_when_its_attempt_is_stopped(pods: KubePods) -> None:
    runtime = await pods.open()
    fetching = pod_name(fetch_id("k.1"))
    with standing_still(pods, "kubelet"):
        await runtime.prepare(pods.spec("k", "true", image="docker.io/retinue-test/absent:1"), HOSTS)
        await eventually(lambda: pods.cluster.pods() == {fetching})
        # The next agent begins again, with a pod of its own.
        runtime = await pods.open()
        assert runtime.observe()["k.1"].phase is Phase.WAITING
        assert not pods.cluster.pods()
        await runtime.prepare(pods.spec("k", "true", image="docker.io/retinue-test/absent:1"), HOSTS)
        await eventually(lambda: pods.cluster.pods() == {fetching})
        await runtime.stop("k.1", NEVER)
        stopped = await pods.until("k.1", Phase.EXITED)
        assert stopped.reason == "STOPPED"
        await eventually(lambda: not pods.cluster.pods())
    await runtime.remove("k.1")
    assert not pods.left()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"Labels": {MIN_SLOTS: "cpu=64"}}, "IMAGE_NEEDS_MORE"),
        ({"User": "nobody"}, "START_FAILED"),
        ({"User": "?"}, "IMAGE_INVALID"),
    ],
)
async def test_what_an_image_says_of_itself_may_bar_it(
    pods: KubePods, settings: dict[str, object], reason: str
) -> None:
    image = f"docker.io/retinue-test/{reason.lower()}:1"
    await asyncio.to_thread(pods.cluster.import_image, image_archive(image, settings))
    runtime = await pods.open()
    await runtime.prepare(pods.spec("k", "true", image=image), HOSTS)
    failed = await pods.until("k.1", Phase.FAILED)
    assert failed.reason == reason, failed.message
    await runtime.remove("k.1")
    assert not pods.left()


@pytest.mark.usefixtures("patient")
async def test_numbers_of_an_image_mean_nothing_in_a_mount(
    pods: KubePods, tmp_path_factory: pytest.TempPathFactory, untranslated: Path
) -> None:
    """Kubelet puts a user into the groups that the image has for it, also one that the agent names."""
    image, owner = "docker.io/retinue-test/numbers:1", Owner(1234, 1500)
    files = {"etc/passwd": accounts.USERS, "etc/group": accounts.GROUPS}
    await asyncio.to_thread(pods.cluster.import_image, image_archive(image, {"User": "1234"}, files))
    shared = make_files(tmp_path_factory.mktemp("shared"))
    mounts = (Mount(str(shared), "", "/data", writable=True),)
    _, output = await pods.ran(pods.spec("k", "sh", "-c", SCRIPT, image=image, mounts=mounts))
    assert output.splitlines() == FOUND
    assert made_by(shared) == {OWNER}
    # As the owner of what has no map it would have these groups in earnest.
    mounts = (Mount(str(make_files(untranslated, owner)), "", "/data", owner=owner),)
    runtime = await pods.open()
    await runtime.prepare(pods.spec("l", "true", image=image, mounts=mounts), HOSTS)
    failed = await pods.until("l.1", Phase.FAILED)
    assert (failed.reason, "puts its user in further groups" in failed.message) == ("MOUNT_REFUSED", True), failed
    await runtime.remove("l.1")
    await eventually(lambda: not pods.left())
