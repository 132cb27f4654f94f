"""The package as others install it: a wheel from the source distribution, in an environment with nothing else,
by its oldest requirements.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from tests.support.eventually import NEVER

ROOT = Path(__file__).parents[3]
PROGRAM = """
from retinue.client import Client
from retinue.client.errors import NotFound


def name(endpoint: str) -> str:
    with Client.connect(endpoint, token="t", ca="c") as client:
        try:
            return client.sessions.get("lab").name
        except NotFound as error:
            return error.reason


reveal_type(name)
wrong: int = name("localhost")
"""


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """Runs a program that ends with `code`; returns all that it prints."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=NEVER,
        check=False,
    )
    assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def pip(python: str | Path, *arguments: str | Path, cwd: Path) -> None:
    """Runs pip with this machine's settings: its index may be another than the public one."""
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *arguments], cwd=cwd, check=True, timeout=NEVER)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    hatchling = (sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(directory))
    subprocess.run(hatchling, cwd=ROOT, check=True, timeout=NEVER)
    (source,) = directory.glob("*.tar.gz")
    # In an environment of its own, as of everyone who builds it.
    pip(sys.executable, "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, source, cwd=directory)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of an installed client are."""
    directory = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", directory], check=True, timeout=NEVER)
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    oldest = [dependency.partition(",")[0].replace(">=", "==") for dependency in dependencies]
    pip(directory / "bin" / "python", "install", "--quiet", "--only-binary", ":all:", wheel, *oldest, cwd=directory)
    return directory / "bin"


def test_the_wheel_has_the_console(wheel: Path) -> None:
    """Who installs it needs no Node."""
    with zipfile.ZipFile(wheel) as archive:
        static = [name for name in archive.namelist() if name.startswith("retinue/manager/console/static/")]
    assert {Path(name).name for name in static} >= {"index.html", "terminal.html", "output.html"}
    scripts = {name for name in static if name.endswith(".js")}
    assert {f"{name}.br" for name in scripts} | {f"{name}.gz" for name in scripts} <= set(static)


def test_packages_have_the_blocking_client(wheel: Path) -> None:
    """It is made when they are built, and in no repository."""
    made = {path.name for path in (ROOT / "client/sync").glob("*.py")}
    (source,) = wheel.parent.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(source) as sources:
        packed = [PurePosixPath(name) for name in archive.namelist()]
        carried = [PurePosixPath(name) for name in sources.getnames()]
    assert {path.name for path in packed if str(path.parent) == "retinue/client/sync"} == made
    assert {path.name for path in carried if path.match("*/client/sync/*.py")} == made
    assert {"__init__.py", "client.py", "sessions.py"} <= made


def test_an_installed_client_runs_without_warnings(programs: Path, tmp_path: Path) -> None:
    # The source distribution was built from this tree, with a history or without.
    assert re.fullmatch(
        r"retinue 0\.\d+\.\d+\+(g[0-9a-f]{12}|d[0-9a-f]{12}|g[0-9a-f]{12}\.d[0-9a-f]{12})\n",
        run(programs / "retinue", "--version", cwd=tmp_path),
    )
    assert "Sessions" in run(programs / "retinue", "--help", cwd=tmp_path)
    imports = "import retinue.client.aio, retinue.client, retinue.client.client, retinue.client.command.sessions.run"
    assert run(programs / "python", "-W", "error", "-c", imports, cwd=tmp_path) == ""
    refused = run(programs / "retinue", "--endpoint", "x y", "ls", cwd=tmp_path, code=2)
    assert "Traceback" not in refused


@pytest.mark.parametrize("server", ["manager", "agent", "router"])
def test_servers_say_what_is_not_installed(programs: Path, tmp_path: Path, server: str) -> None:
    said = run(programs / f"retinue-{server}", "--help", cwd=tmp_path, code=2)
    assert f"pip install 'retinue[{server}]'" in said
    assert len(said.splitlines()) == 1


def test_types_are_published(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    checker = (sys.executable, "-m", "mypy", "--strict", "--python-executable", str(programs / "python"))
    said = run(*checker, "--cache-dir", tmp_path / "cache", "program.py", cwd=tmp_path, code=1).splitlines()
    assert [line.partition(": ")[2] for line in said[:2]] == [
        'note: Revealed type is "def (endpoint: str) -> str"',
        'error: Incompatible types in assignment (expression has type "str", variable has type "int")  [assignment]',
    ]
    assert said[2:] == ["Found 1 error in 1 file (checked 1 source file)"]


def test_type_checkers_of_users_are_pleased(programs: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts/check-user-types", programs / "python"], check=True, timeout=NEVER)


def test_types_of_the_library_are_complete(programs: Path, tmp_path: Path) -> None:
    checker = Path(sys.executable).with_name("pyright")
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [checker, "--outputjson", "--ignoreexternal", "--verifytypes", "retinue.client"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        timeout=NEVER,
        check=False,
    )
    found = json.loads(done.stdout)["typeCompleteness"]
    assert Path(found["pyTypedPath"]).is_relative_to(programs.parent)
    public = [symbol for symbol in found["symbols"] if not symbol["name"].startswith("retinue.client.command.")]
    assert len(public) > 1000
    assert [symbol["name"] for symbol in public if not symbol["isTypeKnown"] and symbol["isExported"]] == []


def test_rules_and_dashboards_come_with_the_client(programs: Path, tmp_path: Path) -> None:
    run(programs / "retinue", "admin", "monitoring", tmp_path / "monitoring", cwd=tmp_path)
    sources = [*ROOT.glob("deploy/prometheus/*.yaml"), *ROOT.glob("deploy/grafana/*.json")]
    assert len(sources) > 3
    written = {path.name: path.read_bytes() for path in (tmp_path / "monitoring").iterdir()}
    assert written == {path.name: path.read_bytes() for path in sources}


def test_protos_come_with_the_client(programs: Path, tmp_path: Path) -> None:
    run(programs / "retinue", "protos", tmp_path / "api", cwd=tmp_path)
    kept = ROOT / "protos"
    sources = list(kept.rglob("*.proto"))
    assert sources
    for source in sources:
        assert (tmp_path / "api" / source.relative_to(kept)).read_bytes() == source.read_bytes()
    # With all that they import, for a compiler that brings nothing.
    compile_all = "import sys; from grpc_tools import protoc; sys.exit(protoc.main(['protoc', *sys.argv[1:]]))"
    files = sorted(str(path.relative_to(tmp_path / "api")) for path in (tmp_path / "api").rglob("*.proto"))
    run(sys.executable, "-c", compile_all, "-Iapi", "--descriptor_set_out=all", *files, cwd=tmp_path)
