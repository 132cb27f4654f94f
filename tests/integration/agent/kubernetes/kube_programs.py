"""The programs of a current Kubernetes for tests: named by the caller, built by `make kubernetes`,
or unpacked once from an archive of them.
"""

from __future__ import annotations

import fcntl
import os
import tarfile
from pathlib import Path

VARIABLE = "RETINUE_KUBE_BIN"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
CHECKOUT = Path(__file__).resolve().parents[4]
BUILT = CHECKOUT / ".cache/kubernetes"


class NoProgramsError(Exception):
    """There are no programs of Kubernetes on this machine."""


def kube_programs() -> Path:
    """Returns the directory of the programs: of the variable RETINUE_KUBE_BIN, or an archive in it unpacked,
    else what was built. Raises NoProgramsError.
    """
    given = Path(os.environ.get(VARIABLE) or BUILT)
    given = given if given.is_absolute() else CHECKOUT / given
    if all((given / name).exists() for name in PROGRAMS):
        return given
    archives = sorted(given.glob("kube-*.tar.xz"))
    if not archives:
        message = (
            f"{given} has no programs of Kubernetes: run `make kubernetes`, or let {VARIABLE} name their directory"
        )
        raise NoProgramsError(message)
    unpacked = BUILT / archives[-1].name.removesuffix(".tar.xz")
    unpacked.mkdir(parents=True, exist_ok=True)
    with (unpacked / ".lock").open("w") as lock:
        # Several workers of one run want them.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (unpacked / ".whole").exists():
            with tarfile.open(archives[-1]) as archive:
                archive.extractall(unpacked, filter="data")
            (unpacked / ".whole").touch()
    return unpacked
