"""What the engine gets to build images from: all that the build of the package reads, and nothing else.
The test of the same name in tests/integration builds them.
"""

from __future__ import annotations

import fnmatch
import itertools
import tomllib
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from docs.generator import ROOT
from tests.unit.docs.project_files import listed

CONSOLE = ("console", "scripts/build-console")
"""What only the build of the console reads."""
BUILT_HERE = ("console/node_modules", "console/src/gen", "manager/console/static")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def is_below(name: str, places: list[str] | tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}/") for place in places)


def passes(name: str) -> bool:
    """Whether .dockerignore lets a file through: the last line that matches it or a folder of it decides."""
    path = PurePosixPath(name)
    places = [str(place) for place in (path, *path.parents)]
    passed = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        tail = pattern.removeprefix("**/")
        if any(
            fnmatch.fnmatch(place, pattern) or (tail != pattern and fnmatch.fnmatch(place, tail)) for place in places
        ):
            passed = line.startswith("!")
    return passed


def copied(dockerfile: str) -> list[str]:
    """The places that the stage which builds the project copies from the context."""
    _, _, stage = (ROOT / dockerfile).read_text().partition(" AS code\n")
    stage, _, _ = stage.partition("\nFROM ")
    return [word for line in stage.splitlines() if line.startswith("COPY ") for word in line.split()[1:-1]]


def read_by_the_build() -> list[str]:
    """Every place that the build of a wheel reads, as pyproject.toml says."""
    wheel = project()["tool"]["hatch"]["build"]["targets"]["wheel"]
    places = [place for place in wheel["only-include"] if not place.startswith("gen/")]
    hook = ["hatch_build.py", "scripts/generate-sync-client"]
    return [*places, *wheel["force-include"], "pyproject.toml", *hook, "README.md", "LICENSE", *CONSOLE]


@pytest.mark.parametrize(("dockerfile", "without"), [("Dockerfile.manager", ()), ("Dockerfile.agent", CONSOLE)])
def test_an_image_is_built_from_what_the_build_reads(dockerfile: str, without: tuple[str, ...]) -> None:
    files = listed("*")
    places = read_by_the_build()
    expected = {name for name in files if is_below(name, places) and not is_below(name, without)}
    built_from = {name for name in files if passes(name) and is_below(name, copied(dockerfile))}
    assert built_from == expected
    assert {"hatch_build.py", "protos/retinue/manager/v1/session.proto", "rpc/daemons.py"} <= built_from
    assert ("console/package-lock.json" in built_from) == (not without)


def test_nothing_else_is_sent_to_the_engine() -> None:
    sent = {name for name in listed("*") if passes(name)}
    assert sent == {name for name in listed("*") if is_below(name, copied("Dockerfile.manager"))}
    for place in (*BUILT_HERE, "agent/__pycache__", "manager/api/__pycache__"):
        assert not passes(f"{place}/file"), place
    assert not passes(".venv/bin/python")


@pytest.mark.parametrize("dockerfile", ["Dockerfile.manager", "Dockerfile.agent"])
def test_labels_say_what_the_package_says(dockerfile: str) -> None:
    text = (ROOT / dockerfile).read_text()
    assert f'org.opencontainers.image.version="{project()["project"]["version"]}"' in text
    assert f'org.opencontainers.image.licenses="{project()["project"]["license"]}"' in text


def test_an_agent_has_the_same_capabilities_wherever_it_is_said() -> None:
    capabilities = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["agent"]["cap_add"]
    assert "SETPCAP" in capabilities
    for name in ("scripts/check-images", "docs/install.md"):
        words = (ROOT / name).read_text().split()
        given = [word for before, word in itertools.pairwise(words) if before == "--cap-add"]
        assert given == capabilities, name
