"""A Slurm of one node on loopback, in a directory of its own, tuned for many short jobs: the peer of `noop_sessions`.

Real daemons as Debian ships them (munged, slurmctld, slurmd), started and stopped here, with ports and files of their
own. Slurm keeps its state on disk as it always does. The configuration is that of docs/performance.md.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo")
CPUS = 256
_CONFIGURATION = """
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/builtin
PriorityType=priority/basic
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
MaxJobCount=200000
MinJobAge=2
MaxArraySize=20001
SlurmdParameters=config_overrides
SchedulerParameters=defer,default_queue_depth=10000,sched_min_interval=100000,batch_sched_delay=0
SlurmctldDebug=error
SlurmdDebug=error
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=100000 State=UNKNOWN
PartitionName=bench Nodes={host} Default=YES MaxTime=INFINITE State=UP DefMemPerCPU=1
"""


class SlurmError(Exception):
    """It does not come up, or a job failed."""


class Slurm:
    """A running Slurm; jobs go to its one partition."""

    def __init__(self, directory: Path) -> None:
        """Made by `running`."""
        self.directory = directory
        self._environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}

    def call(self, *arguments: str) -> str:
        """What a command of Slurm prints. Raises SlurmError."""
        done = subprocess.run(
            arguments, env=self._environment, cwd=self.directory, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SlurmError(f"{arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def run_jobs(self, count: int, limit_seconds: float) -> tuple[int, float]:
        """Submits `count` jobs that do nothing, as one array, which is the fastest way there is;
        waits until the last has ended.

        Returns the jobs that had ended and the seconds from submit; fewer than asked for when the time is up.
        """
        begin = time.perf_counter()
        self.call(
            *("sbatch", f"--array=1-{count}", "-n1", "--mem=1", "--output=/dev/null", "--error=/dev/null"),
            *("--wrap", "true"),
        )
        while True:
            # An array's waiting tasks are one line without -r; with it each task has one.
            left = len(self.call("squeue", "-h", "-r", "-o", "%i", "-t", "PD,R,CG,CF").splitlines())
            elapsed = time.perf_counter() - begin
            if left == 0:
                return count, elapsed
            if elapsed > limit_seconds:
                self.call("scancel", "--partition=bench")
                return count - left, elapsed
            time.sleep(0.2)


def version() -> str:
    """The version of Slurm that is installed. Raises SlurmError when it is not all there."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [command for command in COMMANDS if shutil.which(command, path=path) is None]
    if missing:
        raise SlurmError(f"not installed: {', '.join(missing)} (Debian packages slurm-wlm and munge)")
    return subprocess.run(["/usr/sbin/slurmd", "-V"], capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def running(cpus: int = CPUS) -> Iterator[Slurm]:
    """A Slurm with `cpus` processors in name, ready for jobs; stopped and removed at the end. Needs root.
    Raises SlurmError.
    """
    version()
    directory = Path(tempfile.mkdtemp(prefix="retinue-bench-slurm-"))
    directory.chmod(0o755)
    children: list[subprocess.Popen[bytes]] = []
    try:
        host = socket.gethostname().split(".")[0]
        ports = _free_ports(2)
        (directory / "state").mkdir()
        (directory / "spool").mkdir()
        (directory / "slurm.conf").write_text(
            _CONFIGURATION.format(
                directory=directory, host=host, cpus=cpus, ctld_port=ports[0], slurmd_port=ports[1]
            ).lstrip()
        )
        slurm = Slurm(directory)
        key = directory / "munge.key"
        key.touch(0o400)
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}

        def start(*command: str) -> None:
            with (directory / f"{Path(command[0]).name}.out").open("wb") as out:
                children.append(
                    subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
                )

        start(
            *("/usr/sbin/munged", "--foreground", "--force", f"--key-file={key}", f"--socket={directory}/munge.socket"),
            *(f"--pid-file={directory}/munge.pid", f"--log-file={directory}/munge.log"),
            *(f"--seed-file={directory}/munge.seed", "--num-threads=4"),
        )
        _until((directory / "munge.socket").exists, directory, children)
        start("/usr/sbin/slurmctld", "-D", "-f", str(directory / "slurm.conf"))
        start("/usr/sbin/slurmd", "-D", "-N", host, "-f", str(directory / "slurm.conf"))

        def ready() -> bool:
            try:
                return "idle" in slurm.call("sinfo", "-h", "-o", "%t")
            except SlurmError:
                return False

        _until(ready, directory, children)
        yield slurm
    finally:
        for child in reversed(children):
            child.terminate()
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _until(condition: object, directory: Path, children: list[subprocess.Popen[bytes]]) -> None:
    """Waits up to 30 s. Raises SlurmError with what the daemons said."""
    assert callable(condition)
    deadline = time.monotonic() + 30
    while not condition():
        dead = [child for child in children if child.poll() is not None]
        if dead or time.monotonic() > deadline:
            said = [path.read_text(errors="replace")[-600:] for path in sorted(directory.glob("*.[lo]*"))]
            raise SlurmError("Slurm does not come up: " + " | ".join(text.strip() for text in said if text.strip()))
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(found.getsockname()[1]) for found in sockets]
