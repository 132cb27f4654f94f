"""A disk that takes nothing: nothing new starts, all else continues, and the node says so."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from retinue.agent.conditions import Conditions
from retinue.agent.host import syscalls
from retinue.agent.runtime.attempt_records import Record, Records
from retinue.agent.state.disk import RESERVE, Disk
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.reasons import AgentConditionType
from tests.integration.agent.agent_process import groups
from tests.integration.agent.manager_side import attempt
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from retinue.agent.settings import Settings
    from tests.integration.agent.conftest import Agent, Place
    from tests.integration.agent.manager_side import Conversation

MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
FULL = pb.NODE_CONDITION_TYPE_DISK_FULL


def exhaust(action: Callable[[], object]) -> None:
    """Does something until there is no space for it."""
    try:
        while True:
            action()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


class SmallDisk:
    """A file system in memory in place of the state directory; `fill` makes it take nothing any more,
    `free` undoes that.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fillers = directory / "fillers"
        self.mounts = 1
        directory.mkdir()
        syscalls.mount("tmpfs", str(directory), "tmpfs", 0, "mode=0700,size=4m,nr_inodes=400")

    def fill_bytes(self) -> None:
        self.fillers.mkdir()
        descriptor = os.open(self.fillers / "0", os.O_WRONLY | os.O_CREAT)
        try:
            exhaust(lambda: os.write(descriptor, bytes(4096)))
        finally:
            os.close(descriptor)

    def fill_inodes(self) -> None:
        self.fillers.mkdir()
        numbers = itertools.count()

        def touch() -> None:
            (self.fillers / str(next(numbers))).touch()

        exhaust(touch)

    def write_protect(self) -> None:
        # Not the file system itself: kernels have files open for writing.
        syscalls.mount(str(self.directory), str(self.directory), None, MS_BIND)
        self.mounts += 1
        syscalls.mount(None, str(self.directory), None, MS_BIND | MS_REMOUNT | MS_RDONLY)

    def free(self) -> None:
        while self.mounts > 1:
            syscalls.unmount(str(self.directory), syscalls.MNT_DETACH)
            self.mounts -= 1
        if self.fillers.exists():
            shutil.rmtree(self.fillers)

    def close(self) -> None:
        for _ in range(self.mounts):
            syscalls.unmount(str(self.directory), syscalls.MNT_DETACH)


@pytest.fixture
def small_disk(place: Place) -> Iterator[SmallDisk]:
    disk = SmallDisk(place.directory / "state")
    yield disk
    disk.close()


@pytest.fixture
def settings(small_disk: SmallDisk, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("retinue.agent.state.disk.INTERVAL", 0.05)
    monkeypatch.setattr("retinue.agent.runtime.attempt_store.LATE_INTERVAL", 0.05)
    return settings


def is_full(conversation: Conversation) -> bool:
    return FULL in {condition.type for condition in conversation.conditions}


@pytest.mark.parametrize("fault", [SmallDisk.fill_bytes, SmallDisk.fill_inodes, SmallDisk.write_protect])
async def test_what_runs_continues_and_ends_on_a_full_disk(
    agent: Agent, small_disk: SmallDisk, place: Place, fault: Callable[[SmallDisk], None]
) -> None:
    conversation = await agent.converse(term=1)
    guarded = attempt("guarded", session_id="guarded")
    # It is guarded, and nothing here depends on when that would end it.
    guarded.fence_timeout.FromSeconds(100_000)
    ending = attempt("ending", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 7", session_id="ending")
    wanted = [attempt("stays", session_id="stays"), attempt("goes", session_id="goes"), guarded, ending]
    await conversation.snapshot(*wanted)
    for each in wanted:
        await conversation.until_state(each.id, pb.ATTEMPT_STATE_RUNNING)
    await eventually(lambda: len(list((small_disk.directory / RESERVE).iterdir())) > 0)
    assert not conversation.conditions

    fault(small_disk)
    await conversation.until(lambda: is_full(conversation))
    # The stream continues, and attempts are stopped and end.
    wanted[1].goal = pb.GOAL_STOPPED
    await conversation.change(attempts=[wanted[1]])
    assert (await conversation.until_state("goes.1", pb.ATTEMPT_STATE_EXITED)).reason == "STOPPED"
    (place.directory / "scratch" / "ending.1" / "go").touch()
    assert (await conversation.until_state("ending.1", pb.ATTEMPT_STATE_EXITED)).exit_code == 7
    # The next leader is followed.
    conversation = await agent.converse(term=2)
    await conversation.snapshot(wanted[0], guarded)
    assert is_full(conversation)
    # An agent that starts now takes over what runs.
    await agent.stop()
    await agent.start()
    conversation = await agent.converse(term=2)
    assert conversation.statuses["stays.1"].state == pb.ATTEMPT_STATE_RUNNING
    new = attempt("new", "true", session_id="new")
    await conversation.snapshot(wanted[0], guarded, new)
    await conversation.until(lambda: is_full(conversation))

    small_disk.free()
    await conversation.until(lambda: not is_full(conversation))
    await conversation.until_state("new.1", pb.ATTEMPT_STATE_EXITED)
    for each in (wanted[0], guarded):
        assert conversation.statuses[each.id].state == pb.ATTEMPT_STATE_RUNNING
    names = ["stays.1", "guarded.1", "new.1"]
    await conversation.change(removed_attempt_ids=names)
    await conversation.until(lambda: conversation.statuses.keys().isdisjoint(names))
    await eventually(lambda: not groups(place))


def test_the_reserve_is_given_up_for_what_is_essential_only(small_disk: SmallDisk) -> None:
    conditions = Conditions()
    disk = Disk(small_disk.directory, conditions)
    disk.look()
    assert conditions.all() == ()
    small_disk.fill_bytes()

    def write() -> None:
        (small_disk.directory / "file").write_bytes(bytes(4096))

    with pytest.raises(OSError, match="No space"):
        write()
    disk.look()
    assert [condition.type for condition in conditions.all()] == [AgentConditionType.DISK_FULL]
    assert len(list((small_disk.directory / RESERVE).iterdir())) > 0
    disk.essential(write)
    assert list((small_disk.directory / RESERVE).iterdir()) == []
    # It is not made again from the last space there is.
    disk.look()
    assert conditions.all()
    small_disk.free()
    disk.look()
    assert conditions.all() == ()
    assert len(list((small_disk.directory / RESERVE).iterdir())) > 0


async def test_a_disk_that_hangs_holds_up_neither_stops_nor_leaders(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.agent.runtime.attempt_store.NOTE_TIMEOUT", 0.05)
    conversation = await agent.converse(term=1)
    wanted = [attempt(f"k{number}", session_id=f"s{number}") for number in range(12)]
    await conversation.snapshot(*wanted)
    for each in wanted:
        await conversation.until_state(each.id, pb.ATTEMPT_STATE_RUNNING)
    answers = threading.Event()
    write = Records.write

    def hang(records: Records, record: Record) -> None:
        answers.wait()
        write(records, record)

    monkeypatch.setattr(Records, "write", hang)
    try:
        for each in wanted:
            each.goal = pb.GOAL_STOPPED
        await conversation.change(attempts=wanted)
        conversation = await agent.converse(term=2)
        await conversation.snapshot(*wanted)
        for each in wanted:
            assert (await conversation.until_state(each.id, pb.ATTEMPT_STATE_EXITED)).reason == "STOPPED"
    finally:
        answers.set()
    await conversation.change(removed_attempt_ids=[each.id for each in wanted])
    await conversation.until(lambda: len(conversation.removed) == len(wanted))
