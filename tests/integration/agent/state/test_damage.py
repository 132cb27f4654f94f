"""Files of the agent that are damaged or gone: no kernel ends by it, the agent starts,
and the kernel ends when it is to.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.api.terms import Terms
from retinue.agent.attempts import DesiredAttempt, Goal, Phase
from retinue.agent.conditions import Conditions
from retinue.agent.fencing.lease import Fence
from retinue.agent.state.damaged import DIRECTORY, DamagedFiles
from retinue.agent.state.disk import FILES as FILES_OF_RESERVE
from retinue.agent.state.disk import RESERVE, Disk
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.reasons import AgentConditionType
from tests.integration.agent.agent_process import groups, record
from tests.integration.agent.manager_side import attempt
from tests.integration.agent.opened import HOSTS
from tests.integration.agent.process.kernels import spec
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.agent.conftest import Agent, Backends, Place

FILES = (
    "term",
    "fence.json",
    "mount",
    "attempts",
    "attempts/removed",
    "attempts/k.1",
    "attempts/k.1/record.json",
    "attempts/k.1/status",
    "attempts/k.1/barrier",
    "attempts/k.1/output.log",
    "attempts.copies",
    "attempts.copies/k.1.json",
)


def gone(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = change(path.read_bytes()) if path.is_file() else b""
        gone(path)
        path.write_bytes(content)

    return damage


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :] if content else content


def unreadable(path: Path) -> None:
    # Root reads whatever its mode is; a directory in its place is what it cannot read.
    was_directory = path.is_dir()
    gone(path)
    if was_directory:
        path.symlink_to(path)
    else:
        (path / "something").mkdir(parents=True)


DAMAGES = {
    "gone": gone,
    "empty": rewritten(lambda _: b""),
    "truncated": rewritten(lambda content: content[: len(content) // 2]),
    "flipped": rewritten(flip),
    "not text": rewritten(lambda _: b"\xff\xfe\x00"),
    "unreadable": unreadable,
}
DESIRED = DesiredAttempt(spec("k"), Goal.RUNNING, 5.0, fence_timeout=1000.0)


def open_state(state: Path) -> None:
    """Opens the files that no backend does."""
    damaged = DamagedFiles(state / DIRECTORY)
    Terms(state / "term", damaged)
    Fence(state, "this-boot", lambda: 1.0, damaged=damaged)


async def started(backends: Backends) -> Path:
    """Starts a kernel of which every file is there; returns the directory of the agent's state."""
    state = backends.place.directory / "state"
    await backends.ran(spec("other", "true"))
    damaged = DamagedFiles(state / DIRECTORY)
    await Terms(state / "term", damaged).accept("incarnation", 7)
    Fence(state, "this-boot", lambda: 1.0, damaged=damaged).guard([DESIRED])
    await backends.started(spec("k", "sleep", "1000"))
    return state


async def ended(backends: Backends) -> None:
    """Ends the kernel as a manager has it done."""
    backend = backends.current
    assert backend is not None
    await backend.stop("k.1", NEVER)
    assert (await backends.until("k.1", Phase.EXITED)).reason == "STOPPED"
    await backend.remove("k.1")
    assert not groups(backends.place)
    assert not list((backends.place.directory / "scratch").iterdir())


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_damage_while_no_agent_is_there(
    backends: Backends, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    state = await started(backends)
    assert backends.current is not None
    init = backends.current.kernel("k.1").fence_target()
    for name in FILES:
        assert (state / name).exists(), name
        await backends.current.close()
        damage(state / name)
        open_state(state)
        backend = await backends.open()
        assert list(backend.observe()) == ["k.1"], name
        observed = backend.observe()["k.1"]
        assert (observed.phase, observed.session_id) == (Phase.RUNNING, "session"), name
        assert backend.kernel("k.1").fence_target() == init, name
        # What is set aside is no attempt, and is reported once.
        kept = DamagedFiles(state / DIRECTORY).names()
        await backend.close()
        open_state(state)
        await backends.open()
        assert DamagedFiles(state / DIRECTORY).names() == kept, name
        # All files are to be there for the next one.
        await Terms(state / "term", DamagedFiles(state / DIRECTORY)).accept("incarnation", 7)
        Fence(state, "this-boot", lambda: 1.0).guard([DESIRED])
        restore(state)
    await ended(backends)


def restore(state: Path) -> None:
    """Puts files in the place of those that are made only once."""
    for name in FILES:
        path = state / name
        if path.is_symlink() or not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"other.1\n" if name.endswith("removed") else b"")


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("attempts")])
@pytest.mark.parametrize("damage", ["gone", "unreadable"])
async def test_damage_while_the_agent_runs(backends: Backends, name: str, damage: str) -> None:
    state = await started(backends)
    DAMAGES[damage](state / name)
    await ended(backends)
    # Others start as before.
    observed, _ = await backends.ran(spec("next", "true"))
    assert observed.exit_code == 0


async def test_a_held_kernel_is_released_without_the_name_of_its_barrier(backends: Backends) -> None:
    backend = await backends.open()
    await backend.prepare(spec("k", "sh", "-c", "exit 3"), HOSTS)
    shutil.rmtree(backends.place.directory / "state" / "attempts")
    await backend.mark_attached("k.1")
    await backend.start("k.1")
    assert (await backends.until("k.1", Phase.EXITED)).exit_code == 3


async def test_a_rebuilt_record_says_what_the_lost_one_said(backends: Backends) -> None:
    state = await started(backends)
    before = record(backends.place.directory, "k.1")
    assert backends.current is not None
    await backends.current.close()
    for name in ("attempts", "attempts.copies"):
        shutil.rmtree(state / name)
    await backends.open()
    after = record(backends.place.directory, "k.1")
    assert after["rebuilt"] is True
    for name in ("init", "monitor", "cores", "phase"):
        assert after[name] == before[name], name
    await ended(backends)


async def test_an_agent_starts_without_its_files_and_leaves_unknown_kernels_alone(agent: Agent, place: Place) -> None:
    conversation = await agent.converse(term=5)
    wanted = [attempt(name, session_id=name) for name in ("known", "unknown")]
    await conversation.snapshot(*wanted)
    for each in wanted:
        await conversation.until_state(each.id, pb.ATTEMPT_STATE_RUNNING)
    await agent.stop()
    state = place.directory / "state"
    for name in ("attempts", "attempts.copies"):
        shutil.rmtree(state / name)
    (state / "term").write_bytes(b"\xff")
    await agent.start()
    # The term is lost: the next leader is accepted.
    conversation = await agent.converse(term=2)
    assert {key: status.state for key, status in conversation.statuses.items()} == {
        "known.1": pb.ATTEMPT_STATE_RUNNING,
        "unknown.1": pb.ATTEMPT_STATE_RUNNING,
    }
    await conversation.snapshot(wanted[0], attempt("new", "true", session_id="new"), names_others=False)
    await conversation.until_state("new.1", pb.ATTEMPT_STATE_EXITED)
    assert conversation.statuses["unknown.1"].state == pb.ATTEMPT_STATE_RUNNING
    # It ends when it is named.
    await conversation.change(removed_attempt_ids=["known.1", "unknown.1", "new.1"])
    await conversation.until(lambda: conversation.removed >= {"known.1", "unknown.1", "new.1"})
    await eventually(lambda: not groups(place))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", [RESERVE, f"{RESERVE}/3"])
def test_a_damaged_reserve_is_made_again(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    conditions = Conditions()
    disk = Disk(tmp_path, conditions)
    disk.look()
    damage(tmp_path / name)
    disk.look()
    assert not conditions.all()
    assert len(list((tmp_path / RESERVE).iterdir())) == FILES_OF_RESERVE


def test_damaged_files_are_reported_and_kept_in_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.agent.state.damaged.MAX_KEPT", 3)
    damaged = DamagedFiles(tmp_path / DIRECTORY)
    for number in range(5):
        (tmp_path / f"file{number}").write_text("x")
        damaged.set_aside(tmp_path / f"file{number}", "a test")
        assert not (tmp_path / f"file{number}").exists()
    damaged.set_aside(tmp_path / "never", "a test")
    names = damaged.names()
    assert [name.rpartition("-")[2] for name in names] == ["file2", "file3", "file4"]
    assert damaged.names(now=1e12) == []
    conditions = Conditions(clock=lambda: 5.0)
    changes: list[int] = []
    conditions.listen(lambda: changes.append(1))
    for message in ("one", "one", "two"):
        conditions.update(AgentConditionType.STATE_DAMAGED, message)
    assert [(entry.message, entry.since) for entry in conditions.all()] == [("two", 5.0)]
    conditions.update(AgentConditionType.STATE_DAMAGED, "")
    assert conditions.all() == ()
    assert len(changes) == 3


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_what_cannot_be_kept_is_removed(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A file that stays where it is would be found damaged again and again."""
    (tmp_path / DIRECTORY).touch()
    make(tmp_path / "odd")
    DamagedFiles(tmp_path / DIRECTORY).set_aside(tmp_path / "odd", "a test")
    assert not (tmp_path / "odd").exists()
