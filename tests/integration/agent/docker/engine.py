"""Docker engines of their own for tests, and an image made at test time: nothing comes from outside the machine."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker

from retinue.devtools import engine
from tests.support.eventually import NEVER, eventually_blocking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IMAGE = "retinue-test/busybox:1"
STOP_TIMEOUT = 30.0
"""Seconds after which an engine that was asked to end is killed."""
PROGRAMS = {"dockerd": "docker.io", "busybox": "busybox-static", "gcc": "gcc libc6-dev"}
"""Debian packages by the program that says they are there."""
BUSYBOX = Path("/bin/busybox")
INSTALL_LOCK = Path("/run/lock/retinue-test-packages")
"""One for the machine: apt waits for other programs, but not when it updates its lists."""
INSTALL_SECONDS = 600
"""How long apt waits for a program of others that installs packages."""


def install(programs: Mapping[str, str] = PROGRAMS) -> None:
    """Installs packages of programs that are missing: by default what engines,
    images and first processes are made of.
    """
    if not _missing(programs):
        return
    with INSTALL_LOCK.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another run may have installed them meanwhile.
        if not (packages := _missing(programs)):
            return
        environment = dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive"}
        apt = ["apt-get", "-o", f"DPkg::Lock::Timeout={INSTALL_SECONDS}"]
        command = [*apt, "install", "-y", "-qq", "--no-install-recommends", *packages]
        subprocess.run([*apt, "update", "-qq"], check=True, env=environment, capture_output=True)
        subprocess.run(command, check=True, env=environment, capture_output=True)


def _missing(programs: Mapping[str, str]) -> list[str]:
    return " ".join(package for program, package in programs.items() if shutil.which(program) is None).split()


def linked(program: str) -> list[str]:
    """The path of a program of this machine, and those of the libraries that it needs."""
    path = shutil.which(program)
    assert path is not None, program
    listing = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout  # noqa: S607
    return [path, *(word for line in listing.splitlines() for word in line.split() if word.startswith("/"))]


class TestEngine:
    """One `dockerd` with everything of its own below one directory; in a network namespace if `namespace` is given.

    With `live_restore`, containers run on when it ends. `listen` is an `ADDRESS:PORT` where it
    answers every caller as well. `configuration` is its daemon.json. `users` is the content of its /etc/subuid and
    /etc/subgid, which no other program sees.
    """

    __test__ = False

    def __init__(
        self,
        namespace: str = "",
        *,
        live_restore: bool = False,
        listen: str = "",
        configuration: Mapping[str, Any] | None = None,
        users: str = "",
    ) -> None:
        # The path of a socket must be short.
        self.directory = Path(tempfile.mkdtemp(prefix="rt-test-docker-", dir="/tmp"))
        self.host = f"unix://{self.directory}/s"
        self._namespace = namespace
        self._live_restore = live_restore
        self._listen = listen
        self._configuration = {} if configuration is None else configuration
        self._users = users
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it answers."""
        enter = ["nsenter", f"--net=/run/netns/{self._namespace}"] if self._namespace else []
        if self._users:
            users = self.directory / "users"
            users.write_text(self._users)
            # What its users become has to get through.
            self.directory.chmod(0o711)
            script = f'mount --bind {users} /etc/subuid && mount --bind {users} /etc/subgid && exec "$@"'
            enter += ["unshare", "--mount", "--propagation=slave", "sh", "-c", script, "sh"]
        configuration = self.directory / "daemon.json"
        configuration.write_text(json.dumps(self._configuration))
        places = {"data-root": "data", "exec-root": "exec", "pidfile": "pid", "config-file": "daemon.json"}
        options = [f"--{option}={self.directory / name}" for option, name in places.items()]
        # It would try again for a minute by itself.
        options.append("--max-download-attempts=1")
        if self._live_restore:
            options.append("--live-restore")
        if self._listen:
            # Without the second word it would wait for a while, as a warning.
            options += [f"--host=tcp://{self._listen}", "--tls=false"]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*enter, "dockerd", *options, f"--host={self.host}", "--iptables=false", "--bridge=none"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ended = self._process.poll
        eventually_blocking(lambda: engine.answers(self.host) or ended() is not None)
        assert ended() is None, (self.directory / "log").read_text()

    def client(self) -> docker.APIClient:
        """A client of the SDK, to be closed by the caller."""
        return docker.APIClient(base_url=self.host, version="auto", timeout=NEVER)

    def make_image(
        self,
        name: str = IMAGE,
        programs: Sequence[str] = (),
        changes: Sequence[str] = (),
        entries: Sequence[tarfile.TarInfo] = (),
        files: Mapping[str, bytes] | None = None,
        trees: Sequence[str] = (),
    ) -> None:
        """Makes an image of a static busybox and nothing else but these programs of the machine,
        with what they are linked to.

        `changes` are lines of a Dockerfile, `entries` further entries without content,
        `files` the contents of further files, `trees` further files and directories of the machine.
        """
        content = io.BytesIO()
        names = subprocess.run([str(BUSYBOX), "--list"], check=True, capture_output=True, text=True).stdout.split()
        with tarfile.open(fileobj=content, mode="w") as archive:
            archive.add(BUSYBOX.resolve(), "bin/busybox")
            for path in sorted({path for program in programs for path in linked(program)}):
                archive.add(Path(path).resolve(), path.removeprefix("/"))
            for tree in trees:
                archive.add(tree, tree.removeprefix("/"))
            for applet in set(names) - {"busybox"}:
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
            for entry in entries:
                archive.addfile(entry)
            for path, data in (files or {}).items():
                file = tarfile.TarInfo(path)
                file.size = len(data)
                archive.addfile(file, io.BytesIO(data))
        client = self.client()
        try:
            repository, _, tag = name.rpartition(":")
            data = content.getvalue()
            client.import_image_from_data(data, repository=repository, tag=tag, changes=list(changes) or None)
        finally:
            client.close()

    def take_image(self, other: TestEngine, name: str) -> None:
        """Copies an image from another engine: made a second time it would be another one."""
        source, target = other.client(), self.client()
        try:
            target.load_image(b"".join(source.get_image(name)))
        finally:
            source.close()
            target.close()

    def image_of(self, name: str) -> str:
        """Id of the image that a container was made of."""
        client = self.client()
        try:
            return str(client.inspect_container(name)["Image"])
        finally:
            client.close()

    def inspected(self, name: str) -> Any:
        """Returns what the engine says of a container."""
        client = self.client()
        try:
            return client.inspect_container(name)
        finally:
            client.close()

    def remove_containers(self, agent_id: str) -> None:
        """Removes what is left of an agent's containers."""
        client = self.client()
        try:
            for container in client.containers(all=True, filters={"label": f"retinue.agent={agent_id}"}):
                client.remove_container(container["Id"], v=True, force=True)
        finally:
            client.close()

    def end(self, number: signal.Signals, seconds: float = NEVER) -> None:
        """Sends a signal to the engine and waits for its end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(seconds)
            if number == signal.SIGKILL:
                # Its containerd dies with it, and may be a zombie for long: the next one would take that for alive.
                (self.directory / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def kill_containerd(self) -> None:
        """Kills what the engine keeps containers by, which the engine starts again."""
        os.kill(int((self.directory / "exec/containerd/containerd.pid").read_text()), signal.SIGKILL)

    def stop(self) -> None:
        """Ends it, its containers with it, and removes all of it."""
        try:
            self.end(signal.SIGTERM, STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.end(signal.SIGKILL)
        for shim in self._shims():
            # It may end meanwhile.
            with contextlib.suppress(OSError):
                for pid in [*map(int, (shim / "task" / shim.name / "children").read_text().split()), int(shim.name)]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        # What was killed may mount and write for a moment.
        eventually_blocking(self._remove, ignoring=OSError)

    def _remove(self) -> bool:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted(mounts, reverse=True):
            if mount.startswith(f"{self.directory}/"):
                subprocess.run(["umount", "--lazy", mount], check=False, stderr=subprocess.DEVNULL)  # noqa: S607
        shutil.rmtree(self.directory)
        return True

    def _shims(self) -> list[Path]:
        """What watches over containers of this engine, in /proc; an engine that was killed leaves them."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_text().split("\0")
                if "shim" in command[0] and any(word.startswith(f"{self.directory}/") for word in command):
                    found.append(process)
        return found
