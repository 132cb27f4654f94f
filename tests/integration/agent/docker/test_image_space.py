"""The disk that an engine keeps images on: it is watched, and freed of images that the agent fetched."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import ImageIdentity
from retinue.agent.conditions import Conditions
from retinue.agent.docker import fetched_images
from retinue.agent.docker.core.image_removal import DAY, RemovalPolicy
from retinue.agent.docker.engine import Engine
from retinue.agent.docker.fetched_images import FetchedImages
from retinue.agent.docker.images import Images
from retinue.agent.docker.options import DockerOptions
from retinue.agent.docker.registry_addresses import RegistryAddresses
from retinue.agent.docker.runtime import DockerRuntime
from retinue.agent.host import syscalls
from retinue.agent.runtime.options import Shared
from retinue.agent.state.disk import Disk
from tests.integration.agent.docker.engine import IMAGE, TestEngine, install
from tests.integration.agent.docker.registry import Registry, make_image
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.agent.conftest import Place

NOTHING = ImageIdentity()
LOOPBACK = RegistryAddresses(("127.0.0.0/8",))
ALWAYS = RemovalPolicy(unused_days=3, free_percent=100)
"""Removes what is unused, as no disk is wholly free."""


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000 * DAY

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def small_engine() -> Iterator[TestEngine]:
    """An engine with a disk of its own, which is soon full."""
    install()
    engine = TestEngine()
    data = engine.directory / "data"
    data.mkdir()
    syscalls.mount("tmpfs", str(data), "tmpfs", 0, "size=64m")
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()


async def test_the_disk_of_the_engine_is_watched(
    place: Place, small_engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched_images, "INTERVAL", 0.05)
    options = place.options()
    common = {name: getattr(options, name) for name in ("agent_id", "state_dir", "scratch_dir", "boot_id")}
    options.state_dir.mkdir(parents=True, exist_ok=True)
    conditions = Conditions()
    disk = Disk(options.state_dir, conditions)
    runtime = DockerRuntime(DockerOptions(host=small_engine.host, **common), Shared(disk=disk, conditions=conditions))

    def messages() -> list[str]:
        disk.look()
        return [condition.message for condition in conditions.all()]

    await runtime.open(lambda: None)
    filler = small_engine.directory / "data/filler"
    try:
        assert messages() == []
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        await eventually(lambda: f"the disk of {small_engine.directory}/data is full" in "".join(messages()))
        filler.unlink()
        assert messages() == []
    finally:
        await runtime.close()


async def test_only_unused_images_of_the_agent_are_removed(
    engine: TestEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_side, clock = Engine(engine.host), Clock()
    fetched = FetchedImages(tmp_path, clock)
    images = Images(engine_side, None, LOOPBACK, fetched)
    client = engine.client()

    async def remaining() -> set[str]:
        return {name for name, reference in references.items() if await engine_side.image(reference) is not None}

    async def remove(policy: RemovalPolicy, in_use: set[str] | None = None) -> set[str]:
        await fetched.remove_unused(engine_side, [Path("/")], in_use or set(), policy)
        return await remaining()

    with Registry(tmp_path / "registry") as registry:
        references = {}
        for name in ("used", "held", "tagged", "unused", "manual"):
            made = make_image(engine, f"retinue-test/{name}:1", labels={"name": name})
            references[name] = registry.push(engine, made, name)
            client.remove_image(made)
        try:
            client.pull(references["manual"])
            found = {name: await images.fetch(each, NOTHING, lambda _: None) for name, each in references.items()}
            client.tag(references["tagged"], "retinue-test/mine", "1")
            container = client.create_container(references["held"], ["true"])["Id"]
            everything = set(references)
            # Not for long enough, by a clock of days; not while there is room; not when it is turned off.
            clock.now += 2.9 * DAY
            assert await remove(ALWAYS) == everything
            clock.now += 10 * DAY
            assert await remove(RemovalPolicy(3, 0)) == everything
            assert await remove(RemovalPolicy(0, 100)) == everything
            # A use by a kernel counts, and so does one that an attempt is recorded with.
            assert await remove(ALWAYS, {image.identity.id for image in found.values()}) == everything
            clock.now += 2 * DAY
            assert await images.find(references["used"], NOTHING) is not None
            await fetched.save()
            # As an agent that was started again has it.
            fetched = FetchedImages(tmp_path, clock)
            clock.now += 2 * DAY
            assert await remove(ALWAYS) == everything - {"unused"}
            client.remove_container(container)
            assert await remove(ALWAYS) == everything - {"unused", "held"}
            assert set(fetched.all()) == {found["used"].identity.id, found["tagged"].identity.id}
            # What was removed is fetched again.
            await images.fetch(references["unused"], NOTHING, lambda _: None)
            assert await remaining() == everything - {"held"}
        finally:
            for reference in (*references.values(), "retinue-test/mine:1"):
                with contextlib.suppress(Exception):
                    client.remove_image(reference, force=True)
            client.close()
            await images.close()
            await engine_side.close()


async def test_an_image_whose_tag_moved_on_is_removed_too(engine: TestEngine, tmp_path: Path) -> None:
    engine_side, clock = Engine(engine.host), Clock()
    fetched = FetchedImages(None, clock)
    images = Images(engine_side, None, LOOPBACK, fetched)
    client = engine.client()
    with Registry(tmp_path / "registry") as registry:
        try:
            first = make_image(engine, "retinue-test/first:1", labels={"a": "1"})
            reference = registry.push(engine, first, "moving")
            client.remove_image(first)
            former = (await images.fetch(reference, NOTHING, lambda _: None)).identity.id
            second = make_image(engine, "retinue-test/second:1", labels={"a": "2"})
            client.tag(second, *reference.rsplit(":", 1))
            assert [event for event in client.push(reference, stream=True, decode=True) if "error" in event] == []
            client.tag(IMAGE, *reference.rsplit(":", 1))
            latest = (await images.fetch(reference, NOTHING, lambda _: None)).identity.id
            assert latest != former
            assert set(fetched.all()) == {former, latest}
            clock.now += 2 * DAY
            assert await images.find(reference, NOTHING) is not None
            clock.now += 2 * DAY
            await fetched.remove_unused(engine_side, [Path("/")], set(), ALWAYS)
            assert await engine_side.image(former) is None
            assert await engine_side.image(reference) is not None
        finally:
            for name in (reference, second):
                with contextlib.suppress(Exception):
                    client.remove_image(name, force=True)
            client.close()
            await images.close()
            await engine_side.close()
