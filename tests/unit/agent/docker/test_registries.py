"""References, what registries say, how far a fetch has come, and what labels say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retinue.agent.attempts import AttemptSpec, ImageIdentity, Layer, ServicePort
from retinue.agent.docker.core.image_labels import LabelError, Labels, parse_service_ports, read_labels, shortfalls
from retinue.agent.docker.core.pull_progress import fold, totals, worth_reporting
from retinue.agent.docker.image_defaults import fitted
from retinue.agent.docker.images import Image, ImageError
from retinue.agent.docker.registries import Reference, parse_reference
from retinue.agent.host.core.limits import THREAD_VARIABLES

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("busybox", Reference("docker.io", "busybox")),
        ("busybox:1.36", Reference("docker.io", "busybox", "1.36")),
        ("library/busybox:1", Reference("docker.io", "library/busybox", "1")),
        ("index.docker.io/library/busybox", Reference("docker.io", "index.docker.io/library/busybox")),
        ("localhost/a:b", Reference("localhost", "localhost/a", "b")),
        ("localhost:5000/a/b", Reference("localhost:5000", "localhost:5000/a/b")),
        ("cr.example.org/a/b:c", Reference("cr.example.org", "cr.example.org/a/b", "c")),
        (f"cr.example.org/a@{DIGEST}", Reference("cr.example.org", "cr.example.org/a", "", DIGEST)),
        (f"cr.example.org:1/a:t@{DIGEST}", Reference("cr.example.org:1", "cr.example.org:1/a", "t", DIGEST)),
    ],
)
def test_references(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected
    assert expected.wanted == (expected.digest or expected.tag or "latest")


def downloading(layer: str, current: int, total: int) -> dict[str, Any]:
    return {"status": "Downloading", "id": layer, "progressDetail": {"current": current, "total": total}}


def test_events_become_layers() -> None:
    layers: dict[str, Layer] = {}
    for event in (
        {"status": "Pulling from a", "id": "1"},
        {"status": "Pulling fs layer", "id": "l1", "progressDetail": {}},
        {"status": "Already exists", "id": "l0", "progressDetail": {}},
        downloading("l1", 10, 100),
        downloading("l1", 60, 100),
        downloading("l2", 5, 50),
        {"status": "Verifying Checksum", "id": "l2"},
        {"status": "Extracting", "id": "l2", "progressDetail": {"current": 1, "total": 50}},
        {"status": "Pull complete", "id": "l2"},
        {"status": "Digest: sha256:…"},
        {},
    ):
        layers = fold(layers, event)
    assert layers == {
        "l1": Layer("l1", 60, 100),
        "l0": Layer("l0", done=True),
        "l2": Layer("l2", 50, 50, done=True),
    }
    assert totals(list(layers.values())) == (110, 150)


@pytest.mark.parametrize(
    ("sent", "now", "seconds", "worth"),
    [
        ([], [Layer("a")], 100.0, True),
        ([Layer("a", 0, 100)], [Layer("a", 50, 100)], 0.5, False),
        ([Layer("a", 0, 100)], [Layer("a", 4, 100)], 2.0, False),
        ([Layer("a", 0, 100)], [Layer("a", 5, 100)], 2.0, True),
        ([Layer("a", 0, 100)], [Layer("a", 1, 100)], 31.0, True),
        ([Layer("a", 0, 100)], [Layer("a", 0, 100)], 100.0, False),
        ([Layer("a", 100, 100)], [Layer("a", 100, 100, done=True)], 2.0, True),
    ],
)
def test_progress_is_sent_at_steps(sent: list[Layer], now: list[Layer], seconds: float, worth: bool) -> None:
    assert worth_reporting(sent, now, seconds) is worth


def test_our_labels_come_first() -> None:
    labels = {
        "retinue.min-slots": "cpu=2,mem=1g",
        "ai.backend.resource.min.cpu": "8",
        "retinue.service-ports": "web:http:8080",
        "ai.backend.service-ports": "other:http:1",
        "retinue.shared-memory": "1g",
    }
    assert read_labels(labels) == Labels(
        {"cpu": 2000, "mem": 1 << 30}, 1 << 30, (ServicePort("web", "http", (8080,)),), ()
    )
    assert read_labels({}) == Labels()


def test_their_labels_mean_the_same() -> None:
    labels = {
        "ai.backend.resource.min.cpu": "1",
        "ai.backend.resource.min.mem": "256M",
        "ai.backend.resource.min.cuda.shares": "0",
        "ai.backend.resource.preferred.shmem": "64m",
        "ai.backend.service-ports": "ipython:pty:3000, jupyter:http:8081",
        "ai.backend.envs.corecount": "OMP_NUM_THREADS, NPROC",
    }
    found = read_labels(labels)
    assert found == Labels(
        {"cpu": 1000, "mem": 256 << 20},
        64 << 20,
        (ServicePort("jupyter", "http", (8081,)),),
        ("OMP_NUM_THREADS", "NPROC"),
    )
    assert shortfalls(found, {"cpu": 999}) == ["cpu", "mem"]
    assert shortfalls(found, {"cpu": 1000, "mem": 1 << 30}) == []


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a:http",
        "a:http:0",
        "a:http:70000",
        "a:http:1,a:http:2",
        "a:http:1,b:http:1",
        "a:http:[]",
        "a:http:1;b:http:2",
        ":http:1",
    ],
)
def test_bad_service_ports(text: str) -> None:
    with pytest.raises(ValueError, match=r"service|NAME"):
        parse_service_ports(text)
    with pytest.raises(LabelError):
        read_labels({"retinue.service-ports": text})


def test_an_attempt_is_fitted_to_its_image() -> None:
    spec = AttemptSpec("k.1", "s", "k", 1, "main1", "i:1", environment={"A": "1"}, slots={"cpu": 1500, "mem": 32 << 20})
    identity = ImageIdentity(DIGEST, DIGEST)

    def image(**labels: str) -> Image:
        return Image(identity, "", {f"retinue.{name.replace('_', '-')}": value for name, value in labels.items()})

    found, facts = fitted(spec, image(shared_memory="16m", core_variables="N,A"))
    threads = dict.fromkeys(THREAD_VARIABLES, "2")
    assert (found.shared_memory, dict(found.environment)) == (16 << 20, threads | {"N": "2", "A": "1"})
    # What the image itself sets stays.
    tuned = fitted(spec, replace(image(), variables=frozenset({"OMP_NUM_THREADS"})))[0].environment
    assert tuned.keys() == {*THREAD_VARIABLES, "A"} - {"OMP_NUM_THREADS"}
    assert facts.identity == identity
    # What an image prefers does not take a kernel's whole memory; what the user asked for comes first.
    assert fitted(spec, image(shared_memory="64m"))[0].shared_memory == 0
    with pytest.raises(ImageError, match=r"i:1 needs at least cuda.device=1, mem=1g"):
        fitted(spec, image(min_slots="mem=1g,cuda.device=1"))
