"""What the project says of itself in pyproject.toml: the packages that it requires, its versions, its pages."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from functools import cache
from importlib import metadata
from typing import Any

import pytest

import hatch_build
from docs.generator import ROOT
from tests.unit.docs.project_files import listed

CLIENT = ""
"""What is required without an extra."""
ALL = (CLIENT, "manager", "agent", "router", "stubs", "console", "dev")
PARTS = {
    "client": (CLIENT,),
    "rpc": (CLIENT, "every daemon"),
    "proxy": ("manager and router",),
    "manager": (CLIENT, "manager"),
    "agent": (CLIENT, "agent"),
    "router": (CLIENT, "router"),
    "devtools": (CLIENT, "manager", "agent"),
    "demo": ALL,
    "docs": ALL,
    "scripts": ALL,
    "tests": ALL,
}
"""The extras that a folder may count on."""
ELSEWHERE = {
    "_typeshed": "types only",
    "ipykernel": "inside kernels",
    "IPython": "inside kernels",
    "tornado": "inside kernels of tests, by the Python of JupyterLab",
    "ai": "another system, which benchmarks compare with",
    "pyte": "by hand, as scripts/picture says",
}
"""Modules that no extra brings, with where they are."""


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extra: str) -> set[str]:
    """Names of the distributions that are required."""
    if extra == "every daemon":
        # Routers have metrics of their own.
        return declared("manager") & declared("agent")
    if extra == "manager and router":
        return declared("manager") & declared("router")
    table = project()["project"]
    lines = table["optional-dependencies"][extra] if extra else table["dependencies"]
    return {normalized(re.split(r"[^\w.-]", line)[0]) for line in lines}


@cache
def distributions() -> dict[str, list[str]]:
    return {name: list(set(map(normalized, given))) for name, given in metadata.packages_distributions().items()}


def imported(source: str) -> set[str]:
    """Top-level names of other projects' modules that a module imports, wherever it does."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    own = {"retinue", "tests", "docs", "demo", "hatch_build", "scripts"}
    return names - set(sys.stdlib_module_names) - own - set(ELSEWHERE)


@pytest.mark.parametrize("folder", PARTS)
def test_what_is_imported_is_required(folder: str) -> None:
    required = set().union(*map(declared, PARTS[folder]))
    undeclared: dict[str, str] = {}
    files = [name for name in listed(folder) if name.endswith(".py") or folder == "scripts"]
    assert files
    for name in files:
        text = (ROOT / name).read_text()
        if not name.endswith(".py") and not text.startswith("#!/usr/bin/env python3"):
            continue
        for module in imported(text):
            if not set(distributions().get(module, [module])) & required:
                undeclared.setdefault(module, name)
    assert undeclared == {}


def test_one_version_of_node_builds_the_console() -> None:
    (pinned,) = (line for line in project()["project"]["optional-dependencies"]["console"] if line.startswith("nodejs"))
    major = re.search(r">=(\d+),", pinned)
    assert major is not None
    engines = [
        json.loads((ROOT / "console/package.json").read_text())["engines"],
        json.loads((ROOT / "console/package-lock.json").read_text())["packages"][""]["engines"],
    ]
    assert engines == [{"node": f"^{major[1]}.0.0"}] * 2
    assert pinned == hatch_build.NODE
