"""No file of a user's takes the place of a module in a process of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.rpc.interpreter import module_command
from retinue.rpc.version import software_version
from tests.support.eventually import NEVER
from tests.support.planted_modules import plant

ROOT = Path(__file__).parents[3]
# What is installed, and what starts it.
PRODUCT = ("agent", "client", "deploy", "devtools", "docs", "manager", "proxy", "router", "rpc", "src")
FILES = ("compose.yaml", "Dockerfile.agent", "Dockerfile.manager", "README.md")
# An interpreter, what stands between the words of a command in Python, JSON, YAML and shell, and `-m` with its module.
BETWEEN = r"""["'\])]*,?\s+["'\[(]*"""
RUNS_MODULE = re.compile(rf"(?:\bsys\.executable|\bpython[0-9.]*){BETWEEN}-m\b(?:{BETWEEN}([\w.]+))?")
# Modules of Python that users run in sessions, or in a directory that they choose, as the pages say.
OF_USERS = {"http.server", "venv", "bash_kernel.install"}
# Packages that are not installed: they run in the directory of the checkout only.
OF_CHECKOUT = ("demo", "docs", "tests")


def run(*command: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=directory,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=NEVER,
    )


def test_a_module_of_ours_runs_where_files_have_the_names_of_modules(tmp_path: Path) -> None:
    planted = plant(tmp_path / "planted")
    command = [*module_command("retinue.manager.main"), "--version"]
    for path in ("", str(planted)):
        ended = run(*command, directory=planted, PYTHONPATH=path)
        assert (ended.stdout, ended.stderr) == (f"retinue-manager {software_version()}\n", "")
    # That is what the files are for.
    assert "was imported" in run(sys.executable, "-m", "retinue.manager.main", directory=planted).stderr


def test_an_installation_that_only_variables_lead_to_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planted = plant(tmp_path / "planted")
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    command = module_command("retinue.manager.main")
    assert command == [sys.executable, "-P", "-m", "retinue.manager.main"]
    places = f"{ROOT}/src{os.pathsep}{ROOT}/gen"
    assert (
        run(*command, "--version", directory=planted, PYTHONPATH=places).stdout
        == f"retinue-manager {software_version()}\n"
    )


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("retinue --version", 0, "retinue 0."),
        ("retinue version", 0, "grpcio"),
        ("retinue --endpoint 127.0.0.1:1 --token rtn_none ls", 7, "127.0.0.1:1"),
        ("retinue-manager -h", 0, "create-admin"),
        ("retinue-manager health --data-dir DIRECTORY", 1, "cannot read"),
        ("retinue-manager create-admin --data-dir DIRECTORY root", 1, "Error: "),
        ("retinue-manager admin verify numbers.py", 1, "Error: "),
        ("retinue-manager config check", 0, "the configuration is good"),
        ("retinue-agent config check --id a --manager 127.0.0.1:1", 0, "the configuration is good"),
        (
            "retinue-agent join --id a --manager 127.0.0.1:1 --join-token x --ca-fingerprint y --data-dir DIRECTORY",
            1,
            "Error",
        ),
        ("retinue-router config check --id a --manager 127.0.0.1:1", 0, "the configuration is good"),
    ],
)
def test_a_command_works_where_files_have_the_names_of_modules(
    command: str, code: int, said: str, tmp_path: Path
) -> None:
    planted = plant(tmp_path / "planted")
    program, *arguments = command.replace("DIRECTORY", str(tmp_path / "data")).split()
    ended = run(str(Path(sys.executable).with_name(program)), *arguments, directory=planted, HOME=str(tmp_path))
    assert ended.returncode == code, ended.stderr
    assert said in ended.stdout + ended.stderr
    assert "was imported" not in ended.stderr


def test_nothing_runs_a_module_with_the_current_directory_on_its_path() -> None:
    listed = subprocess.run(
        ["git", "ls-files", *PRODUCT, *FILES],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    texts = {name: (ROOT / name).read_text(errors="ignore") for name in listed if (ROOT / name).is_file()}
    found = {(name, match[1]) for name, text in texts.items() for match in RUNS_MODULE.finditer(text)}
    # The pages say how to serve a directory: what is searched for is found.
    assert {module for _, module in found} >= {"http.server"}
    wrong = [(name, module) for name, module in found if module not in OF_USERS]
    assert [(name, module) for name, module in wrong if module.partition(".")[0] not in OF_CHECKOUT] == []


@pytest.mark.parametrize(
    "text",
    [
        '[sys.executable, {} "retinue.agent.main"]',
        "(\n    *(sys.executable,\n    {} module),\n)",
        'CMD ["python3", {} "retinue.manager.health"]',
        "/opt/retinue/bin/python {} retinue.agent.kernel",
        "protoc_path: [.venv/bin/python, {} grpc_tools.protoc]",
    ],
)
def test_a_command_with_the_current_directory_is_recognised(text: str) -> None:
    quoted, comma = '"' if '"' in text or "sys" in text else "", "," if "[" in text or "(" in text else ""
    module, alone = f"{quoted}-m{quoted}{comma}", f"{quoted}-I{quoted}{comma}"
    assert RUNS_MODULE.search(text.format(module)) is not None
    assert RUNS_MODULE.search(text.format(f"{alone} {module}")) is None
