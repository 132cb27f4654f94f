"""What an agent knows of its kernels after it died, its node restarted or its records were lost, of every kind."""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.docker.core.container_spec import container_name
from retinue.agent.fencing.watchdog import FenceTarget
from retinue.agent.host.processes import Process, alive, send_signal
from retinue.agent.process.sandbox_kernels import STATUS
from retinue.agent.runtime import attempt_runtime
from retinue.agent.runtime.attempt_runtime import AttemptRuntime
from retinue.agent.runtime.bwrap_status import parse_status
from retinue.agent.state import checked
from tests.integration.agent.opened import HOSTS
from tests.integration.agent.runtime.conftest import first_process, record
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from retinue.agent.runtime.attempt_records import Record
    from retinue.agent.runtime.options import RuntimeOptions
    from tests.integration.agent.runtime.conftest import Contract


GRACE = 3600.0
STUBBORN = "trap '' TERM; echo on; while :; do sleep 0.05; done"


async def test_stop_continues_in_the_next_agent(contract: Contract) -> None:
    backend = await contract.started(contract.spec("k", "sh", "-c", STUBBORN))
    await contract.until_printed("k.1", "on\n")
    await backend.stop("k.1", GRACE)
    backend = await contract.open()
    observed = backend.observe()["k.1"]
    assert observed.phase is Phase.STOPPING
    assert observed.kill_at is not None
    assert 0 < observed.kill_at - time.monotonic() <= GRACE
    await backend.kill("k.1")
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.exit_code) == ("STOPPED", 137)


async def test_release_that_was_recorded_and_not_done(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "echo", "out"))
    await backend.close()
    path = contract.place.directory / "state" / contract.kind.records / "k.1" / "record.json"
    values = checked.load(path.read_bytes())
    path.write_bytes(checked.dump(values | {"phase": "running", "start_time": 1.0}))
    await contract.open()
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.exit_code, contract.printed("k.1")) == (0, "out\n")


async def test_a_release_that_fails_after_it_was_done(contract: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = await contract.held(contract.spec("k", "sh", "-c", "exit 3"))
    assert isinstance(backend, AttemptRuntime)
    release = backend._release  # noqa: SLF001

    async def lost(record: Record) -> None:
        await release(record)
        raise OSError(errno.EIO, "its answer is lost")

    monkeypatch.setattr(backend, "_release", lost)
    with pytest.raises(OSError, match="its answer is lost"):
        await backend.start("k.1")
    observed = await contract.until("k.1", Phase.EXITED, Phase.FAILED)
    assert (observed.phase, observed.exit_code, observed.reason) == (Phase.EXITED, 3, "EXITED")


async def test_a_kill_that_fails_stays_due(contract: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = await contract.started(contract.spec("k", "sh", "-c", STUBBORN))
    assert isinstance(backend, AttemptRuntime)
    await contract.until_printed("k.1", "on\n")
    await backend.stop("k.1", GRACE)
    due = backend.observe()["k.1"].kill_at

    async def refused(*_: object) -> None:
        raise OSError(errno.EIO, "not killed")

    with monkeypatch.context() as patched:
        patched.setattr(backend, "_kill", refused)
        with pytest.raises(OSError, match="not killed"):
            await backend.kill("k.1")
    # By this, it is tried again.
    assert backend.observe()["k.1"].kill_at == due
    await backend.kill("k.1")
    assert (await contract.until("k.1", Phase.EXITED)).exit_code == 137


async def test_end_while_no_agent_is_there(contract: Contract) -> None:
    backend = await contract.started(
        contract.spec("k", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; echo off; exit 9")
    )
    init = first_process(contract, "k.1")
    await backend.close()
    (contract.place.directory / "scratch" / "k.1" / "go").touch()
    await eventually(lambda: not alive(init) and _is_noted(contract, "k.1"))
    # What is reported must be that, and not when the agent came back.
    back = time.time()
    backend = await contract.open()
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.exit_code, observed.reason, contract.printed("k.1")) == (9, "EXITED", "off\n")
    assert observed.end_time is not None
    assert observed.end_time < back


def _is_noted(contract: Contract, attempt_id: str) -> bool:
    """Whether the engine, or the process that watches over a kernel, has noted its end,
    as they do a moment after it.
    """
    if contract.kind.engine is None:
        place = contract.place.directory / "state" / contract.kind.records / attempt_id
        return parse_status((place / STATUS).read_text()).exit_code is not None
    client = contract.kind.engine.client()
    try:
        return str(client.inspect_container(f"retinue-{attempt_id}")["State"]["Status"]) == "exited"
    finally:
        client.close()


@pytest.mark.parametrize("copies", ["copies kept", "copies lost"])
async def test_kernels_outlive_their_records(contract: Contract, copies: str) -> None:
    records = contract.place.directory / "state" / contract.kind.records
    for name in ("damaged", "gone", "held"):
        backend = await contract.held(contract.spec(name, "sleep", "1000"))
        if name != "held":
            await backend.start(f"{name}.1")
    before = {name: first_process(contract, f"{name}.1") for name in ("damaged", "gone", "held")}
    await backend.close()
    (records / "damaged.1" / "record.json").write_text('{"id": "dam')
    for name in ("gone", "held"):
        shutil.rmtree(records / f"{name}.1")
    if copies == "copies lost":
        shutil.rmtree(records.with_name("attempts.copies"))
    backend = await contract.open()
    for name, init in before.items():
        attempt_id = f"{name}.1"
        observed = await contract.until(attempt_id, Phase.CREATED if name == "held" else Phase.RUNNING)
        assert backend.kernel(attempt_id).fence_target() == FenceTarget(init)
        assert observed.rebuilt is (copies == "copies lost")
        # It is not started a second time.
        await backend.prepare(contract.spec(name, "true"), HOSTS)
        await backend.identify(contract.spec(name))
        assert backend.observe()[attempt_id].session_id == "session"
    # Nor does a lost file keep a kernel from being released and stopped.
    await backend.start("held.1")
    for name in before:
        await backend.stop(f"{name}.1", GRACE)
        assert (await contract.until(f"{name}.1", Phase.EXITED)).reason == "STOPPED"
        await backend.remove(f"{name}.1")
    assert not contract.left()


async def test_what_was_started_is_not_started_again_without_its_record(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "true"))
    await backend.start("k.1")
    await contract.until("k.1", Phase.EXITED)
    await backend.close()
    state = contract.place.directory / "state"
    for directory in (state / contract.kind.records, (state / contract.kind.records).with_name("attempts.copies")):
        shutil.rmtree(directory)
    backend = await contract.open()
    await backend.prepare(contract.spec("k", "true"), HOSTS)
    observed = await contract.until("k.1", Phase.FAILED, Phase.EXITED)
    assert observed.reason in {"RECORD_LOST", "EXITED"}
    await backend.remove("k.1")
    assert not contract.left()


@pytest.mark.attack("forged-labels")
@pytest.mark.parametrize("kind", ["docker"], indirect=True)
async def test_containers_of_others_are_left_alone(contract: Contract) -> None:
    assert contract.kind.engine is not None
    agent_id = contract.place.agent_id
    labels = {"retinue.agent": agent_id, "retinue.attempt": "foreign.1"}
    with contextlib.closing(contract.kind.engine.client()) as client:
        made = client.create_container(contract.kind.image, ["sleep", "1000"], labels=labels)["Id"]
        # Under the name that an attempt's own would have, and without its labels.
        named = client.create_container(contract.kind.image, ["sleep", "1000"], name=container_name("named.1"))["Id"]
        try:
            client.start(made)
            client.start(named)
            backend = await contract.open()
            assert not backend.observe()
            await backend.prepare(contract.spec("named", "true"), HOSTS)
            assert (await contract.until("named.1", Phase.FAILED)).reason == "START_FAILED"
            await backend.remove("named.1")
            for container in (made, named):
                assert client.inspect_container(container)["State"]["Running"]
        finally:
            for container in (made, named):
                client.remove_container(container, force=True)


async def test_node_restart(contract: Contract) -> None:
    for name in ("held", "running", "done"):
        backend = await contract.held(contract.spec(name, *(("true",) if name == "done" else ("sleep", "1000"))))
    await backend.start("running.1")
    await backend.start("done.1")
    await contract.until("done.1", Phase.EXITED)
    await backend.close()
    # A restart of the node ends all at once: no process is left to record a code.
    for name in ("held.1", "running.1"):
        values = record(contract, name)
        for key in ("monitor", "init"):
            process = values[key]
            if isinstance(process, dict):
                send_signal(Process(**process), 9)
    backend = await contract.open(boot_id="another-boot")
    observed = {name: await contract.until(f"{name}.1", Phase.EXITED) for name in ("held", "running", "done")}
    assert {name: (attempt.reason, attempt.exit_code) for name, attempt in observed.items()} == {
        "held": ("NODE_REBOOTED", None),
        "running": ("NODE_REBOOTED", None),
        "done": ("EXITED", 0),
    }
    for name in observed:
        await backend.remove(f"{name}.1")
    assert not contract.left()


async def test_an_end_that_cannot_be_recorded_is_a_condition_of_the_node_and_one_line_a_minute(
    contract: Contract, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = await contract.started(contract.spec("k", "sleep", "1000"))
    assert isinstance(backend, AttemptRuntime)
    tries, record_end, conditions = 0, AttemptRuntime._record_end, backend._conditions  # noqa: SLF001

    async def fail_at_first(each: AttemptRuntime[RuntimeOptions], *rest: Any) -> None:
        nonlocal tries
        tries += 1
        if tries <= 8:
            raise OSError(errno.ENOSPC, f"no space for the {tries}. time")
        await record_end(each, *rest)

    shown: list[str] = []
    conditions.listen(lambda: shown.extend(found.message for found in conditions.all()))
    monkeypatch.setattr(AttemptRuntime, "_record_end", fail_at_first)
    monkeypatch.setattr(attempt_runtime, "RETRY", 0.01)
    caplog.clear()
    await backend.kill("k.1")
    await contract.until("k.1", Phase.EXITED)
    assert shown[0].startswith("the end of attempt k.1 cannot be recorded: [Errno 28] no space for the 1. time; failed")
    assert "failed 8 times or more" in shown[-1]
    assert conditions.all() == ()
    said = [text for text in caplog.messages if "the end of attempt" in text]
    assert len([text for text in said if "no space" in text]) == 1, said
