"""Output on its way from a kernel's pipe into its file."""

from __future__ import annotations

import array
import fcntl
import os
import resource
import signal
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.host import syscalls
from retinue.agent.host.launch_threads import in_own_thread
from retinue.agent.inside.output_pump import INDEX, OUTPUT, PIPE, STDOUT_PIPE, drain, make_pipe, pumping, revive
from retinue.agent.inside.streams import RECORD_BYTES, StreamIndex
from retinue.agent.kernel.build import PUMP, build
from retinue.rpc.core.output_stream import Stream
from tests.support.eventually import NEVER, eventually_blocking

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 1 << 20


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cache"), PUMP)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_pipe(tmp_path, 0o600)
    return tmp_path


def writer(place: Path) -> int:
    """As a kernel has it: for reading as well."""
    return os.open(place / PIPE, os.O_RDWR | os.O_CLOEXEC)


def write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def printed(place: Path) -> bytes:
    assert drain(place, NEVER)
    return (place / OUTPUT).read_bytes()


def pumps(place: Path) -> list[int]:
    """Processes that have the output open."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if any(os.readlink(link) == str(place / OUTPUT) for link in (entry / "fd").iterdir()):
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return [pid for pid in found if pid != os.getpid()]


def test_all_of_it_arrives_and_then_the_pump_ends(program: Path, place: Path) -> None:
    data = os.urandom(3 << 20)
    with pumping(program, place, 64 << 20):
        kernel = writer(place)
    write(kernel, data)
    assert not drain(place, 0)
    os.close(kernel)
    assert printed(place) == data
    eventually_blocking(lambda: not pumps(place))


def test_a_pipe_that_was_not_taken_ends_its_pump(program: Path, place: Path) -> None:
    with pumping(program, place, LIMIT):
        pass
    assert printed(place) == b""


def test_there_is_one_pump_and_a_lost_one_is_replaced(program: Path, place: Path) -> None:
    with pumping(program, place, LIMIT):
        kernel = writer(place)
    revive(program, place, LIMIT)
    (pump,) = pumps(place)
    write(kernel, b"before ")
    os.kill(pump, signal.SIGKILL)
    assert drain(place, NEVER)
    # The printing program is not ended, and what fits into the pipe waits there.
    write(kernel, b"meanwhile ")
    revive(program, place, LIMIT)
    write(kernel, b"after")
    os.close(kernel)
    # What was in the pump's hands is what a kill may take.
    assert printed(place).endswith(b"meanwhile after")


def test_the_oldest_part_is_given_back_and_offsets_stay_true(program: Path, place: Path) -> None:
    with pumping(program, place, LIMIT):
        kernel = writer(place)
    for number in range(16 << 10):
        write(kernel, b"%-1023d\n" % number)
    os.close(kernel)
    content = printed(place)
    assert len(content) == 16 << 20
    assert (place / OUTPUT).stat().st_blocks * 512 <= LIMIT * 5 // 4
    assert content[-1024:] == b"%-1023d\n" % ((16 << 10) - 1)
    assert content[-LIMIT : -LIMIT + 1024] == b"%-1023d\n" % (15 << 10)


@pytest.mark.root
def test_a_full_disk_leaves_a_gap_and_blocks_no_writer(program: Path, tmp_path: Path) -> None:
    def on_small_disk(action: Callable[[], None]) -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_FS)
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
        syscalls.mount("tmpfs", str(tmp_path), "tmpfs", 0, "size=256k")
        action()

    def action() -> None:
        make_pipe(tmp_path, 0o600)
        with pumping(program, tmp_path, 64 << 20):
            kernel = writer(tmp_path)
        write(kernel, b"x" * (4 << 20))
        os.close(kernel)
        content = printed(tmp_path)
        assert len(content) == 4 << 20
        assert content.startswith(b"x" * 4096)
        assert content.endswith(b"\0" * 4096)

    in_own_thread(lambda: on_small_disk(action))


def limited(place: Path, size: int) -> None:
    """Lets the pump of an output write no file beyond a size: neither more nor a gap."""
    (pump,) = eventually_blocking(lambda: pumps(place), bool)
    resource.prlimit(pump, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def taken(kernel: int) -> bool:
    """Whether the pump has read all that was printed."""
    left = array.array("i", [0])
    fcntl.ioctl(kernel, termios.FIONREAD, left)
    return left[0] == 0


def test_a_gap_shows_as_soon_as_the_file_can_grow_again(program: Path, place: Path) -> None:
    with pumping(program, place, 64 << 20):
        kernel = writer(place)
    write(kernel, b"a" * 4096)
    waited(place, 4096)
    limited(place, 4096)
    write(kernel, b"b" * 4096)
    eventually_blocking(lambda: taken(kernel))
    limited(place, resource.RLIM_INFINITY)
    # Nothing more is printed for that.
    waited(place, 8192)
    write(kernel, b"c" * 4096)
    os.close(kernel)
    assert printed(place) == b"a" * 4096 + bytes(4096) + b"c" * 4096


def test_what_was_lost_at_the_end_shows_as_well(program: Path, place: Path) -> None:
    with pumping(program, place, 64 << 20):
        kernel = writer(place)
    write(kernel, b"a" * 4096)
    waited(place, 4096)
    limited(place, 4096)
    write(kernel, b"b" * 4096)
    eventually_blocking(lambda: taken(kernel))
    os.close(kernel)
    limited(place, resource.RLIM_INFINITY)
    assert printed(place) == b"a" * 4096 + bytes(4096)
    eventually_blocking(lambda: not pumps(place))


@pytest.fixture
def streams(place: Path) -> Path:
    make_pipe(place, 0o600, STDOUT_PIPE)
    return place


def parts(place: Path) -> list[tuple[bytes, Stream]]:
    data = printed(place)
    with StreamIndex(place / INDEX) as index:
        return [(data[part.start : part.end], part.stream) for part in index.partition(0, len(data))]


def waited(place: Path, size: int) -> None:
    eventually_blocking(lambda: (place / OUTPUT).stat().st_size >= size)


def test_the_index_says_what_came_from_which_pipe(program: Path, streams: Path) -> None:
    with pumping(program, streams, LIMIT):
        out, errors = os.open(streams / STDOUT_PIPE, os.O_RDWR), writer(streams)
    # In order of arrival: the one is there before the other is written.
    write(out, b"one\n")
    waited(streams, 4)
    write(errors, b"bad\n")
    waited(streams, 8)
    write(out, b"two\n")
    waited(streams, 12)
    write(out, b"three\n")
    os.close(out)
    os.close(errors)
    assert parts(streams) == [(b"one\n", Stream.STDOUT), (b"bad\n", Stream.STDERR), (b"two\nthree\n", Stream.STDOUT)]
    assert (streams / INDEX).stat().st_size == 3 * RECORD_BYTES


def test_a_later_pump_continues_the_index(program: Path, streams: Path) -> None:
    with pumping(program, streams, LIMIT):
        out, errors = os.open(streams / STDOUT_PIPE, os.O_RDWR), writer(streams)
    write(out, b"before\n")
    waited(streams, 7)
    (first,) = pumps(streams)
    os.kill(first, signal.SIGKILL)
    eventually_blocking(lambda: not pumps(streams))
    with (streams / INDEX).open("ab") as index:
        index.write(b"cut")
    write(errors, b"after\n")
    revive(program, streams, LIMIT)
    os.close(out)
    os.close(errors)
    assert parts(streams) == [(b"before\n", Stream.STDOUT), (b"after\n", Stream.STDERR)]


def test_an_index_that_cannot_be_written_costs_no_output(program: Path, streams: Path) -> None:
    (streams / INDEX).symlink_to("/dev/full")
    with pumping(program, streams, LIMIT):
        # The pump ends with the last writer of errors, as a kernel's first process is.
        out, errors = os.open(streams / STDOUT_PIPE, os.O_RDWR), writer(streams)
    write(out, b"all of it\n")
    os.close(out)
    os.close(errors)
    assert printed(streams) == b"all of it\n"


def test_the_index_is_bounded_with_the_output(program: Path, streams: Path) -> None:
    limit = 1 << 16
    with pumping(program, streams, limit):
        out, errors = os.open(streams / STDOUT_PIPE, os.O_RDWR), writer(streams)
    for number in range(4000):
        write((out, errors)[number % 2], b".")
        waited(streams, number + 1)
    os.close(out)
    os.close(errors)
    assert len(printed(streams)) == 4000
    assert (streams / INDEX).stat().st_blocks * 512 <= limit // 16 * 9 // 8 + 4096
    with StreamIndex(streams / INDEX) as index:
        assert [part.stream for part in index.partition(3998, 4000)] == [Stream.STDOUT, Stream.STDERR]
