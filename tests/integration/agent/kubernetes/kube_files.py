"""What the programs of a test's Kubernetes cluster read: their configurations, and the archive of an image."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from typing import TYPE_CHECKING

from tests.integration.agent.docker.engine import BUSYBOX

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAMESPACE = "retinue-kernels"


def kubeconfig(server: str, token: str) -> Mapping[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
        "current-context": "x",
    }


def network(directory: Path) -> Mapping[str, object]:
    addresses = {
        "type": "host-local",
        "subnet": "10.244.0.0/24",
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": f"{directory}/ipam",
    }
    bridge = {"type": "bridge", "bridge": "kbr0", "isGateway": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": directory.name, "plugins": [bridge, {"type": "loopback"}]}


def kubelet(directory: Path, root: str) -> Mapping[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": root,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "containerRuntimeEndpoint": f"unix://{directory}/containerd.sock",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": "172.31.0.1",
        "oomScoreAdj": 0,
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": f"{directory}/pod-logs",
        "nodeStatusUpdateFrequency": "5s",
    }


def image_archive(reference: str, settings: Mapping[str, object], files: Mapping[str, bytes] | None = None) -> bytes:
    """Returns an archive of an image of a static busybox and nothing else but these files, with these settings."""
    names = subprocess.run([str(BUSYBOX), "--list"], capture_output=True, text=True, check=True).stdout.split()
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.add(BUSYBOX.resolve(), "bin/busybox")
        for applet in set(names) - {"busybox"}:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        for path, data in (files or {}).items():
            file = tarfile.TarInfo(path)
            file.size = len(data)
            archive.addfile(file, io.BytesIO(data))
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    settings = {"Env": ["PATH=/bin"], **settings}
    described = {
        "architecture": machine,
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    config = json.dumps(described).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": [f"{digest}/layer.tar"]}]
    whole = io.BytesIO()
    contents = {name: config, f"{digest}/layer.tar": layer.getvalue(), "manifest.json": json.dumps(manifest).encode()}
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for path, content in contents.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


CONTAINERD = """version = 2
root = "{directory}/containerd"
state = "{directory}/run"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{directory}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
