"""What the node's files say of a kernel's usage, for both versions of control groups."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.inside.host_kernel import read_usage
from retinue.agent.resources.core.usage import Usage, group_paths, network_bytes, number, usage_of
from retinue.agent.resources.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ONE = {
    "cpuacct/cpuacct.usage": "123456789012\n",
    "memory/memory.usage_in_bytes": "10485760\n",
    "memory/memory.stat": "cache 4096\ninactive_file 1\ntotal_cache 4096\ntotal_inactive_file 1048576\n",
    "memory/memory.max_usage_in_bytes": "20971520\n",
    "memory/memory.limit_in_bytes": "268435456\n",
    "blkio/blkio.throttle.io_service_bytes": (
        "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 12288\n254:0 Total 12288\n8:16 Read 1\n8:16 Write 2\nTotal 12291\n"
    ),
    "pids/pids.current": "7\n",
}
TWO = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
    "memory.current": "10485760\n",
    "memory.stat": "anon 1\nfile 2\ninactive_file 1048576\n",
    "memory.peak": "20971520\n",
    "memory.max": "268435456\n",
    "io.stat": "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=1 wbytes=2 rios=1 wios=1 dbytes=0 dios=0\n",
    "pids.current": "7\n",
}
NETWORK = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 336682449  175122    0    0    0     0          0         0 336682449  175122    0    0    0     0       0          0
  eth0:1000       9    0    0    0     0          0         0      2000       9    0    0    0     0       0          0
   eg0:      10       9    0    0    0     0          0         0       20       9    0    0    0     0       0          0
"""


def test_version_one() -> None:
    usage = usage_of(lambda controller, name: ONE.get(f"{controller}/{name}"), unified=False, network=NETWORK)
    assert usage == Usage(123456789012, 9 << 20, 20 << 20, 256 << 20, 4097, 8194, 1010, 2020, 7)


def test_version_two() -> None:
    usage = usage_of(lambda controller, name: None if controller else TWO.get(name), unified=True, network=NETWORK)
    assert usage == Usage(2_500_000_000, 9 << 20, 20 << 20, 256 << 20, 4097, 8194, 1010, 2020, 7)


@pytest.mark.parametrize("unified", [True, False])
def test_missing_is_not_zero(*, unified: bool) -> None:
    assert usage_of(lambda *_: None, unified, None) == Usage()
    # A group that has not used a disk yet has a file without devices: that is zero.
    nothing_yet = usage_of(
        lambda _, name: "" if name == "io.stat" else "Total 0\n" if "blkio" in name else None, unified, ""
    )
    assert (nothing_yet.read, nothing_yet.written, nothing_yet.received) == (0, 0, None)


@pytest.mark.parametrize(
    ("text", "value"), [("12\n", 12), ("0", 0), ("max\n", None), ("", None), ("-1", None), (None, None)]
)
def test_numbers(text: str | None, value: int | None) -> None:
    assert number(text) == value


def test_no_limit() -> None:
    unlimited = {"memory.limit_in_bytes": "9223372036854771712\n"}
    assert usage_of(lambda _, name: unlimited.get(name), unified=False, network=None).memory_limit is None
    assert (
        usage_of(lambda _, name: "max\n" if name == "memory.max" else None, unified=True, network=None).memory_limit
        is None
    )


def test_only_a_loopback_is_no_network() -> None:
    assert network_bytes("\n".join(NETWORK.splitlines()[:3])) == (None, None)


def test_groups() -> None:
    assert group_paths("7:blkio:/docker/ab\n1:cpu,cpuacct:/x/y:z\n0::/\n") == {
        "blkio": "/docker/ab",
        "cpu": "/x/y:z",
        "cpuacct": "/x/y:z",
        "": "/",
    }


async def test_one_look_for_all_who_ask_at_once(tmp_path: Path) -> None:
    now = 100.0
    (tmp_path / "proc" / "7" / "net").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text("0::/k.1\n")
    group = tmp_path / "cgroup" / "k.1"
    group.mkdir(parents=True)
    (tmp_path / "cgroup" / "cgroup.controllers").touch()
    (group / "pids.current").write_text("3\n")

    read = functools.partial(read_usage, 7, tmp_path / "proc", tmp_path / "cgroup")
    sampler = Sampler(
        lambda attempt_id: read if attempt_id == "k.1" else None,
        monotonic=lambda: now,
        clock=lambda: now + 1000,
    )
    first = await sampler.sample(["k.1", "other.1", "k.1"])
    assert {key: (sample.time, sample.usage) for key, sample in first.items()} == {"k.1": (1100.0, Usage(tasks=3))}
    (group / "pids.current").write_text("4\n")
    now += 0.3
    assert await sampler.sample(["k.1"]) == first
    now += 0.3
    assert (await sampler.sample(["k.1"]))["k.1"].usage.tasks == 4
    # A kernel without a control group of its own is not measured as the whole node.
    (tmp_path / "proc" / "7" / "cgroup").write_text("0::/\n")
    now += 1
    assert (await sampler.sample(["k.1"]))["k.1"].usage == Usage()


async def test_all_attempts_of_a_round_are_read_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = 0

    async def in_thread(function: Callable[..., Any], *arguments: object) -> Any:
        nonlocal threads
        threads += 1
        return await to_thread(function, *arguments)

    to_thread = asyncio.to_thread
    monkeypatch.setattr(asyncio, "to_thread", in_thread)
    ends = {"k.3": None}
    sampler = Sampler(lambda attempt_id: lambda: ends.get(attempt_id, Usage(tasks=1)))
    found = await sampler.sample([f"k.{number}" for number in range(100)])
    assert (len(found), threads) == (99, 1)
    assert await sampler.sample([]) == {}
    assert threads == 1


def test_what_passes_a_tap_is_counted_once() -> None:
    added = [line.replace("eth0", "tap0") for line in NETWORK.splitlines() if "eth0" in line]
    assert added
    assert network_bytes("\n".join([*NETWORK.splitlines(), *added])) == network_bytes(NETWORK)
