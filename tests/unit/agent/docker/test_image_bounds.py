"""What an image may bring into a container, and what is read of its labels before anything is looked for in them."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.agent.attempts import AttemptSpec, ImageIdentity
from retinue.agent.docker.core.image_bounds import MAX_ID, MAX_VARIABLE, MAX_VARIABLES, MAX_VOLUMES, excess
from retinue.agent.docker.core.image_labels import MAX_LABEL, LabelError, read_labels
from retinue.agent.docker.image_defaults import fitted
from retinue.agent.docker.images import Image, ImageError

MAX_TEXT = 8192


@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"User": None, "Env": None, "Volumes": None, "Labels": None},
        {"User": "root"},
        {"User": f"{MAX_ID}:{MAX_ID}"},
        {"User": "some.user@realm:group$"},
        {"Env": ["PATH=/bin", "NO_VALUE", "", "=x"]},
        {"Env": ["A=" + "x" * (MAX_VARIABLE - 3)]},
        {"Env": ["A=1"] * MAX_VARIABLES},
        {"Volumes": {f"/v{number}": {} for number in range(MAX_VOLUMES)}},
    ],
)
def test_usual_images(configuration: dict[str, Any]) -> None:
    assert excess(configuration) == ""


@pytest.mark.parametrize(
    "configuration",
    [
        {"User": "u" * 10_240},
        {"User": str(MAX_ID + 1)},
        {"User": f"0:{2**64}"},
        {"User": "9" * 250},
        {"User": "-1"},
        {"User": "a:b:c"},
        {"User": "a b"},
        {"User": "a\n"},
        {"User": "\0"},
        {"User": "\u0661"},
        {"Env": ["A=" + "x" * MAX_VARIABLE]},
        {"Env": ["A=" + "é" * (MAX_VARIABLE // 2)]},
        {"Env": ["A=1"] * (MAX_VARIABLES + 1)},
        {"Env": ["A=" + "x" * 100_000] * 11},
        {"Env": ["A=\0"]},
        {"Env": ["\ud800" * MAX_VARIABLE]},
        {"Volumes": {f"/v{number}": {} for number in range(MAX_VOLUMES + 1)}},
        {"Volumes": {"/": {}}},
    ],
)
def test_images_that_bring_too_much(configuration: dict[str, Any]) -> None:
    assert 0 < len(excess(configuration)) < 500
    assert excess(configuration).isprintable()


@pytest.mark.parametrize(
    "labels",
    [
        {"retinue.service-ports": "a:tcp:1," * 50_000},
        {"ai.backend.service-ports": "a" * (MAX_LABEL + 1)},
        {"retinue.min-slots": ",".join(f"s{number}=1" for number in range(50_000))},
        {"retinue.min-slots": ",".join(f"s{number}=1" for number in range(65))},
        {"retinue.shared-memory": "1" * (MAX_LABEL + 1)},
        {"retinue.shared-memory": "1" + "0" * 30},
        {"retinue.core-variables": ",".join(f"V{number}" for number in range(65))},
        {"retinue.core-variables": "V," * 50_000},
        {f"ai.backend.resource.min.s{number}": "1" for number in range(65)},
        {f"ai.backend.resource.min.{'s' * MAX_LABEL}": "1"},
        {"ai.backend.resource.min.mem": "1" + "0" * 30},
        {"ai.backend.resource.min.mem": "1e400"},
        {"ai.backend.resource.min.mem": "nan"},
        {"ai.backend.resource.min.mem": "-1"},
    ],
)
def test_labels_that_are_too_long_or_ask_for_too_much(labels: dict[str, str]) -> None:
    with pytest.raises(LabelError) as refused:
        read_labels(labels)
    assert len(str(refused.value)) < MAX_TEXT
    assert read_labels({"note": "x" * 500_000}) == read_labels({})


def test_a_message_names_a_few_slots() -> None:
    spec = AttemptSpec("k.1", "s", "k", 1, "main1", "i:1", slots={"cpu": 1500})
    labels = {"retinue.min-slots": ",".join(f"slot{number}=1" for number in range(60))}
    with pytest.raises(ImageError) as refused:
        fitted(spec, Image(ImageIdentity(), "", labels))
    assert refused.value.reason == "IMAGE_NEEDS_MORE"
    assert len(str(refused.value)) < 300


def test_an_attempt_is_not_fitted_to_too_much() -> None:
    spec = AttemptSpec("k.1", "s", "k", 1, "main1", "i:1")
    with pytest.raises(ImageError, match="image i:1 cannot be used: it has a volume at /") as refused:
        fitted(spec, Image(ImageIdentity(), "", {}, excess="it has a volume at /"))
    assert refused.value.reason == "IMAGE_INVALID"
