"""Failpoints: armed by files, each once, and refused outside of development mode."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from retinue.agent.host.lanes import RECORDS, in_thread
from retinue.agent.main import main as agent
from retinue.manager.main import main as manager
from retinue.rpc import failpoints
from retinue.rpc.failpoints import Action, Failpoints, disk_error

if TYPE_CHECKING:
    from pathlib import Path


class LayerError(Exception):
    pass


@failpoints.awaited("layer", LayerError)
async def step(done: list[str]) -> str:
    await asyncio.sleep(0)
    done.append("done")
    return "answer"


@failpoints.blocking("layer", LayerError, sites=True)
def blocking_step(done: list[str]) -> str:
    done.append("done")
    return "answer"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(failpoints, "active", Failpoints(tmp_path, delay=0.0))
    return tmp_path


def arm(directory: Path, point: str, action: Action) -> None:
    (directory / "armed" / f"{point}={action}").touch()


def names(directory: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (directory / kind).iterdir())


async def test_points_that_are_off_do_nothing() -> None:
    done: list[str] = []
    assert failpoints.active is None
    assert (await step(done), blocking_step(done), done) == ("answer", "answer", ["done", "done"])


def test_a_point_is_what_its_function_is() -> None:
    # Libraries that call a function for others await what only such a function gives.
    assert inspect.iscoroutinefunction(step)
    assert not inspect.iscoroutinefunction(blocking_step)


async def test_an_error_comes_before_the_step_and_once(directory: Path) -> None:
    done: list[str] = []
    arm(directory, "layer.step", Action.ERROR)
    with pytest.raises(LayerError, match=r"failpoint layer\.step"):
        await step(done)
    assert (done, await step(done), done) == (done, "answer", ["done"])
    assert (names(directory, "armed"), names(directory, "fired")) == ([], ["layer.step=error"])
    assert names(directory, "reached") == ["layer.step"]


async def test_a_lost_answer_comes_after_the_step(directory: Path) -> None:
    done: list[str] = []
    arm(directory, "layer.step", Action.LOST)
    with pytest.raises(LayerError, match="answer lost"):
        await step(done)
    assert done == ["done"]


async def test_a_cancellation_arrives_where_the_step_waits(directory: Path) -> None:
    done: list[str] = []
    arm(directory, "layer.step", Action.CANCEL)
    task = asyncio.create_task(step(done))
    await asyncio.wait((task,))
    assert (task.cancelled(), done) == (True, [])


async def test_a_delay_does_the_step(directory: Path) -> None:
    done: list[str] = []
    arm(directory, "layer.step", Action.DELAY)
    assert (await step(done), done) == ("answer", ["done"])


def test_a_point_of_each_caller_is_one_of_its_own(directory: Path) -> None:
    done: list[str] = []
    here = f"layer.blocking_step@{__name__}.{test_a_point_of_each_caller_is_one_of_its_own.__qualname__}"
    arm(directory, here, Action.ERROR)
    # A comprehension belongs to the function around it.
    with pytest.raises(LayerError):
        [blocking_step(done) for _ in range(2)]
    assert (done, names(directory, "reached")) == ([], [here])


def test_threads_know_no_cancellation(directory: Path) -> None:
    done: list[str] = []
    here = f"layer.blocking_step@{__name__}.{test_threads_know_no_cancellation.__qualname__}"
    arm(directory, here, Action.CANCEL)
    assert (blocking_step(done), names(directory, "fired")) == ("answer", [])


async def test_a_lane_passes_the_point_of_its_caller(directory: Path) -> None:
    here = f"{__name__}.{test_a_lane_passes_the_point_of_its_caller.__qualname__}"
    arm(directory, f"records@{here}", Action.ERROR)
    # Another task awaits it.
    with pytest.raises(OSError, match="failpoint records@"):
        await asyncio.ensure_future(RECORDS.run(len, "abc"))
    arm(directory, f"thread@{here}", Action.LOST)
    with pytest.raises(OSError, match="answer lost"):
        await in_thread(len, "abc")
    assert await RECORDS.run(len, "abc") == 3


def test_of_two_that_pass_at_once_one_fails(directory: Path) -> None:
    arm(directory, "layer.step", Action.ERROR)
    others = [Failpoints(directory) for _ in range(2)]
    assert [other.take("layer.step") for other in others] == [Action.ERROR, None]


@pytest.mark.parametrize(("action", "printed"), [(Action.KILL, b""), (Action.KILL_AFTER, b"done")])
def test_a_kill_ends_the_process_at_once(tmp_path: Path, action: Action, printed: bytes) -> None:
    program = (
        "import sys, os; from pathlib import Path; from retinue.rpc import failpoints;"
        "failpoints.switch_on(Path(sys.argv[1]));"
        "failpoints.active.blocking('p', lambda: os.write(1, b'done'), OSError);"
        "os.write(1, b' and more')"
    )
    (tmp_path / "armed").mkdir()
    arm(tmp_path, "p", action)
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, printed)


def test_a_failing_disk_has_an_error_number() -> None:
    assert disk_error("x").errno == 5


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (manager, ["config", "check"]),
        (agent, ["config", "check", "--id", "n1", "--manager", "localhost:1"]),
    ],
    ids=["manager", "agent"],
)
def test_production_refuses_failpoints(program: object, arguments: list[str], tmp_path: Path) -> None:
    data = ["--data-dir", str(tmp_path / "data"), "--failpoints", str(tmp_path / "points")]
    refused = CliRunner().invoke(program, [*arguments, *data])  # type: ignore[arg-type]
    assert refused.exit_code == 2
    assert "--failpoints is for development only" in refused.output
    assert "add --dev" in refused.output
    taken = CliRunner().invoke(program, [*arguments, *data, "--dev"])  # type: ignore[arg-type]
    assert taken.exit_code == 0, taken.output
    assert not (tmp_path / "points").exists()
