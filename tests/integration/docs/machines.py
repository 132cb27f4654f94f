"""Machines to type commands on: each a network namespace on an underlay, with an /etc, /opt and /var/lib of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.devtools import nodes, process
from tests.integration.docs import systemctl
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
_ENVIRONMENT = Path(sys.prefix)
_DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(slots=True)
class Machine:
    """One machine; `programs` are directories that come first on its PATH."""

    directory: Path
    node: nodes.Node
    holder: subprocess.Popen[bytes]
    programs: tuple[Path, ...]
    environment: dict[str, str] = field(default_factory=dict)

    def type(self, commands: str) -> str:
        """Runs commands as a shell of root would, and returns what they print; fails unless all succeed."""
        done = subprocess.run(
            [
                *("nsenter", "--target", str(self.holder.pid), "--mount", "--net", "--"),
                *(
                    "timeout",
                    f"{NEVER}",
                    "bash",
                    "-euo",
                    "pipefail",
                    "-c",
                    f"cd {shlex.quote(str(ROOT))}\n{commands}",
                ),
            ],
            env={
                "HOME": str(self.directory),
                "COLUMNS": "200",
                **self.environment,
                "PATH": os.pathsep.join([*map(str, self.programs), *_DIRECTORIES]),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        logs = "\n".join(path.read_text() for path in self._services("*.log")) if done.returncode else ""
        assert done.returncode == 0, f"{commands}\nended with {done.returncode}:\n{done.stdout}\n{logs}"
        return done.stdout

    def stop(self) -> None:
        """Ends the services, and then the machine."""
        for path in self._services("*.pid"):
            pid = int(path.read_text())
            if (started := process.start_time(pid)) is not None:
                process.end(pid, started, seconds=NEVER)
        self.holder.kill()
        self.holder.wait()

    def _services(self, pattern: str) -> list[Path]:
        return sorted((self.directory / "lib" / systemctl.SERVICES.name).glob(pattern))


@contextlib.contextmanager
def machine(
    underlay: nodes.Underlay, index: int, programs: tuple[Path, ...], hosts: dict[str, str]
) -> Iterator[Machine]:
    """A machine on an underlay, which knows others by name."""
    with tempfile.TemporaryDirectory(prefix="rt-machine-") as made:
        directory = Path(made)
        directory.chmod(0o755)
        for name in ("etc", "etc.work", "hidden", "hidden.work", "lib", "opt", "shims"):
            (directory / name).mkdir()
        shim = directory / "shims" / "systemctl"
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} {systemctl.__file__} "$@"\n')
        shim.chmod(0o755)
        (directory / "opt" / "retinue").symlink_to(_ENVIRONMENT)
        (directory / "etc" / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in hosts.items())
        )
        # Other names are asked of no server: this address refuses at once.
        (directory / "etc" / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        node = nodes.add_node(underlay, index)
        try:
            with subprocess.Popen(
                [
                    *("nsenter", f"--net=/run/netns/{node.namespace}"),
                    *("unshare", "--mount", "--propagation", "unchanged", "bash", "-euc", _setup(directory)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
            ) as holder:
                found = Machine(directory, node, holder, (directory / "shims", *programs))
                try:
                    assert holder.stdout is not None
                    assert holder.stdout.readline() == b"ready\n"
                    yield found
                finally:
                    found.stop()
        finally:
            nodes.delete_node(node)


def _setup(directory: Path) -> str:
    """Mounts of a machine, which nothing outside sees. Only /run/netns stays that of all:
    agents mount namespaces there.
    """
    overlaid = {Path("/etc"): directory / "etc"}
    if (hidden := _hidden()) is not None:
        overlaid[hidden] = directory / "hidden"
    own = "/ /opt /run /var /var/lib " + " ".join(map(str, overlaid))
    return "\n".join(
        [
            f"for point in {own}; do if mountpoint -q $point; then mount --make-private $point; fi; done",
            *(
                f"mount -t overlay overlay -o lowerdir={lower},upperdir={upper},workdir={upper}.work {lower}"
                for lower, upper in overlaid.items()
            ),
            *(f"chmod 755 {lower}" for lower in overlaid),
            f"mount --bind {directory}/opt /opt",
            f"mount --bind {directory}/lib /var/lib",
            # This machine's engine is not theirs.
            "if [ -e /run/docker.sock ]; then mount --bind /dev/null /run/docker.sock; fi",
            "echo ready",
            "exec sleep infinity",
        ]
    )


def _hidden() -> Path | None:
    """The directory that keeps users other than root from the interpreter or this checkout."""
    for path in (Path(sys.base_prefix), ROOT):
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & 0o001:
                return parent
    return None
