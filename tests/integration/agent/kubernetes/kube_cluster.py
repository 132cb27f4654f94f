"""A Kubernetes cluster of one node for tests, with everything of its own: network namespace, control groups,
containers and files.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lightkube import ApiError, Client, KubeConfig
from lightkube.codecs import load_all_yaml
from lightkube.core.exceptions import ConfigError
from lightkube.models.core_v1 import Container, PodSpec, ResourceRequirements, SecurityContext
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Node, Pod, PodEviction, ServiceAccount

from tests.integration.agent.kubernetes.kube_files import (
    CONTAINERD,
    NAMESPACE,
    image_archive,
    kubeconfig,
    kubelet,
    network,
)
from tests.integration.agent.kubernetes.kube_programs import kube_programs
from tests.support.eventually import NEVER, eventually_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NODE = "n1"
IMAGE = "docker.io/retinue-test/busybox:1"
PAUSE = "docker.io/retinue-test/pause:1"
CNI = Path("/usr/lib/cni")
MANIFESTS = Path(__file__).resolve().parents[4] / "deploy/kubernetes"
HIERARCHIES = Path("/sys/fs/cgroup")
_STOP_ORDER = ("kubelet", "scheduler", "controllers", "api", "etcd")


class KubeCluster:
    """The cluster. Its processes are ended by their numbers, and nothing is left of it after `stop`."""

    def __init__(self) -> None:
        self._binaries = kube_programs()
        self.label = secrets.token_hex(3)
        # The path of a socket must be short.
        self.directory = Path(tempfile.mkdtemp(prefix="rk-", dir="/tmp"))
        self.namespace = f"rk-{self.label}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        third, self._reservation = _reserve_network()
        self._host, self.address = f"10.231.{third}.1", f"10.231.{third}.2"
        self._uplink = f"rk{self.label}"

    @property
    def server(self) -> str:
        """The address of the API."""
        return f"https://{self.address}:6443"

    @property
    def root(self) -> str:
        """Name of the control group that all pods are beneath."""
        return f"rk-{self.label}"

    @property
    def config(self) -> Path:
        """The configuration of an agent."""
        return self.directory / "agent.kc"

    @property
    def runtime(self) -> Path:
        """The socket of the node's container runtime."""
        return self.directory / "containerd.sock"

    def client(self, user: str = "admin") -> Client:
        """Returns a client that the caller closes."""
        return Client(KubeConfig.from_file(self.directory / f"{user}.kc"), namespace=NAMESPACE)

    def start(self) -> None:
        """Starts all of it and waits until pods can be created."""
        for name in ("certs", "cni", "kubelet"):
            (self.directory / name).mkdir()
        self._make_network()
        self._write_files()
        self.run("containerd", "containerd", "--config", str(self.directory / "containerd.toml"))
        self.run("etcd", *self._etcd())
        eventually_blocking(lambda: self._ctr("version") == 0)
        self._import_images()
        self.start_api()
        for name in ("controllers", "scheduler", "kubelet"):
            self.start_program(name)
        self._settle()

    def join(self, switch: str, address: str) -> Path:
        """Gives the cluster an address on the network of a switch namespace, and returns an agent's configuration
        that uses it.
        """
        port = f"k{self.label}"
        peer = ["peer", "name", "up1", "netns", self.namespace]
        for command in (
            ["ip", "-n", switch, "link", "add", port, "type", "veth", *peer],
            ["ip", "-n", switch, "link", "set", port, "master", "switch", "up"],
            ["ip", "-n", self.namespace, "addr", "add", f"{address}/24", "dev", "up1"],
            ["ip", "-n", self.namespace, "link", "set", "up1", "up"],
        ):
            _run(*command)
        config = self.directory / "agent-of-node.kc"
        config.write_text(json.dumps(kubeconfig(f"https://{address}:6443", "agent-token")))
        return config

    def import_image(self, archive: bytes) -> None:
        """Gives the node an image as `docker save` writes it."""
        file = self.directory / "image.tar"
        file.write_bytes(archive)
        assert self._ctr("-n", "k8s.io", "images", "import", str(file)) == 0

    def push_image(self, reference: str, archive: bytes) -> None:
        """Puts an image into a registry of the cluster's network; the node does not have it afterwards."""
        self.import_image(archive)
        images = ("-n", "k8s.io", "images")
        inside = ("nsenter", f"--net=/run/netns/{self.namespace}")
        # The registry may be starting.
        eventually_blocking(lambda: self._ctr(*images, "push", "--plain-http", reference, inside=inside) == 0)
        assert self._ctr(*images, "rm", "--sync", reference) == 0

    def start_program(self, name: str, *more: str) -> None:
        """Starts one of the programs that talk to the API, again if it was ended; `more` are further arguments."""
        directory = self.directory
        arguments = {
            "controllers": [
                *("kube-controller-manager", f"--kubeconfig={directory}/controllers.kc", "--leader-elect=false"),
                *(f"--service-account-private-key-file={directory}/sa.key", "--use-service-account-credentials"),
                # A node whose kubelet is only slow is not lost.
                *("--bind-address=127.0.0.1", f"--node-monitor-grace-period={NEVER:.0f}s"),
            ],
            "scheduler": [
                *("kube-scheduler", f"--kubeconfig={directory}/scheduler.kc", "--leader-elect=false"),
                "--bind-address=127.0.0.1",
            ],
            "kubelet": [
                *("kubelet", f"--config={directory}/kubelet.yaml", f"--kubeconfig={directory}/node.kc"),
                *(f"--hostname-override={NODE}", "--node-ip=172.31.0.1", f"--root-dir={directory}/kubelet"),
                f"--cert-dir={directory}/certs",
            ],
        }[name]
        self.run(name, str(self._binaries / arguments[0]), *arguments[1:], *more)

    def start_api(self) -> None:
        """Starts the API server and waits until it is ready."""
        directory = self.directory
        self.run(
            "api",
            str(self._binaries / "kube-apiserver"),
            *("--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0", "--secure-port=6443"),
            *(f"--cert-dir={directory}/certs", f"--token-auth-file={directory}/tokens.csv"),
            *("--authorization-mode=Node,RBAC", f"--service-account-key-file={directory}/sa.pub"),
            f"--service-account-signing-key-file={directory}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            *("--service-cluster-ip-range=10.96.0.0/16", "--advertise-address=172.31.0.1"),
            *("--allow-privileged=true", "--enable-admission-plugins=NodeRestriction"),
        )
        with contextlib.closing(_Closing(self.client())) as closing:
            eventually_blocking(lambda: _answers(closing.client))

    def run(self, name: str, *command: str) -> None:
        """Starts a process of the cluster inside its network namespace."""
        with (self.directory / f"{name}.log").open("ab") as log:
            words = ["nsenter", f"--net=/run/netns/{self.namespace}", *command]
            self.processes[name] = subprocess.Popen(
                words,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to one of its processes."""
        self.processes[name].send_signal(number)

    def end(self, name: str) -> None:
        """Kills one of its processes and waits for its end."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(NEVER)

    def remove_pods(self) -> None:
        """Removes all pods of kernels from the API, without asking their nodes: by force, and with their finalizers."""
        with contextlib.closing(_Closing(self.client())) as closing:
            for pod in closing.client.list(Pod, namespace=NAMESPACE):
                assert pod.metadata is not None
                name = str(pod.metadata.name)
                with contextlib.suppress(ApiError):
                    closing.client.patch(Pod, name, {"metadata": {"finalizers": None}}, namespace=NAMESPACE)
                    closing.client.delete(Pod, name, namespace=NAMESPACE, grace_period=0)

    def is_ready(self) -> bool:
        """Returns whether the cluster counts its node as one that works."""
        with contextlib.closing(_Closing(self.client())) as closing:
            return _is_ready(closing.client)

    def refused(self, user: str, namespace: str = NAMESPACE) -> str:
        """Returns why a user may not make a pod with privileges."""
        rights = SecurityContext(privileged=True)
        spec = PodSpec(
            containers=[Container(name="c", image=IMAGE, securityContext=rights)], nodeName=NODE, restartPolicy="Never"
        )
        with contextlib.closing(_Closing(self.client(user))) as closing:
            try:
                closing.client.create(Pod(metadata=ObjectMeta(name="other", namespace=namespace), spec=spec))
            except ApiError as error:
                return str(error.status.message)
        return ""

    def delete(self, name: str) -> None:
        """Asks for the end of a pod, as others may."""
        with contextlib.closing(_Closing(self.client())) as closing:
            closing.client.delete(Pod, name, namespace=NAMESPACE)

    def resources(self, name: str) -> tuple[dict[str, str], dict[str, str]]:
        """Returns what the container of a pod requests, and its limits."""
        with contextlib.closing(_Closing(self.client())) as closing:
            pod = closing.client.get(Pod, name, namespace=NAMESPACE)
        found = pod.spec.containers[0].resources if pod.spec is not None else None
        assert found is not None
        return dict(found.requests or {}), dict(found.limits or {})

    @contextlib.contextmanager
    def foreign_pod(self, cpu: str) -> Iterator[None]:
        """Has the cluster's own scheduler place a pod of another user; it is gone afterwards."""
        container = Container(
            name="c",
            image=IMAGE,
            command=["/bin/sleep", "1000"],
            resources=ResourceRequirements(requests={"cpu": cpu}),
        )
        name, spec = f"other-{secrets.token_hex(3)}", PodSpec(containers=[container], terminationGracePeriodSeconds=0)
        with contextlib.closing(_Closing(self.client())) as closing:
            client = closing.client
            with contextlib.suppress(ApiError):
                # The controllers make it as well, some seconds later.
                client.create(ServiceAccount(metadata=ObjectMeta(name="default", namespace="default")))
            client.create(Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=spec))
            try:
                eventually_blocking(lambda: _runs(client, name))
                yield
            finally:
                client.delete(Pod, name, namespace="default", grace_period=0)

    def say_disk_is_full(self) -> None:
        """Has the node say what kubelet says of a full disk, until it says something again."""
        condition = {"type": "DiskPressure", "status": "True", "reason": "Test", "message": "kubelet has disk pressure"}
        with contextlib.closing(_Closing(self.client())) as closing:
            closing.client.patch(Node.Status, NODE, {"status": {"conditions": [condition]}})

    def evict(self, name: str) -> None:
        """Evicts a pod through the API, as a drain of its node does."""
        with contextlib.closing(_Closing(self.client())) as closing:
            eviction = PodEviction(metadata=ObjectMeta(name=name, namespace=NAMESPACE))
            closing.client.create(eviction, name, namespace=NAMESPACE)

    def pods(self) -> set[str]:
        """Names of the pods of kernels that are there."""
        return set(self.uids())

    def uids(self) -> dict[str, str]:
        """Returns the uids of the pods of kernels that are there, by their names."""
        with contextlib.closing(_Closing(self.client())) as closing:
            found = [pod.metadata for pod in closing.client.list(Pod, namespace=NAMESPACE)]
        return {str(metadata.name): str(metadata.uid) for metadata in found if metadata is not None}

    def kernel_processes(self) -> set[int]:
        """Returns the processes of all pods but those of agents."""
        with contextlib.closing(_Closing(self.client())) as closing:
            agents = [pod.metadata for pod in closing.client.list(Pod, namespace="retinue")]
        return self._members(*(str(metadata.uid) for metadata in agents if metadata is not None))

    def stop(self) -> None:
        """Ends all of it, containers with it, and removes what it has made."""
        for name in _STOP_ORDER:
            if (process := self.processes.pop(name, None)) is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(NEVER)
        for pid in self._members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for shim in self._shims():
            with contextlib.suppress(ProcessLookupError):
                os.kill(shim, signal.SIGKILL)
        if (containerd := self.processes.pop("containerd", None)) is not None:
            containerd.terminate()
            containerd.wait(NEVER)
        eventually_blocking(lambda: not self._members() and not self._shims())
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted(mounts, reverse=True):
            if mount.startswith(f"{self.directory}/"):
                _run("umount", "--lazy", mount, check=False)
        for result in Path("/var/lib/cni/results").glob(f"{self.directory.name}-*"):
            result.unlink()
        _run("ip", "netns", "del", self.namespace, check=False)
        _run("ip", "link", "del", self._uplink, check=False)
        for group in self._groups():
            for directory, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._reservation.close()

    def _settle(self) -> None:
        with contextlib.closing(_Closing(self.client())) as closing:
            client = closing.client
            for file in sorted(MANIFESTS.glob("*.yaml")):
                for resource in load_all_yaml(file.read_text()):
                    client.create(resource)
            with contextlib.suppress(ApiError):
                # The controllers make it as well, some seconds later.
                client.create(ServiceAccount(metadata=ObjectMeta(name="default", namespace=NAMESPACE)))
            eventually_blocking(lambda: _is_ready(client))

    def _make_network(self) -> None:
        name, inside = self.namespace, ["ip", "-n", self.namespace]
        peer = ["peer", "name", "up0", "netns", name]
        for command in (
            ["ip", "netns", "add", name],
            [*inside, "link", "set", "lo", "up"],
            [*inside, "link", "add", "kbr0", "type", "bridge"],
            [*inside, "addr", "add", "172.31.0.1/24", "dev", "kbr0"],
            [*inside, "link", "set", "kbr0", "up"],
            [*inside, "route", "add", "default", "dev", "kbr0"],
            ["ip", "link", "add", self._uplink, "type", "veth", *peer],
            ["ip", "addr", "add", f"{self._host}/24", "dev", self._uplink],
            ["ip", "link", "set", self._uplink, "up"],
            [*inside, "addr", "add", f"{self.address}/24", "dev", "up0"],
            [*inside, "link", "set", "up0", "up"],
        ):
            _run(*command)

    def _etcd(self) -> list[str]:
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        options = {
            "data-dir": f"{self.directory}/etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        return ["etcd", *(f"--{name}={value}" for name, value in options.items()), "--unsafe-no-fsync"]

    def _write_files(self) -> None:
        directory = self.directory
        users = {
            "admin": "admin,a,system:masters",
            "scheduler": "system:kube-scheduler,s",
            "controllers": "system:kube-controller-manager,m",
            "node": f"system:node:{NODE},n,system:nodes",
            "agent": "system:serviceaccount:retinue:retinue-agent,r",
            "other": "system:serviceaccount:retinue-kernels:other,o,system:masters",
        }
        (directory / "tokens.csv").write_text("".join(f"{name}-token,{rest}\n" for name, rest in users.items()))
        for name in users:
            server = self.server if name in {"admin", "agent", "other"} else "https://127.0.0.1:6443"
            (directory / f"{name}.kc").write_text(json.dumps(kubeconfig(server, f"{name}-token")))
        key, public = directory / "sa.key", directory / "sa.pub"
        _run("openssl", "genrsa", "-out", str(key), "2048")
        _run("openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public))
        (directory / "containerd.toml").write_text(CONTAINERD.format(directory=directory, pause=PAUSE, cni=CNI))
        (directory / "cni/10-kube.conflist").write_text(json.dumps(network(directory)))
        for group in self._groups():
            group.mkdir()
        (directory / "kubelet.yaml").write_text(json.dumps(kubelet(directory, f"/{self.root}")))

    def _import_images(self) -> None:
        self.import_image(image_archive(IMAGE, {}))
        self.import_image(image_archive(PAUSE, {"Entrypoint": ["/bin/busybox", "sleep", "2147483647"]}))

    def _ctr(self, *arguments: str, inside: Sequence[str] = ()) -> int:
        command = [*inside, "ctr", "-a", str(self.runtime), *arguments]
        return subprocess.run(command, check=False, capture_output=True).returncode

    def _groups(self) -> list[Path]:
        if (HIERARCHIES / "cgroup.controllers").exists():
            return [HIERARCHIES / self.root]
        return [path / self.root for path in HIERARCHIES.iterdir() if path.is_dir() and not path.is_symlink()]

    def _members(self, *others: str) -> set[int]:
        """Returns the processes in the control groups of pods, but for those of pods with these uids."""
        found: set[int] = set()
        for group in self._groups():
            # Groups go while they are looked through.
            for directory, _, _ in os.walk(group):
                if not any(uid in directory for uid in others):
                    with contextlib.suppress(OSError):
                        found |= set(map(int, (Path(directory) / "cgroup.procs").read_text().split()))
        return found

    def _shims(self) -> set[int]:
        """What watches over the containers."""
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().decode().split("\0")
                if "shim" in words[0] and any(word.startswith(f"{self.directory}/") for word in words):
                    found.add(int(process.name))
        return found


def _reserve_network() -> tuple[int, socket.socket]:
    """Returns the third number of a network that no other cluster of this machine has, until the socket is closed."""
    for third in secrets.SystemRandom().sample(range(250), 250):
        reservation = socket.socket(socket.AF_UNIX)
        try:
            # An abstract name: the kernel frees it whatever becomes of the process.
            reservation.bind(f"\0retinue-test-kube-{third}")
        except OSError:
            reservation.close()
        else:
            return third, reservation
    raise RuntimeError("all networks of test clusters are in use")


def _run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, capture_output=True)


class _Closing:
    """A client that is closed: lightkube's blocking one has no `close`."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def close(self) -> None:
        self.client._client.close()  # type: ignore[no-untyped-call]  # noqa: SLF001


def _answers(client: Client) -> bool:
    with contextlib.suppress(Exception):
        next(iter(client.list(Namespace)), None)
        return True
    return False


def _runs(client: Client, name: str) -> bool:
    status = client.get(Pod, name, namespace="default").status
    return status is not None and status.phase == "Running"


def _is_ready(client: Client) -> bool:
    with contextlib.suppress(ApiError, ConfigError):
        status = client.get(Node, NODE).status
        conditions = (status.conditions if status is not None else None) or []
        client.get(ServiceAccount, "default", namespace=NAMESPACE)
        return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)
    return False
