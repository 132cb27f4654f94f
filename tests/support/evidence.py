"""What a failed test shows beside its assertion: the logs of the processes that it used, from its start on, the states
of sessions and agents of its clusters, and, after a hang, the stacks of all threads and tasks.

Clusters are watched by themselves, the logs of other servers by `watched_logs`. Everything is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import io
import os
import subprocess
import sys
import tempfile
import traceback
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.devtools.cluster import Cluster, ClusterError
from retinue.devtools.threads import in_thread
from tests.support.watched_logs import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOG_BYTES = 24_000
_TOTAL_BYTES = 160_000
_STATE_SECONDS = 30.0
_TASKS = 60
# The daemons' own, and that of the database of a manager; agents also keep the output of kernels in theirs.
_CLUSTER_LOGS = ("logs/*.log", "manager/postgres/server.log", "router*/*.log")
_STATES = (("sessions", ("ls", "--all", "--limit", "40", "-o", "wide")), ("agents", ("agents", "ls", "-o", "wide")))
_RETINUE = Path(sys.executable).with_name("retinue")


@dataclass(slots=True)
class Evidence:
    """The clusters that run, the sizes of logs when the test started, and the logs of clusters that ended."""

    clusters: weakref.WeakSet[Cluster] = field(default_factory=weakref.WeakSet)
    offsets: dict[Path, int] = field(default_factory=dict)
    kept: list[tuple[str, str]] = field(default_factory=list)

    def begin(self) -> None:
        """Remember the sizes of all logs: what was written before a test is not its own."""
        self.kept.clear()
        self.offsets = {}
        for file in [*watched, *(file for cluster in self.clusters for file in _logs_of(cluster))]:
            with contextlib.suppress(OSError):
                self.offsets[file] = file.stat().st_size

    def sections(self) -> Iterator[tuple[str, str]]:
        """Return titles and contents, the newest bytes of each, together at most `_TOTAL_BYTES`."""
        left = _TOTAL_BYTES
        for title, content in self._all_sections():
            if content and left > 0:
                yield title, content[-left:]
                left -= len(content)

    def _all_sections(self) -> Iterator[tuple[str, str]]:
        yield from self.kept
        for cluster in list(self.clusters):
            yield from self.of_cluster(cluster, states=True)
        for file, title in list(watched.items()):
            yield f"log of {title}", self._read(file)

    def of_cluster(self, cluster: Cluster, *, states: bool) -> Iterator[tuple[str, str]]:
        """Return the logs of a cluster, with the states of its sessions and agents if it may be asked."""
        for file in _logs_of(cluster):
            yield f"log {file.relative_to(cluster.directory)}", self._read(file)
        if states:
            yield from _states_of(cluster)

    def _read(self, file: Path) -> str:
        try:
            with file.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                begin = self.offsets.get(file, 0)
                # A log that was replaced by a new one is all of the running test.
                begin = begin if begin <= end else 0
                log.seek(max(begin, end - _LOG_BYTES))
                cut = "[…]\n" if end - begin > _LOG_BYTES else ""
                return cut + log.read().decode(errors="replace")
        except OSError:
            return ""


_evidence = Evidence()


def pytest_configure(config: pytest.Config) -> None:
    start, stop = Cluster.start, Cluster.stop

    async def watched_start(cluster: Cluster) -> None:
        _evidence.clusters.add(cluster)
        await start(cluster)

    async def watched_stop(cluster: Cluster) -> None:
        try:
            if cluster in _evidence.clusters:
                # Its logs go with it, and the failure may be on its way through the test that started it.
                failing = sys.exc_info()[0] is not None
                _evidence.kept += await in_thread(lambda: list(_evidence.of_cluster(cluster, states=failing)))
        finally:
            await stop(cluster)
            _evidence.clusters.discard(cluster)

    def restore() -> None:
        Cluster.start, Cluster.stop = start, stop  # type: ignore[method-assign]

    Cluster.start, Cluster.stop = watched_start, watched_stop  # type: ignore[method-assign, assignment]
    config.add_cleanup(restore)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _evidence.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed and not hasattr(report, "wasxfail"):
        # A failure of this hook would end the whole run, and hide the test's.
        try:
            if call.excinfo is not None and "Timeout" in str(call.excinfo.value):
                report.sections.append(("threads", threads()))
                report.sections.append(("tasks", tasks(lambda task: _belongs_to(task, item))))
            report.sections += _evidence.sections()
        except Exception:  # noqa: BLE001  # whatever it is
            report.sections.append(("evidence is incomplete", traceback.format_exc()))
    return report  # type: ignore[return-value]


def threads() -> str:
    """Return the stacks of all threads."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def tasks(ends: Callable[[asyncio.Task[object]], bool] = lambda _: False) -> str:
    """Return the stacks of tasks that are not done, of all event loops; those that `ends` names are cancelled."""
    # By type(): isinstance() asks the object itself, and the proxy of what has gone raises.
    pending = [found for found in gc.get_objects() if issubclass(type(found), asyncio.Task) and not found.done()]
    for task in pending:
        if ends(task):
            # The loop continues with the next test.
            task.cancel()
    return "".join(_stack_of(task) for task in pending[:_TASKS])


def _stack_of(task: asyncio.Task[object]) -> str:
    output = io.StringIO()
    try:
        task.print_stack(file=output)
    except Exception as error:  # noqa: BLE001  # frames of compiled coroutines, such as gRPC's, have no line
        return f"{task!r}: {error!r}\n"
    return output.getvalue()


def _belongs_to(task: asyncio.Task[object], item: pytest.Item) -> bool:
    function = getattr(item, "function", None)
    return getattr(task.get_coro(), "__qualname__", "") == getattr(function, "__qualname__", None)


def _logs_of(cluster: Cluster) -> list[Path]:
    try:
        directory = cluster.directory
    except ClusterError:
        return []
    return sorted(file for pattern in _CLUSTER_LOGS for file in directory.glob(pattern))


def _states_of(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Ask a cluster as its administrator would: by the command line, which no state of this process disturbs."""
    try:
        settings = cluster.settings
    except ClusterError:
        return
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
    environment |= {
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": settings.ca or "",
    }
    for title, command in _STATES:
        try:
            done = subprocess.run(
                [_RETINUE, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_STATE_SECONDS,
                check=False,
            )
            # The newest ones are the first.
            yield title, done.stdout[:_LOG_BYTES]
        except subprocess.TimeoutExpired:
            yield title, f"the manager did not answer for {_STATE_SECONDS:.0f} s"
            return
