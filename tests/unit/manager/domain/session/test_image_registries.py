"""Which registries images may come from, by the patterns of a resource group."""

from __future__ import annotations

import pytest

from retinue.agent.docker.registries import parse_reference
from retinue.manager.domain.session.image_references import registry_of
from retinue.manager.domain.session.image_registries import check_patterns, denied_image, is_allowed

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    "reference",
    [
        "busybox",
        "busybox:1.36",
        "library/busybox:1",
        "index.docker.io/library/busybox",
        "registry-1.docker.io/library/busybox",
        "localhost/a:b",
        "localhost:5000/a/b",
        "cr.example.org/a/b:c",
        f"cr.example.org/a@{DIGEST}",
        f"cr.example.org:1/a:t@{DIGEST}",
        f"a@{DIGEST}",
        "a:1/b",
        "2130706433/b",
        "a" * 12,
        "CR.Example.org:5000/a/b:1.0-RC1",
        "Upper/a",
        "[2001:DB8::1]:5000/a/b:C",
        f"[2001:db8::1]/a@{DIGEST}",
    ],
)
def test_manager_and_agent_read_references_the_same_way(reference: str) -> None:
    assert registry_of(reference) == parse_reference(reference).registry


@pytest.mark.attack("images-of-forbidden-registries")
@pytest.mark.parametrize(
    ("registry", "patterns", "allowed"),
    [
        ("docker.io", [], True),
        ("cr.example.org", [], False),
        ("docker.io", ["cr.example.org"], False),
        ("cr.example.org", ["docker.io", "cr.example.org"], True),
        ("cr.example.org:5000", ["cr.example.org"], False),
        ("cr.example.org:5000", ["cr.example.org:5000"], True),
        ("cr.example.org:5000", ["cr.example.org:*"], True),
        ("cr.example.org", ["cr.example.org:*"], True),
        ("cr.example.org", ["*.example.org"], True),
        ("a.b.example.org", ["*.example.org"], True),
        ("example.org", ["*.example.org"], False),
        ("badexample.org", ["*.example.org"], False),
        ("cr.example.org:5000", ["*.example.org"], False),
        ("cr.example.org:5000", ["*.example.org:*"], True),
        ("cr.example.org:5000", ["*"], True),
        ("docker.io", ["*"], True),
        ("localhost", ["*"], False),
        ("localhost:5000", ["*", "*.localhost"], False),
        ("localhost:5000", ["localhost:5000"], True),
        ("a.localhost", ["*"], False),
        ("10.0.0.1:5000", ["*", "*.1:*"], False),
        ("169.254.169.254", ["*"], False),
        ("0x7f.1:80", ["*"], False),
        ("2130706433:80", ["*"], False),
        ("10.0.0.1:5000", ["10.0.0.1:5000"], True),
        ("10.0.0.1:5000", ["10.0.0.1:*"], True),
        ("[2001:db8::1]:5000", ["*", "*.1:*"], False),
        ("[2001:db8::1]:5000", ["[2001:db8::1]:5000"], True),
        ("[2001:db8::1]:5000", ["[2001:db8::1]"], False),
        ("[2001:db8::1]:5000", ["[2001:db8::1]:*"], True),
        ("[2001:db8::1]", ["[2001:db8::1]"], True),
    ],
)
def test_patterns(registry: str, patterns: list[str], allowed: bool) -> None:
    assert is_allowed(registry, patterns) is allowed
    found: list[tuple[str, str]] = []
    check_patterns(patterns, "p", found)
    assert not found


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "**",
        "a*",
        "*.*",
        "A.example.org",
        "a b",
        "https://a",
        "a/b",
        "a:",
        "a:x",
        "*:5000",
        "-a",
        "a\n",
        "[::1]:",
        "[x]",
        "::1",
    ],
)
def test_what_is_no_pattern(pattern: str) -> None:
    found: list[tuple[str, str]] = []
    check_patterns(["docker.io", pattern], "p", found)
    assert [path for path, _ in found] == ["p[1]"]


def test_too_many_patterns() -> None:
    found: list[tuple[str, str]] = []
    check_patterns(["a"] * 65, "p", found)
    assert [path for path, _ in found] == ["p"]


@pytest.mark.attack("images-of-forbidden-registries")
def test_the_first_image_that_is_denied() -> None:
    images = ["busybox", "cr.example.org/a", "ghcr.io/b"]
    assert denied_image(images, ["docker.io", "cr.example.org"]) == "ghcr.io/b"
    assert denied_image(images, []) == "cr.example.org/a"
    assert not denied_image(images, ["*"])
