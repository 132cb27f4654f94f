"""The Python for kernels, built by an interpreter of Debian's."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from docs.generator import ROOT
from tests.support.eventually import NEVER

# Made with Debian's Python, by scripts/install.
DEBIAN = Path("/var/cache/retinue/jupyterlab/bin/python")
_BUILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from retinue.agent.kernel import python_runtime
python_runtime.REQUIREMENTS = (sys.argv[3],)
print(python_runtime.build_runtime(Path(sys.argv[2])))
"""


def make_wheel(directory: Path) -> Path:
    """Makes a package of one module, so that nothing is fetched."""
    wheel = directory / "in_a_kernel-1.0-py3-none-any.whl"
    facts = "in_a_kernel-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("in_a_kernel.py", "VALUE = 42\n")
        archive.writestr(f"{facts}/METADATA", "Metadata-Version: 2.1\nName: in-a-kernel\nVersion: 1.0\n")
        archive.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{facts}/RECORD", "")
    return wheel


def test_debians_interpreter_finds_the_packages(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    command = [str(DEBIAN), "-c", _BUILD, str(ROOT / "src"), str(cache), str(make_wheel(tmp_path))]
    built = subprocess.run(command, check=True, capture_output=True, text=True, timeout=NEVER, cwd=tmp_path)
    root = Path(built.stdout.strip())
    # As the launcher starts it, but for the place.
    linker = [
        str(root / "lib" / "linker"),
        "--argv0",
        str(root / "bin" / "python3"),
        "--library-path",
        str(root / "lib"),
    ]
    asked = [*linker, str(root / "bin" / "interpreter"), "-c", "import in_a_kernel; print(in_a_kernel.VALUE)"]
    done = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=NEVER, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("42\n", "")
