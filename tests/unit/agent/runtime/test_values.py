"""Parsing and deciding, without a node."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.attempts import AttemptSpec, Owner, Phase
from retinue.agent.errors import UnknownAttemptError
from retinue.agent.host.core.limits import Limits, MemoryFiles, cpu_settings, memory_settings, quota
from retinue.agent.host.processes import Process, identify, parse_stat
from retinue.agent.process.bubblewrap import (
    Sandbox,
    barrier_script,
    environment_of,
    inner_arguments,
)
from retinue.agent.resources.core.usage import FinalUsage
from retinue.agent.resources.discovery import Node, capacity, discover, parallel_starts
from retinue.agent.runtime.attempt_records import Loaded, Record, Records, decode, encode, ended
from retinue.agent.runtime.attempt_store import AttemptStore
from retinue.agent.runtime.bwrap_status import Status, parse_status
from retinue.agent.runtime.exit_reason import ExitEvidence, exit_reason
from retinue.agent.state import checked
from retinue.rpc.core.amounts import parse_slots
from retinue.rpc.enrollment.enrollment import normal_fingerprint
from retinue.rpc.enrollment.managers import agent_endpoints, parse_managers, split_address

RECORD = Record("k.1", "s", "k", "boot", networked=True, monitor=Process(5, 77), init=Process(6, 78))
RUNNING = replace(RECORD, phase=Phase.RUNNING, start_time=1.0)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", Status()),
        ('{ "child-pid": 42, "net-namespace": 4026532183 }\n', Status(42, None)),
        ('{ "child-pid": 42 }\n{ "exit-code": 0 }\n', Status(42, 0)),
        ('{ "child-pid": 42 }\n{ "exit-code": 137 }', Status(42, 137)),
        ('{ "child-pid": 42 }\n{ "exit-co', Status(42, None)),
        ("no json", Status()),
        ('{ "child-pid": "x" }', Status()),
        ('{ "child-pid": 42 }\n{ "exit-code": 4294967433 }', Status(42, None)),
        ('{ "child-pid": 42 }\n{ "exit-code": 256 }', Status(42, None)),
        ('{ "child-pid": 42 }\n{ "exit-code": -1 }', Status(42, None)),
        ('{ "child-pid": 42 }\n{ "exit-code": true }', Status(42, None)),
        ('{ "child-pid": 42 }\n{ "exit-code": 1.0 }', Status(42, None)),
        ('{ "child-pid": 42 }\n{ "exit-code": "7" }', Status(42, None)),
        ('{ "child-pid": 42 }\n{ "exit-code": ' + "9" * 5000 + " }", Status(42, None)),
        ('{ "child-pid": 0 }', Status()),
        ('{ "child-pid": 4194305 }', Status()),
        ('{ "child-pid": 42 }\n' + '{"a":' * 100_000, Status(42, None)),
    ],
)
def test_status(text: str, status: Status) -> None:
    assert parse_status(text) == status


@given(st.text() | st.text('{}[]",:0123456789-.eE \n' + "child-pidexitcode"))
def test_any_status_is_read(text: str) -> None:
    status = parse_status(text)
    assert status.exit_code is None or 0 <= status.exit_code <= 255


@pytest.mark.parametrize("code", [1 << 31, 1 << 32, -1, "1", True, 0.5, [1]])
def test_an_exit_code_that_none_is_in_a_record_is_not_sent(code: object) -> None:
    record = decode(checked.dump(checked.load(encode(RECORD)) | {"exit_code": code}))
    assert record == RECORD


def test_a_record_with_a_number_without_end_is_damaged() -> None:
    values = checked.load(encode(RECORD)) | {"init": {"pid": float("inf"), "start": 1}}
    with pytest.raises(ValueError, match="not a record"):
        decode(checked.dump(values))


def test_stat_of_a_process_with_a_strange_name() -> None:
    fields = " ".join(["S", "1", *(str(number) for number in range(5, 22)), "4242", "0"])
    assert parse_stat(f"17 (a) Z 1 (b) {fields}") == ("S", 1, 4242)
    assert identify(2**22) is None
    assert identify(1) is not None


def test_record_round_trip() -> None:
    for record in (
        RECORD,
        Record("k.1", "s", "k", "boot"),
        replace(RECORD, phase=Phase.EXITED, exit_code=3, log_size=9),
        replace(RECORD, phase=Phase.EXITED, usage=FinalUsage(7.5, cpu=3, written=0)),
    ):
        assert decode(encode(record)) == record
    values = checked.load(encode(RECORD))
    # A field of a later version is no reason to lose an attempt, nor is one that this version added.
    assert decode(checked.dump(values | {"later": 1})) == RECORD
    del values["log_size"]
    assert decode(checked.dump(values)) == RECORD


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"id": "k.1"}', '{"phase": "no"}', "null"])
def test_damaged_record(text: str) -> None:
    with pytest.raises(ValueError, match=r"(?s).+"):
        decode(text.encode())


def test_no_flipped_bit_is_taken_for_another_record() -> None:
    content = encode(RUNNING)
    for position in range(len(content)):
        for bit in range(8):
            flipped = content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]
            # White space may change.
            with contextlib.suppress(ValueError):
                assert decode(flipped) == RUNNING


def test_records_on_disk(tmp_path: Path) -> None:
    records = Records(tmp_path / "attempts")
    assert records.load() == Loaded()
    assert records.add(RECORD)
    assert not records.add(replace(RECORD, session_id="other"))
    assert Records(tmp_path / "attempts").load() == Loaded({"k.1": RECORD})
    # Half made, half removed, damaged, and not ours.
    for name in (".new-a.1", ".old-b.1", "damaged.1", "something"):
        (tmp_path / "attempts" / name).mkdir()
    (tmp_path / "attempts" / "damaged.1" / "record.json").write_bytes(encode(RECORD))
    loaded = Records(tmp_path / "attempts").load()
    assert loaded == Loaded({"k.1": RECORD}, {"damaged.1": None})
    assert not (tmp_path / "attempts" / ".new-a.1").exists()
    assert not (tmp_path / "attempts" / ".old-b.1").exists()
    records.remove("k.1")
    assert records.was_removed("k.1")
    again = Records(tmp_path / "attempts")
    assert again.load().records == {}
    assert again.was_removed("k.1")
    assert not again.was_removed("k.2")


def test_removed_attempts_are_remembered_in_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.agent.runtime.attempt_records.REMEMBERED", 5)
    records = Records(tmp_path)
    records.load()
    for number in range(30):
        records.remove(f"k{number}.1")
    again = Records(tmp_path)
    again.load()
    assert all(again.was_removed(f"k{number}.1") for number in range(25, 30))
    assert not again.was_removed("k0.1")
    assert len((tmp_path / "removed").read_text().split()) <= 10


async def test_output_that_is_being_removed_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(tmp_path / "attempts")
    records.load()
    records.add(RECORD)
    store = AttemptStore(records)
    await store.open(lambda: None)
    attempt_id = RECORD.id
    assert store.output(attempt_id).size() == 0
    going, may_go = threading.Event(), threading.Event()
    remove = records.remove

    def slow(attempt_id: str) -> None:
        going.set()
        may_go.wait()
        remove(attempt_id)

    monkeypatch.setattr(records, "remove", slow)
    removal = asyncio.create_task(store.remove(attempt_id))
    try:
        assert await asyncio.to_thread(going.wait, 10)
        with pytest.raises(UnknownAttemptError):
            store.output(attempt_id)
    finally:
        may_go.set()
        await removal
    with pytest.raises(UnknownAttemptError):
        store.output(attempt_id)


@pytest.mark.parametrize(
    ("record", "exit_code", "out_of_memory", "rebooted", "fenced", "expected"),
    [
        (RUNNING, 0, False, False, False, (Phase.EXITED, "EXITED")),
        (RUNNING, 0, True, False, False, (Phase.EXITED, "EXITED")),
        (RUNNING, 137, True, False, False, (Phase.EXITED, "OOM_KILLED")),
        (RUNNING, 137, False, False, False, (Phase.EXITED, "EXITED")),
        (RUNNING, 137, False, False, True, (Phase.EXITED, "STOPPED")),
        (RUNNING, None, False, False, True, (Phase.EXITED, "STOPPED")),
        # It had ended by itself before it could be killed.
        (RUNNING, 0, False, False, True, (Phase.EXITED, "EXITED")),
        (RUNNING, None, False, False, False, (Phase.EXITED, "KILLED")),
        (RUNNING, None, False, True, False, (Phase.EXITED, "NODE_REBOOTED")),
        (RUNNING, 7, False, True, False, (Phase.EXITED, "EXITED")),
        (replace(RECORD, phase=Phase.STOPPING, start_time=1.0), 143, False, False, False, (Phase.EXITED, "STOPPED")),
        (replace(RECORD, phase=Phase.CREATED), None, False, False, False, (Phase.FAILED, "START_FAILED")),
        (replace(RECORD, phase=Phase.CREATING), None, False, False, False, (Phase.FAILED, "START_FAILED")),
        (replace(RECORD, phase=Phase.CREATING), None, False, True, False, (Phase.EXITED, "NODE_REBOOTED")),
    ],
)
def test_verdict(
    record: Record,
    exit_code: int | None,
    out_of_memory: bool,
    rebooted: bool,
    fenced: bool,
    expected: tuple[Phase, str],
) -> None:
    phase, reason, message = exit_reason(
        record,
        ExitEvidence(exit_code, out_of_memory="used up" if out_of_memory else ""),
        rebooted=rebooted,
        fenced=fenced,
    )
    assert (phase, reason) == expected
    assert message
    assert ended(record, phase, reason, message, 1.0).phase.ended


def test_limits() -> None:
    limits = Limits.of({"cpu": 1500, "mem": 1 << 30, "cuda.device": 1000}, 100)
    assert memory_settings(limits, unified=False) == [
        ("pids", "pids.max", 100, True),
        ("memory", "memory.limit_in_bytes", 1 << 30, True),
        ("memory", "memory.memsw.limit_in_bytes", 1 << 30, False),
        ("memory", "memory.kmem.tcp.limit_in_bytes", 1 << 28, False),
    ]
    assert memory_settings(Limits.of({"mem": 1 << 20}, 7), unified=False)[-1][2] == 16 << 20
    assert memory_settings(limits, unified=True) == [
        ("", "pids.max", 100, True),
        ("", "memory.max", 1 << 30, True),
        ("", "memory.swap.max", 0, False),
    ]
    assert cpu_settings(1500, unified=False) == [
        ("cpu", "cpu.shares", 1536, True),
        ("cpu", "cpu.cfs_period_us", 100_000, True),
        ("cpu", "cpu.cfs_quota_us", 150_000, True),
    ]
    assert cpu_settings(1500, unified=True) == [("", "cpu.weight", 150, True), ("", "cpu.max", "150000 100000", True)]
    assert cpu_settings(1, unified=False)[0] == ("cpu", "cpu.shares", 2, True)
    assert cpu_settings(1, unified=True)[0] == ("", "cpu.weight", 1, True)
    assert quota(1) == 1000
    assert memory_settings(Limits.of({}, 7), unified=True) == [("", "pids.max", 7, True)]


@pytest.mark.parametrize(
    ("seen", "last", "code", "kills", "reason"),
    [
        # Known since long before the end, and no more came.
        (1, 100.0, 3, 1, "EXITED"),
        (1, 100.0, 137, 1, "EXITED"),
        (1, 195.0, 3, 1, "OOM_KILLED"),
        (1, 100.0, 3, 2, "OOM_KILLED"),
        (0, None, 3, 1, "OOM_KILLED"),
        # The first process was killed before it could say how many.
        (1, 100.0, 137, None, "OOM_KILLED"),
        (1, 100.0, None, None, "OOM_KILLED"),
        (1, 100.0, 3, None, "EXITED"),
        (1, 199.0, 0, 1, "EXITED"),
    ],
)
def test_an_older_kill_does_not_name_a_later_end(
    seen: int, last: float | None, code: int | None, kills: int | None, reason: str
) -> None:
    record = replace(RUNNING, memory_kills=seen, last_memory_kill=last)
    remains = ExitEvidence(code, 200.0, "its memory was used up", kills)
    assert exit_reason(record, remains, rebooted=False, fenced=False)[:2] == (Phase.EXITED, reason)


def test_arguments_never_name_what_the_user_set() -> None:
    variables, files = {"SECRET": "hush", "LD_PRELOAD": "/evil.so"}, MemoryFiles(1 << 20, 2 << 20)
    kernel = Sandbox("h", ("run", "$(x)"), variables, {}, {}, Path("/w"), Owner(7, 8), files)
    arguments = inner_arguments(kernel, "/enclose")
    assert not [argument for argument in arguments if "hush" in argument or "LD_PRELOAD" in argument]
    assert arguments[-3:] == ["sh", "run", "$(x)"]
    assert arguments[:4] == ["/enclose", "7", "8", "/bin/sh"]
    values = environment_of(kernel)
    assert "SECRET=hush" in values
    assert f'"$e{len(values) - 1}"' in barrier_script(kernel)
    assert f'"$e{len(values)}"' not in barrier_script(kernel)
    assert inner_arguments(replace(kernel, command=()), "/enclose")[-2:] == ["sleep", "infinity"]


def test_what_is_printed_of_a_missing_program_is_no_part_of_the_script() -> None:
    kernel = Sandbox("h", ("/x",), {}, {}, {}, Path("/w"), Owner(7, 8), MemoryFiles(1, 1), notice="it's $(gone)")
    assert """|| echo 'retinue: it'"'"'s $(gone)' >&2""" in barrier_script(kernel)


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("", {}),
        ("cpu=4,mem=8g", {"cpu": 4000, "mem": 8 << 30}),
        ("cpu=0.5, mem=1.5k,cuda.device=2", {"cpu": 500, "mem": 1536, "cuda.device": 2000}),
        ("mem=100", {"mem": 100}),
        ("mem=4GiB,cuda.device=0", {"mem": 4 << 30, "cuda.device": 0}),
    ],
)
def test_slots(text: str, slots: dict[str, int]) -> None:
    assert parse_slots(text) == slots


@pytest.mark.parametrize(
    "text",
    [
        *("cpu", "cpu=", "cpu=-1", "cpu=4g", "cpu=1,cpu=2", "=1", "mem=1e9k", "CPU=1", "cpu=1.2345"),
        # No session could ask for these.
        *("cuda_shares=1", "cuda.device=0.5", "mem=0.5", "cpu=9007199254740993"),
    ],
)
def test_bad_slots(text: str) -> None:
    with pytest.raises(ValueError, match=r"slot|suffix"):
        parse_slots(text)


def test_capacity() -> None:
    node = Node(4, 8 << 30, "x86_64", "b")
    assert capacity(node, {}, {}) == {"cpu": 4000, "mem": 8 << 30}
    assert capacity(node, {"cpu": 500, "mem": 9 << 30}, {}) == {"cpu": 3500, "mem": 0}
    assert capacity(node, {"cpu": 500}, {"cpu": 100_000, "x": 1}) == {"cpu": 100_000, "mem": 8 << 30, "x": 1}


def test_a_part_of_the_disk_is_kept_unless_a_reserve_is_given() -> None:
    node = Node(4, 8 << 30, "x86_64", "b", disk=100 << 30)
    assert capacity(node, {}, {})["disk"] == 90 << 30
    assert capacity(node, {"mem": 1 << 30}, {})["disk"] == 90 << 30
    assert capacity(node, {"disk": 30 << 30}, {})["disk"] == 70 << 30
    assert capacity(node, {"disk": 0}, {})["disk"] == 100 << 30
    assert capacity(node, {}, {"disk": 5})["disk"] == 5
    # A cluster says what it leaves of its node, and keeps what it needs itself.
    assert capacity(node, {}, {}, {"cpu": 1000}) == {"cpu": 1000}
    assert capacity(node, {}, {}, {"disk": 7 << 30})["disk"] == 7 << 30


@pytest.mark.parametrize(("processors", "starts"), [(1, 4), (2, 4), (8, 16), (128, 32)])
def test_starts_at_a_time(processors: int, starts: int) -> None:
    assert parallel_starts(processors) == starts


def test_discovery_heeds_limits(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("the-boot\n")
    (tmp_path / "meminfo").write_text("MemTotal:       1000 kB\nMemFree: 1 kB\n")
    group = tmp_path / "cgroup"
    (group / "cpu").mkdir(parents=True)
    (group / "memory").mkdir()
    assert discover(tmp_path, group).memory == 1000 << 10
    (group / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert discover(tmp_path, group).memory == 1000 << 10
    (group / "memory" / "memory.limit_in_bytes").write_text("1024\n")
    (group / "cpu" / "cpu.cfs_quota_us").write_text("100000\n")
    (group / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    node = discover(tmp_path, group)
    assert (node.memory, node.processors, node.boot_id) == (1024, 1, "the-boot")
    (group / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (group / "cpu.max").write_text("max 100000\n")
    assert discover(tmp_path, group).processors >= 1


def test_addresses() -> None:
    assert split_address("a.example:70") == ("a.example", 70)
    assert split_address("[::1]:70") == ("::1", 70)
    for text in ("", "a", "a:", "a:b", "a:99999"):
        with pytest.raises(ValueError, match="host:port"):
            split_address(text)
    managers = parse_managers("10.0.0.1:7000, [::1]:7000,10.0.0.1:7000")
    assert managers == ("10.0.0.1:7000", "[::1]:7000")
    for text in ("", "a:1,", "a:1,b", ":1", ",".join(f"m{number}:1" for number in range(17))):
        with pytest.raises(ValueError, match=r"host:port|managers"):
            parse_managers(text)
    assert agent_endpoints(":7001", managers) == ("10.0.0.1:7001", "[::1]:7001")
    assert agent_endpoints("other:7001", managers) == ("other:7001", "10.0.0.1:7001", "[::1]:7001")
    assert normal_fingerprint("AB:" * 31 + "AB") == "ab" * 32


def test_ids_of_attempts_are_safe_as_names() -> None:
    from retinue.agent.attempts import ATTEMPT_ID  # noqa: PLC0415

    for good in ("k.1", "11111111-0000-4000-8000-000000000001.42"):
        assert ATTEMPT_ID.fullmatch(good)
    for bad in ("", "k", ".1", "k.", "../k.1", "k/1.1", "K.1", "k.1\n", "-k.1", "monitors", "spare-1", "a" * 64 + ".1"):
        assert not ATTEMPT_ID.fullmatch(bad), bad
    assert AttemptSpec("k.1", "s", "k", 1, "h").command == ()
