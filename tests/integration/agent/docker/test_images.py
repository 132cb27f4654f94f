"""Images: fetched once from a registry, with progress and credentials, broken off, taken up again,
refused for good, read.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import docker.errors
import pytest

from retinue.agent.attempts import ImageIdentity, Phase, ServicePort
from retinue.agent.docker import images as docker_images
from retinue.agent.docker import starting
from retinue.agent.docker.engine import Engine
from retinue.agent.docker.images import ImageError, Images
from retinue.agent.docker.registry_addresses import RegistryAddresses
from tests.integration.agent.docker.containers import contract
from tests.integration.agent.docker.engine import IMAGE, TestEngine
from tests.integration.agent.docker.registry import PASSWORD, USER, Registry, StallingProxy, make_image
from tests.integration.agent.opened import HOSTS
from tests.integration.agent.runtime.conftest import Contract, Kind
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from retinue.agent.attempts import ObservedAttempt
    from retinue.agent.runtime.contract import Runtime
    from tests.integration.agent.conftest import Place

__all__ = ["contract"]

BIG = "retinue-test/big:1"
BALLAST = 8 << 20
NOTHING = ImageIdentity()
LOOPBACK = RegistryAddresses(("127.0.0.0/8",))


@pytest.fixture(scope="module")
def registry(engine: TestEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with Registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_images, "PAUSES", (0.01, 0.01))


@pytest.fixture
def fetched(engine: TestEngine) -> Iterator[list[str]]:
    """References a test has fetched: removed at its end."""
    references: list[str] = []
    yield references
    client = engine.client()
    for reference in references:
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.remove_image(reference, force=True)
    client.close()


def has(engine: TestEngine, reference: str) -> bool:
    client = engine.client()
    try:
        client.inspect_image(reference)
    except docker.errors.ImageNotFound:
        return False
    finally:
        client.close()
    return True


async def ended(contract: Contract, attempt_id: str) -> ObservedAttempt:
    backend = contract.current
    assert backend is not None
    await eventually(lambda: backend.observe()[attempt_id].phase.ended)
    return backend.observe()[attempt_id]


async def test_image_that_is_nowhere(contract: Contract, registry: Registry, engine: TestEngine) -> None:
    registry.push(engine, IMAGE, "known")
    backend = await contract.open()
    expected = {
        # Nothing listens there: that may be temporary, and was tried again.
        "k1": ("127.0.0.1:1/no/such:image", "IMAGE_PULL_FAILED"),
        "k2": (f"{registry.address}/known:other", "IMAGE_NOT_FOUND"),
        "k3": (f"{registry.address}/unknown:1", "IMAGE_NOT_FOUND"),
    }
    for name, (image, _) in expected.items():
        await backend.prepare(contract.spec(name, "true", image=image), HOSTS)
    for name, (image, reason) in expected.items():
        observed = await ended(contract, f"{name}.1")
        assert (observed.phase, observed.reason, observed.exit_code) == (Phase.FAILED, reason, None), observed
        assert image in observed.message
        assert not any(word in observed.message for word in ("refused", "dial", "127.0.0.1:1/v2", "manifest"))
        await backend.remove(f"{name}.1")
    assert not contract.left()


@pytest.mark.attack("moved-tags")
async def test_fetched_and_pinned(
    contract: Contract, engine: TestEngine, registry: Registry, fetched: list[str]
) -> None:
    reference = registry.push(engine, IMAGE, "some/image")
    fetched.append(reference)
    backend = await contract.open()

    async def run(name: str, image: str, identity: ImageIdentity = NOTHING) -> ImageIdentity:
        await backend.prepare(contract.spec(name, "echo", "here", image=image, image_identity=identity), HOSTS)
        await eventually(lambda: backend.observe()[f"{name}.1"].phase is Phase.CREATED)
        await backend.start(f"{name}.1")
        observed = await contract.until(f"{name}.1", Phase.EXITED)
        assert (observed.exit_code, contract.printed(f"{name}.1")) == (0, "here\n")
        assert observed.image is not None
        await backend.remove(f"{name}.1")
        return observed.image.identity

    first = await run("k1", reference)
    assert first.digest.startswith("sha256:")
    assert first.id.startswith("sha256:")
    # The tag moves on: what was pinned is fetched and run nevertheless, by its digest.
    client = engine.client()
    client.remove_image(reference)
    client.close()
    other = make_image(engine, "retinue-test/other:1", labels={"other": "1"})
    fetched.append(other)
    assert registry.push(engine, other, "some/image") == reference
    assert (await run("k2", reference, ImageIdentity(first.digest))) == first
    fetched.append(f"{reference.rpartition(':')[0]}@{first.digest}")
    assert (await run("k3", reference)).digest != first.digest
    # An image from no registry is known by its id.
    local = await run("k4", IMAGE)
    assert local.id == first.id
    assert await run("k5", IMAGE, ImageIdentity("", first.id))
    await backend.prepare(
        contract.spec("k6", image=other, image_identity=ImageIdentity("", "sha256:" + "0" * 64)), HOSTS
    )
    assert (await ended(contract, "k6.1")).reason == "IMAGE_DIFFERS"
    await backend.remove("k6.1")


async def test_fetched_once_for_all_who_wait_and_broken_off_with_the_last(
    contract: Contract, engine: TestEngine, registry: Registry, fetched: list[str]
) -> None:
    make_image(engine, BIG, size=BALLAST)
    fetched.append(BIG)
    registry.push(engine, BIG, "big")
    client = engine.client()
    client.remove_image(BIG)
    client.close()
    fetched.clear()
    async with StallingProxy(registry.port, shut_after=BALLAST // 2) as proxy:
        reference = f"{proxy.address}/big:1"
        backend = await contract.open()
        for name in ("k1", "k2", "k3"):
            await backend.prepare(contract.spec(name, "true", image=reference), HOSTS)
        assert {attempt.phase for attempt in backend.observe().values()} == {Phase.PULLING}
        await proxy.stalled.wait()
        await eventually(lambda: all(attempt.layers for attempt in backend.observe().values()))
        # One of them is not wanted any more; the others wait on. Kernels that wait hold up no others.
        await backend.stop("k1.1", NEVER)
        observed = backend.observe()["k1.1"]
        assert (observed.phase, observed.reason) == (Phase.EXITED, "STOPPED")
        await contract.held(contract.spec("other", "true"))
        # An agent that restarts continues, asked again; what only waited for an image was never started.
        await backend.close()
        backend = await contract.open()
        assert {name: backend.observe()[f"{name}.1"].phase for name in ("k2", "k3")} == {
            "k2": Phase.WAITING,
            "k3": Phase.WAITING,
        }
        await backend.stop("k3.1", NEVER)
        await backend.prepare(contract.spec("k2", "true", image=reference), HOSTS)
        assert backend.observe()["k2.1"].phase is Phase.PULLING
        await backend.stop("k2.1", NEVER)
        # With the last one that waits, the engine is asked to stop: what comes after that is not taken.
        proxy.open()
        await eventually(lambda: proxy.connections == 0)
        assert not has(engine, reference)
        fetched.append(reference)
        await backend.prepare(contract.spec("k4", "true", image=reference), HOSTS)
        await eventually(lambda: backend.observe()["k4.1"].phase is Phase.CREATED)
        assert not backend.observe()["k4.1"].layers


async def test_registry_that_dies_meanwhile(contract: Contract, engine: TestEngine, registry: Registry) -> None:
    make_image(engine, BIG, size=BALLAST)
    registry.push(engine, BIG, "big")
    client = engine.client()
    client.remove_image(BIG)
    client.close()
    backend = await contract.open()
    async with StallingProxy(registry.port, shut_after=BALLAST // 2) as proxy:
        await backend.prepare(contract.spec("k", "true", image=f"{proxy.address}/big:1"), HOSTS)
        await proxy.stalled.wait()
    observed = await ended(contract, "k.1")
    assert (observed.phase, observed.reason) == (Phase.FAILED, "IMAGE_PULL_FAILED")
    await backend.remove("k.1")
    assert not contract.left()


def phases(backend: Runtime) -> dict[str, Phase]:
    return {name: attempt.phase for name, attempt in backend.observe().items()}


async def test_engine_that_is_killed_meanwhile(
    place: Place, engine: TestEngine, own_engine: TestEngine, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetch is taken up again once it answers; of two agents on it, each continues with its own."""
    make_image(engine, BIG, size=BALLAST)
    registry.push(engine, BIG, "big")
    # Until it answers, however long that takes.
    monkeypatch.setattr(docker_images, "PAUSES", (0.2,) * round(NEVER / 0.2))
    contracts = [
        Contract(
            replace(place, agent_id=f"{place.agent_id}{name}", directory=place.directory / name),
            Kind("docker", BIG, "docker/attempts", own_engine),
        )
        for name in ("a", "b")
    ]
    try:
        backends = [await contract.open() for contract in contracts]
        async with StallingProxy(registry.port, shut_after=BALLAST // 2) as proxy:
            for backend, contract, name in zip(backends, contracts, ("k1", "k2"), strict=True):
                await backend.prepare(contract.spec(name, "true", image=f"{proxy.address}/big:1"), HOSTS)
            await proxy.stalled.wait()
            own_engine.end(signal.SIGKILL)
            proxy.open()
            own_engine.start()
            await eventually(
                lambda: [set(phases(backend).values()) for backend in backends] == [{Phase.CREATED}, {Phase.CREATED}]
            )
        await backends[0].close()
        backends[0] = await contracts[0].open()
        assert [phases(backend) for backend in backends] == [{"k1.1": Phase.CREATED}, {"k2.1": Phase.CREATED}]
        for backend, name in zip(backends, ("k1.1", "k2.1"), strict=True):
            await backend.stop(name, 0)
            await backend.kill(name)
        await eventually(lambda: all(phase.ended for backend in backends for phase in phases(backend).values()))
    finally:
        for contract in contracts:
            if contract.current is not None:
                await contract.current.close()
            own_engine.remove_containers(contract.place.agent_id)


async def test_credentials(contract: Contract, engine: TestEngine, tmp_path: Path, fetched: list[str]) -> None:
    """They come from a file of the node, read each time, and show up in nothing."""
    secrets = tmp_path / "config.json"

    def grant(password: str) -> None:
        login = base64.b64encode(f"{USER}:{password}".encode()).decode()
        secrets.write_text(json.dumps({"auths": {f"http://{closed.address}/v1/": {"auth": login}}}))

    with Registry(tmp_path / "closed", closed=True) as closed:
        reference = closed.push(engine, IMAGE, "private")
        engine_side = Engine(engine.host)
        images = Images(engine_side, secrets, LOOPBACK)
        try:
            for password in (None, "wrong"):
                if password is not None:
                    grant(password)
                with pytest.raises(ImageError) as refused:
                    await images.fetch(reference, NOTHING, lambda _: None)
                assert refused.value.reason == "IMAGE_DENIED"
            grant(PASSWORD)
            await images.fetch(reference, NOTHING, lambda _: None)
            fetched.append(reference)
            secrets.write_text(f'{{"auths": {{"{closed.address}": "{PASSWORD}"}}}}')
            with pytest.raises(ImageError) as unreadable:
                await images.fetch(f"{reference}x", NOTHING, lambda _: None)
            assert PASSWORD not in str(unreadable.value)
        finally:
            await images.close()
            await engine_side.close()


_HELPER = """#!/bin/sh
read -r registry
echo "$1 $registry" >> {directory}/asked
while test -e {directory}/hang; do sleep 0.1; done
test "$registry" = {known} || {{ echo "credentials not found in native keychain"; exit 1; }}
cat {directory}/answer
"""


@pytest.mark.parametrize("member", ["credHelpers", "credsStore"])
async def test_credentials_of_a_program(
    member: str, engine: TestEngine, tmp_path: Path, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that Docker's configuration names is asked at each fetch, in the way that Docker asks it."""
    secrets, helper, answer = tmp_path / "config.json", tmp_path / "docker-credential-test", tmp_path / "answer"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with Registry(tmp_path / "closed", closed=True) as closed, Registry(tmp_path / "open") as opened:
        # The entry is what `docker login` leaves where a program keeps the password.
        named = {"credHelpers": {closed.address: "test"}, "credsStore": "test"}
        secrets.write_text(json.dumps({"auths": {closed.address: {}}, member: named[member]}))
        references = [closed.push(engine, IMAGE, "private"), opened.push(engine, IMAGE, "public")]
        engine_side = Engine(engine.host)
        images = Images(engine_side, secrets, LOOPBACK)

        async def refusal() -> str:
            with pytest.raises(ImageError) as refused:
                await images.fetch(references[0], NOTHING, lambda _: None)
            return refused.value.reason

        try:
            # There is no such program yet.
            assert await refusal() == "IMAGE_PULL_FAILED"
            helper.write_text(_HELPER.format(directory=tmp_path, known=closed.address))
            helper.chmod(0o755)
            answer.write_text("no JSON")
            assert await refusal() == "IMAGE_PULL_FAILED"
            answer.write_text(json.dumps({"ServerURL": closed.address, "Username": USER, "Secret": "former"}))
            assert await refusal() == "IMAGE_DENIED"
            answer.write_text(json.dumps({"ServerURL": closed.address, "Username": USER, "Secret": PASSWORD}))
            for reference in references:
                await images.fetch(reference, NOTHING, lambda _: None)
                fetched.append(reference)
            asked = set((tmp_path / "asked").read_text().splitlines())
            assert asked == {f"get {closed.address}"} | ({f"get {opened.address}"} if member == "credsStore" else set())
            # One that hangs costs a try, not the node.
            monkeypatch.setattr(docker_images, "HELPER_TIMEOUT", 0.05)
            hang = tmp_path / "hang"
            hang.touch()
            assert await refusal() == "IMAGE_PULL_FAILED"
            hang.unlink()
        finally:
            await images.close()
            await engine_side.close()


async def test_what_is_here_by_the_right_of_others_is_asked_for_again(
    engine: TestEngine, tmp_path: Path, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image of a registry that takes credentials is used with the credentials that there are now,
    wherever it lies.
    """
    secrets = tmp_path / "config.json"
    monkeypatch.setattr(docker_images, "FRESH", 1e9)
    with Registry(tmp_path / "closed", closed=True) as closed:
        reference = closed.push(engine, IMAGE, "private")
        engine_side = Engine(engine.host)
        client = engine.client()
        client.pull(reference, auth_config={"username": USER, "password": PASSWORD})
        client.close()
        fetched.append(reference)

        def grant(password: str) -> None:
            login = base64.b64encode(f"{USER}:{password}".encode()).decode()
            secrets.write_text(json.dumps({"auths": {closed.address: {"auth": login}}}))

        images = Images(engine_side, secrets, LOOPBACK)
        try:
            grant("former")
            assert await images.find(reference, NOTHING) is None
            with pytest.raises(ImageError) as refused:
                await images.fetch(reference, NOTHING, lambda _: None)
            assert refused.value.reason == "IMAGE_DENIED"
            grant(PASSWORD)
            found = await images.fetch(reference, NOTHING, lambda _: None)
            # For a while, and for this image as it is.
            assert await images.find(reference, NOTHING) == found
            assert await images.find(f"{reference}x", NOTHING) is None
            monkeypatch.setattr(docker_images, "FRESH", 0.0)
            assert await images.find(reference, NOTHING) is None
            secrets.unlink()
            assert await images.find(reference, NOTHING) == found
        finally:
            await images.close()
            await engine_side.close()


async def test_an_id_is_no_name(contract: Contract, engine: TestEngine) -> None:
    """Whatever else is on the node cannot be had by its number."""
    engine_side = Engine(engine.host)
    images = Images(engine_side)
    try:
        there = await images.find(IMAGE, NOTHING)
        assert there is not None
        identifier = there.identity.id
        for name in (identifier, identifier.partition(":")[2], identifier.partition(":")[2][:12]):
            assert await engine_side.image(name) is not None
            assert await images.find(name, NOTHING) is None
        assert await images.find(f"docker.io/{IMAGE}", NOTHING) == there
        # What an agent advertised to the manager, it may ask for.
        assert await images.find(IMAGE, ImageIdentity("", identifier)) == there
    finally:
        await images.close()
        await engine_side.close()


@pytest.mark.attack("registries-on-the-node")
async def test_a_registry_on_the_node_itself_is_not_connected_to(engine: TestEngine, registry: Registry) -> None:
    reference = registry.push(engine, IMAGE, "inner")
    engine_side = Engine(engine.host)
    images = Images(engine_side)
    try:
        for name in (
            reference,
            reference.replace("127.0.0.1", "localhost"),
            reference.replace("127.0.0.1", "2130706433"),
        ):
            with pytest.raises(ImageError) as refused:
                await images.fetch(name, NOTHING, lambda _: None)
            assert refused.value.reason == "IMAGE_DENIED"
            assert str(refused.value) == f"image {name} is not fetched: its registry is not allowed here"
        # Nothing connects, whatever listens there.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            port = listener.getsockname()[1]
            for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1"):
                with pytest.raises(ImageError) as refused:
                    await images.fetch(f"{host}:{port}/inner:1", NOTHING, lambda _: None)
                assert refused.value.reason == "IMAGE_DENIED"
            with pytest.raises(BlockingIOError):
                listener.accept()
    finally:
        await images.close()
        await engine_side.close()


async def test_labels(contract: Contract, engine: TestEngine, fetched: list[str]) -> None:
    labels = {
        "ai.backend.resource.min.cpu": "1",
        "ai.backend.resource.min.mem": "128m",
        "ai.backend.resource.min.cuda.device": "0",
        "ai.backend.resource.preferred.shmem": "16m",
        "ai.backend.service-ports": "ipython:pty:3000,jupyter:http:8081,multi:tcp:[9000,9001]",
        "ai.backend.envs.corecount": "OMP_NUM_THREADS,NPROC",
    }
    image = make_image(engine, "retinue-test/labelled:1", labels=labels)
    fetched.append(image)
    command = ("sh", "-c", "echo $OMP_NUM_THREADS $NPROC; stat -f -c '%b %S' /dev/shm")
    backend = await contract.held(
        contract.spec("k1", *command, image=image, slots={"cpu": 1500, "mem": 256 << 20}, environment={"NPROC": "7"})
    )
    await backend.start("k1.1")
    observed = await contract.until("k1.1", Phase.EXITED)
    first, second = contract.printed("k1.1").splitlines()
    blocks, size = map(int, second.split())
    assert (first, blocks * size) == ("2 7", 16 << 20)
    assert observed.image is not None
    assert observed.image.service_ports == (
        ServicePort("jupyter", "http", (8081,)),
        ServicePort("multi", "tcp", (9000, 9001)),
    )
    await backend.prepare(contract.spec("k2", image=image, slots={"cpu": 500, "mem": 64 << 20}), HOSTS)
    observed = backend.observe()["k2.1"]
    assert (observed.phase, observed.reason) == (Phase.FAILED, "IMAGE_NEEDS_MORE")
    assert "cpu=1, mem=128m" in observed.message
    bad = make_image(engine, "retinue-test/bad-label:1", labels={"retinue.service-ports": "nonsense"})
    fetched.append(bad)
    await backend.prepare(contract.spec("k3", image=bad), HOSTS)
    assert backend.observe()["k3.1"].reason == "IMAGE_INVALID"


@pytest.mark.parametrize("step", ["fetch", "start"])
async def test_an_unexpected_error_ends_the_attempt(
    contract: Contract, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be held in its phase until its start timeout, on this node as on the next."""

    def fail(*_: object) -> None:
        raise LookupError("odd")

    backend = await contract.open()
    if step == "fetch":
        monkeypatch.setattr(docker_images.Images, "fetch", fail)
    else:
        monkeypatch.setattr(starting, "fitted", fail)
    image = "registry.test/not-there:1" if step == "fetch" else IMAGE
    await backend.prepare(contract.spec("k", "true", image=image), HOSTS)
    observed = await ended(contract, "k.1")
    assert (observed.phase, observed.reason) == (Phase.FAILED, "START_FAILED")
    assert observed.message == "it could not be started; the agent's log says more"
    await backend.remove("k.1")
    assert not contract.left()


async def test_nothing_waits_for_a_registry_that_is_silent(contract: Contract, registry: Registry) -> None:
    """No caller waits for a pull in which the engine still waits."""
    backend = await contract.open()
    async with StallingProxy(registry.port, shut_after=1) as proxy:
        await backend.prepare(contract.spec("k", "true", image=f"{proxy.address}/silent:1"), HOSTS)
        await proxy.stalled.wait()
        await backend.stop("k.1", 0)
        assert backend.observe()["k.1"].reason == "STOPPED"
        await eventually(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("fetch ")])
    await backend.remove("k.1")
    assert not contract.left()
