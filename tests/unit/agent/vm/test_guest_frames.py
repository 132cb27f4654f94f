"""Frames of guests are read totally: whatever a guest sends is an answer, or no frame."""

from __future__ import annotations

import contextlib
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.vm.core import guest_frames
from retinue.agent.vm.core.guest_frames import File, GuestFrameError, GuestSpec, GuestStatus, SharedDirectory
from retinue.agent.vm.core.machine import Descriptors, Machine, TooSmallError, arguments, machine_of
from retinue.rpc.core.amounts import CPU, MEMORY


@given(st.binary(max_size=64))
def test_what_a_guest_sends_is_a_frame_or_none(data: bytes) -> None:
    with contextlib.suppress(GuestFrameError):
        kind, length = guest_frames.parse_header(data)
        assert kind in {guest_frames.BOOTED, guest_frames.ANSWERED}
        assert length <= guest_frames.MAX_ANSWER
    with contextlib.suppress(GuestFrameError):
        number, error = guest_frames.parse_answer(data)
        assert len(number) == 4
        assert 0 <= error < 1 << 32
    code = guest_frames.parse_status(data).exit_code
    assert code is None or 0 <= code <= 255


@pytest.mark.parametrize(
    ("said", "code", "kills"),
    [
        (b"exit 0 0\n", 0, 0),
        (b"exit 137 1\n", 137, 1),
        (b"exit 5 0\nexit 6 0\n", 5, 0),
        (b"killed 1\nkilled 3\n", None, 3),
        (b"killed 1\nkilled 3\nexit 0 4\n", 0, 4),
        (b"killed 1\nkilled", None, 1),
        (b"killed 1\nkilled 2 2\nexit 0 4\n", None, 1),
        (b"exit 5 0", None, 0),
        (b"exit 256 0\n", None, 0),
        (b"exit -1 0\n", None, 0),
        (b"killed " + 60 * b"9" + b"\n", None, 0),
        (b"\0" * 64, None, 0),
        (b"", None, 0),
    ],
)
def test_what_a_guest_says_of_itself(said: bytes, code: int | None, kills: int) -> None:
    assert guest_frames.parse_status(said) == GuestStatus(code, kills)


def fields_of(frame: bytes) -> list[bytes]:
    kind, length = guest_frames.HEADER.unpack(frame[:5])
    assert (kind, length, frame[5:9]) == (guest_frames.SPECIFY, len(frame) - 5, b"1234")
    found, rest = [], frame[9:]
    while rest:
        (size,) = struct.unpack(">I", rest[:4])
        found.append(rest[4 : 4 + size])
        assert rest[4 + size] == 0
        rest = rest[5 + size :]
    return found


def test_a_specification_is_read_as_it_was_written() -> None:
    spec = GuestSpec(
        "main1",
        70_000,
        60_000,
        files=(File("/key", 0o400, b"\0\xff", private=True),),
        mounts=(SharedDirectory("/data", "mount0"),),
        command=("sh", "-c", "true"),
        environment=("A=b",),
        directory="/data",
        places=("/opt/bin", *["/bin"] * 99),
        programs=("ssh",),
    )
    fields = fields_of(guest_frames.request(guest_frames.SPECIFY, b"1234", guest_frames.specification(spec)))
    expected = [b"hmain1", b"r9p", b"u70000", b"g60000", b"d/data", b"ash", b"a-c", b"atrue", b"eA=b"]
    places = [b"w/opt/bin", *[b"w/bin"] * (guest_frames.MAX_PLACES - 1)]
    file, mount = [b"f/key", b"400", b"u", b"\0\xff"], [b"m/data", b"mount0", b"r"]
    assert fields == [*expected[:4], *places, *expected[4:], *file, b"pssh", *mount]


def test_what_no_guest_takes_is_refused() -> None:
    for fields in ([b"x" * (guest_frames.MAX_REQUEST + 1)], [b""] * (guest_frames.MAX_FIELDS + 1)):
        with pytest.raises(GuestFrameError):
            guest_frames.request(guest_frames.SPECIFY, b"1234", fields)


def test_a_machine_has_the_memory_of_its_kernel_less_what_qemu_needs() -> None:
    assert machine_of({MEMORY: 1 << 30, CPU: 2500}, "tcg") == Machine((1 << 30) - (96 << 20), 3, "tcg")
    assert machine_of({}, "kvm") == Machine(512 << 20, 1, "kvm")
    with pytest.raises(TooSmallError, match="mem=224m"):
        machine_of({MEMORY: (224 << 20) - 1}, "tcg")


@pytest.mark.parametrize("image", [None, 12])
def test_a_machine_has_these_devices_and_no_other(image: int | None) -> None:
    words = arguments(Machine(256 << 20, 1, "tcg"), Descriptors(3, 4, 5, 6, 7, (8, 9), image))
    devices = [word.partition(",")[0] for before, word in itertools.pairwise(words) if before == "-device"]
    kinds = {"virtio-serial-pci", "virtserialport", "virtio-net-pci", "virtio-rng-pci", "virtio-9p-pci"}
    assert set(devices) == (kinds if image is None else kinds | {"virtio-blk-pci"})
    assert devices.count("virtio-net-pci") == 2
    assert "-nodefaults" in words
    assert words[words.index("-sandbox") + 1].startswith("on,")


@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_only_a_machine_that_is_emulated_leaves_the_counter_of_the_processor_alone(accelerator: str) -> None:
    words = arguments(Machine(256 << 20, 1, accelerator), Descriptors(3, 4, 5, 6, 7))
    assert ("tsc" in words[words.index("-append") + 1]) == (accelerator == "tcg")


def test_a_release_says_the_time() -> None:
    assert guest_frames.clock(1_700_000_000_000_000_042) == [b"1700000000 42"]
