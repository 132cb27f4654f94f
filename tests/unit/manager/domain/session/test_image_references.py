"""References of images are read as Docker's engine reads them."""

from __future__ import annotations

import pytest

from retinue.manager.domain.session.image_references import registry_of, wrong_reference

SHA256 = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("reference", "registry"),
    [
        ("busybox", "docker.io"),
        ("library/busybox:1.36", "docker.io"),
        ("mcr.microsoft.com/mssql/server:2019-CU12-ubuntu-20.04", "mcr.microsoft.com"),
        ("team/app:1.0-SNAPSHOT", "docker.io"),
        ("team/app:_under.Score", "docker.io"),
        ("app:" + "T" * 128, "docker.io"),
        ("localhost/app", "localhost"),
        ("localhost:5000/team/app:1.0-RC1", "localhost:5000"),
        ("Registry.Example.org:5000/team/app", "registry.example.org:5000"),
        ("CR/app", "cr"),
        ("10.0.0.7:5000/app", "10.0.0.7:5000"),
        ("[2001:DB8::1]:5000/app:1", "[2001:db8::1]:5000"),
        ("[::1]/app", "[::1]"),
        ("nvcr.io/nvidia/pytorch:24.05-py3", "nvcr.io"),
        ("a__b/c---d/e.f_g:1", "docker.io"),
        (f"app@{SHA256}", "docker.io"),
        (f"cr.example.org/app:1.0-RC1@{SHA256}", "cr.example.org"),
        ("app@sha512:" + "0" * 128, "docker.io"),
        (SHA256, "docker.io"),
        ("a" * 255, "docker.io"),
        ("index.docker.io/library/busybox", "docker.io"),
    ],
)
def test_what_docker_takes_is_taken(reference: str, registry: str) -> None:
    assert wrong_reference(reference) == ""
    assert registry_of(reference) == registry


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("docker://busybox", "docker:// in front"),
        ("https://cr.example.org/app", "https:// in front"),
        ("MyApp:1", "name in lower case"),
        ("cr.example.org/Team/app", "name in lower case"),
        ("app:", "a tag of"),
        ("app:.1", "a tag of"),
        ("app:-1", "a tag of"),
        ("app:1:2", "a tag of"),
        ("app:" + "t" * 129, "a tag of"),
        ("app:1 ", "a tag of"),
        ("app@sha256:abc", "a digest"),
        ("app@" + SHA256.upper(), "a digest"),
        ("app@sha256:" + "A" * 64, "a digest"),
        ("app@md5:" + "a" * 32, "a digest"),
        ("app@", "a digest"),
        (f"app@{SHA256}@{SHA256}", "a digest"),
        ("-cr.example.org/app", "host of a registry"),
        ("cr.example.org:/app", "host of a registry"),
        ("cr.example.org:x/app", "host of a registry"),
        ("[::1/app", "host of a registry"),
        ("[1:2]/app", "host of a registry"),
        ("app_", "is not an image reference"),
        ("_app", "is not an image reference"),
        ("a..b", "is not an image reference"),
        ("a___b", "is not an image reference"),
        ("a//b", "is not an image reference"),
        ("/app", "is not an image reference"),
        ("app/", "is not an image reference"),
        ("", "is not an image reference"),
        ("ünder", "is not an image reference"),
        ("app\n", "is not an image reference"),
        ("nvcr.io#nvidia/pytorch", "host of a registry"),
        ("a" * 256, "is not an image reference"),
    ],
)
def test_what_docker_refuses_is_refused_with_the_rule(reference: str, why: str) -> None:
    assert why in wrong_reference(reference)
