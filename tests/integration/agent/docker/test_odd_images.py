"""Images of other builders, and what is no image, in a real registry: each runs, or fails once and in words."""

from __future__ import annotations

import gzip
import logging
import os
import tarfile
from contextlib import suppress
from typing import TYPE_CHECKING

import docker.errors
import pytest

from retinue.agent.attempts import Phase
from retinue.agent.docker import fetch_failures
from retinue.agent.docker import images as docker_images
from tests.integration.agent.docker.containers import contract
from tests.integration.agent.docker.engine import IMAGE
from tests.integration.agent.docker.made_images import (
    OCI_CONFIGURATION,
    OCI_INDEX,
    OCI_MANIFEST,
    Repository,
    configuration,
    descriptor,
    digest_of,
    layer,
)
from tests.integration.agent.docker.registry import Registry
from tests.integration.agent.opened import HOSTS
from tests.support.eventually import NEVER, eventually, eventually_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from retinue.agent.docker.fetch_failures import FetchFailure
    from tests.integration.agent.docker.engine import TestEngine
    from tests.integration.agent.runtime.conftest import Contract

__all__ = ["contract"]

BASE = layer({"etc/passwd": b"root:x:0:0::/:/bin/sh\n"}, ["bin/sh", "bin/busybox"])
OTHER = ("arm64", "aarch64") if os.uname().machine == "x86_64" else ("amd64", "x86_64")
HERE = "amd64" if os.uname().machine == "x86_64" else "arm64"


@pytest.fixture(scope="module")
def registry(engine: TestEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with Registry(tmp_path_factory.mktemp("registry")) as registry:
        # It may be starting.
        eventually_blocking(lambda: Repository(registry.address, "any").answers())
        yield registry


def _artifact(repository: Repository) -> None:
    kinds = ("application/vnd.cncf.helm.config.v1+json", "application/vnd.cncf.helm.chart.content.v1.tar+gzip")
    repository.image("1", [], b'{"name": "chart"}', kinds=kinds, stored=[gzip.compress(BASE)])


def _model(repository: Repository) -> None:
    repository.image("1", [], b"{}", kinds=(OCI_CONFIGURATION, "application/x-gguf"), stored=[b"weights"])


def _corrupt(repository: Repository) -> None:
    own = layer({"only": repository.name.encode()})
    repository.image("1", [BASE, own], configuration([BASE, own]))


def _only_attested(repository: Repository) -> None:
    _index(repository, "1", {})


def _index(repository: Repository, tag: str, images: dict[str, bytes]) -> None:
    """Puts an index of images by machine there, as buildx writes it: what attests them is beside them."""
    statement = repository.image(
        "",
        [],
        configuration([], architecture="unknown", os="unknown"),
        kinds=(OCI_CONFIGURATION, "application/vnd.in-toto+json"),
        stored=[b"{}"],
    )
    entries = [descriptor(OCI_MANIFEST, statement, platform={"architecture": "unknown", "os": "unknown"})]
    entries += [
        descriptor(OCI_MANIFEST, image, platform={"architecture": machine, "os": "linux"})
        for machine, image in images.items()
    ]
    repository.manifest(tag, {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})


UNFIT: dict[str, tuple[Callable[[Repository], object], FetchFailure]] = {
    "chart": (_artifact, fetch_failures.NO_IMAGE),
    "model": (_model, fetch_failures.NO_IMAGE),
    "more-layers": (lambda to: to.image("1", [BASE], configuration([BASE, BASE])), fetch_failures.MISMATCHED),
    "other-layer": (lambda to: to.image("1", [BASE], configuration([BASE + b"x"])), fetch_failures.MISMATCHED),
    "no-archive": (lambda to: to.image("1", [b"junk"], configuration([b"junk"])), fetch_failures.UNREADABLE),
    "windows": (lambda to: to.image("1", [BASE], configuration([BASE], os="windows")), fetch_failures.OTHER_SYSTEM),
    "only-attested": (_only_attested, fetch_failures.NOT_FOUND),
    "corrupt": (_corrupt, fetch_failures.CORRUPT),
    "missing": (_corrupt, fetch_failures.CORRUPT),
}


@pytest.mark.parametrize("kind", UNFIT)
async def test_what_stays_fails_once(
    contract: Contract, registry: Registry, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    put, failure = UNFIT[kind]
    repository = Repository(registry.address, kind)
    put(repository)
    if kind in {"corrupt", "missing"}:
        _damage(registry, gzip.compress(layer({"only": kind.encode()}), mtime=0), missing=kind == "missing")
    backend = await contract.open()
    with caplog.at_level(logging.WARNING, docker_images.__name__):
        await backend.prepare(contract.spec("k", "true", image=repository.reference("1")), HOSTS)
        await eventually(lambda: backend.observe()["k.1"].phase.ended)
    observed = backend.observe()["k.1"]
    assert (observed.phase, observed.reason) == (Phase.FAILED, failure.reason), observed.message
    assert observed.message == f"image {repository.reference('1')} {failure.words}"
    # The engine's own words are in the log, and no other try.
    said = [record.getMessage() for record in caplog.records if record.name == docker_images.__name__]
    assert len(said) == 1
    assert "to be tried again" not in said[0]
    await backend.remove("k.1")


def _damage(registry: Registry, content: bytes, *, missing: bool) -> None:
    digest = digest_of(content).partition(":")[2]
    file = registry.images / f"docker/registry/v2/blobs/sha256/{digest[:2]}/{digest}/data"
    if missing:
        file.unlink()
    else:
        file.write_bytes(bytes(len(content)))


async def test_an_image_for_another_machine(contract: Contract, registry: Registry) -> None:
    """The engine takes it; an index that has this machine's as well, and what attests them, is one for this machine."""
    repository = Repository(registry.address, "machines")
    program = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + (183 if HERE == "amd64" else 62).to_bytes(2, "little")
    foreign = layer({"hello": program + bytes(200)})
    others = repository.image("other", [foreign], configuration([foreign], architecture=OTHER[0]))
    own = repository.image("own", [BASE], configuration([BASE], architecture=HERE))
    _index(repository, "both", {OTHER[0]: others, HERE: own})
    backend = await contract.open()
    await backend.prepare(contract.spec("k1", "/hello", image=repository.reference("other")), HOSTS)
    await eventually(lambda: backend.observe()["k1.1"].phase.ended)
    observed = backend.observe()["k1.1"]
    assert (observed.phase, observed.reason) == (Phase.FAILED, "IMAGE_INVALID")
    assert observed.message.endswith(
        f"cannot be used: it is for linux/{OTHER[0]}, and this node is linux/{HERE}; "
        f"`--arch {OTHER[1]}` places it on such a node"
    )
    observed, output = await contract.ran(
        contract.spec("k2", "sh", "-c", "echo ran", image=repository.reference("both"))
    )
    assert (observed.exit_code, output) == (0, "ran\n")
    # A program of another machine in an image that says to be for this one.
    repository.image("mixed", [BASE, foreign], configuration([BASE, foreign], architecture=HERE))
    observed, output = await contract.ran(contract.spec("k3", "/hello", image=repository.reference("mixed")))
    words = f"init: /hello: it is a program for {OTHER[1]}, and this machine is {os.uname().machine}\n"
    assert (observed.exit_code, output) == (126, words)


async def test_everyone_writes_to_the_temporary_directory(contract: Contract, engine: TestEngine) -> None:
    """Whatever permissions the image's own has: a tmpfs of Docker's gets those."""
    temporary = tarfile.TarInfo("tmp")
    temporary.type, temporary.mode = tarfile.DIRTYPE, 0o755
    engine.make_image("retinue-test/closed-tmp:1", changes=["USER 1234"], entries=(temporary,))
    script = "touch /tmp/file /dev/shm/file && stat -c %a /tmp /dev/shm"
    try:
        command = ("sh", "-c", script)
        observed, output = await contract.ran(contract.spec("k", *command, image="retinue-test/closed-tmp:1"))
        assert (observed.exit_code, output) == (0, "1777\n1777\n")
    finally:
        client = engine.client()
        with suppress(docker.errors.APIError):
            client.remove_image("retinue-test/closed-tmp:1", force=True)
        client.close()


STOPPED = """
trap "echo USR1; exit 3" USR1; trap "echo TERM; exit 4" TERM
echo ready; while :; do sleep 0.1; done
"""


async def test_the_stop_signal_of_an_image(contract: Contract, engine: TestEngine) -> None:
    """As `docker stop` has it."""
    image, command = "retinue-test/stops:1", ["sh", "-c", STOPPED]
    client = engine.client()
    source = client.create_container(IMAGE, "true")
    client.commit(source, *image.split(":"), conf={"StopSignal": "SIGUSR1"})
    client.remove_container(source)
    backend = await contract.started(contract.spec("k", *command, image=image))
    await eventually(lambda: contract.printed("k.1") == "ready\n")
    await backend.stop("k.1", NEVER)
    observed = await contract.until("k.1", Phase.EXITED)
    found = (observed.exit_code, contract.printed("k.1"))
    await backend.remove("k.1")
    try:
        container = client.create_container(image, command)
        client.start(container)
        await eventually(lambda: client.logs(container) == b"ready\n")
        client.stop(container, timeout=int(NEVER))
        code = client.wait(container)["StatusCode"]
        assert found == (code, client.logs(container).decode()) == (3, "ready\nUSR1\n")
    finally:
        client.remove_container(container, force=True)
        client.remove_image(image, force=True)
        client.close()
