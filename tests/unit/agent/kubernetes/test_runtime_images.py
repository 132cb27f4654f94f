"""What a container runtime says of an image is read, or is the image's fault; nothing of it raises."""

from __future__ import annotations

import json

import pytest

from retinue.agent.kubernetes.runtime_images import NO_LAYERS, NONSENSE, ImageConfig, read_config


def said(**config: object) -> str:
    return json.dumps({"chainID": "sha256:1", "imageSpec": {"os": "linux", "config": config}})


def test_user_labels_and_names_of_variables_are_read() -> None:
    text = said(User="1000:app", Labels={"a": "b", "n": 7}, Env=["PATH=/bin"], Volumes={"/data": {}})
    variables = frozenset({"PATH"})
    assert read_config(text) == ImageConfig("1000:app", {"a": "b", "n": "7"}, variables=variables, system="linux")
    there = json.dumps({"imageSpec": {"architecture": "arm64", "os": "linux", "config": {}}})
    assert read_config(there) == ImageConfig(system="linux", machine="arm64")


@pytest.mark.parametrize("text", ["", "{}", '{"imageSpec": null}', '{"imageSpec": {}}', said(), said(User=None)])
def test_what_is_not_said_is_nothing(text: str) -> None:
    assert read_config(text) in [ImageConfig(), ImageConfig(system="linux")]


@pytest.mark.parametrize(
    "text",
    [
        *("nonsense", "[]", "7", '"text"', "[" * 100_000, '{"imageSpec": 7}', '{"imageSpec": {"config": [1]}}'),
        *(said(User=7), said(Labels=["a"]), said(Env={"A": "b"}), said(Volumes="all")),
    ],
)
def test_what_cannot_be_read_bars_the_image(text: str) -> None:
    assert read_config(text).excess == NONSENSE


def test_what_has_no_layers_is_no_image() -> None:
    """Container runtimes keep a chart or a model that they could not unpack."""
    for config in (dict[str, str](), None):
        text = json.dumps(
            {"imageSpec": {"architecture": "", "rootfs": {"type": "", "diff_ids": None}, "config": config}}
        )
        assert read_config(text).excess == NO_LAYERS
    assert not read_config(json.dumps({"imageSpec": {"rootfs": {"diff_ids": ["sha256:1"]}, "config": {}}})).excess


def test_what_a_kernel_cannot_have_bars_the_image() -> None:
    assert "user" in read_config(said(User="a b")).excess
    assert "volume" in read_config(said(Volumes={"/": {}})).excess
