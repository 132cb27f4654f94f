"""Frames between the agent and the first process of a virtual machine, `agent/kernel/guest.c`. Pure.

All that comes from a guest is read as the bytes of an adversary: what makes no sense is a GuestFrameError,
and costs the channel.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HEADER = struct.Struct(">cI")
ANSWER = struct.Struct(">4sI")
MAX_ANSWER = 64
"""Bytes of the longest frame that a guest may send."""
MAX_REQUEST = 4 << 20
"""Bytes of the longest frame that a guest takes."""
MAX_FIELDS = 8192
MAX_PLACES = 64
"""Directories for names of programs that a guest takes."""
SPECIFY, NETWORK, SERVE, GO, SIGNAL = b"S", b"N", b"V", b"G", b"K"
BOOTED, ANSWERED = b"B", b"A"
GREETING = struct.Struct(">c8s")
"""The begin of a stream, which the guest repeats."""


class GuestFrameError(Exception):
    """A guest sent what is no frame of ours, or is to be sent what is none."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that the guest finds; `private` ones belong to the kernel's user."""

    path: str
    mode: int
    content: bytes
    private: bool = False


@dataclass(frozen=True, slots=True)
class SharedDirectory:
    """A directory of the share that the guest shows at `target`."""

    target: str
    name: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """The specification of what runs in a guest. `image` says that its root is an image's, and not the node's own.

    The command has `groups` beside its own. `programs` of the agent get a name where an image has none, in the first of
    `places` that takes one, at most MAX_PLACES; `ssh_config` comes before the configuration of an image's own ssh. The
    command starts in `directory`, as in containers.
    """

    hostname: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    image: bool = False
    shared_memory: int = 0
    processes: int = 0
    files: tuple[File, ...] = ()
    mounts: tuple[SharedDirectory, ...] = ()
    programs: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    ssh_config: str = ""
    server: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    directory: str = "."


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface of a guest: hardware address at birth and as it shall be, IPv4 address with prefix
    or none, MTU, and a gateway with its own, or none.
    """

    device: str
    mac: str
    address: str
    prefix: int
    mtu: int
    gateway: str = ""
    gateway_mac: str = ""


def specification(spec: GuestSpec) -> list[bytes]:
    """Returns the fields of a specification."""
    fields = [f"h{spec.hostname}", f"r{'squashfs' if spec.image else '9p'}", f"u{spec.uid}", f"g{spec.gid}"]
    fields += [f"x{group}" for group in spec.groups]
    fields += [f"w{place}" for place in spec.places[:MAX_PLACES]]
    fields.append(f"d{spec.directory}")
    if spec.shared_memory:
        fields.append(f"s{spec.shared_memory}")
    if spec.processes:
        fields.append(f"n{spec.processes}")
    fields += [f"v{word}" for word in spec.server]
    fields += [f"a{word}" for word in spec.command]
    fields += [f"e{variable}" for variable in spec.environment]
    encoded = [field.encode(errors="surrogateescape") for field in fields]
    for file in spec.files:
        encoded += [f"f{file.path}".encode(), f"{file.mode:o}".encode(), b"u" if file.private else b"", file.content]
    if spec.ssh_config:
        encoded.append(f"c{spec.ssh_config}".encode())
    encoded += [f"p{name}".encode() for name in spec.programs]
    # Last: they cover what of ours would be put there.
    for mount in spec.mounts:
        encoded += [f"m{mount.target}".encode(), mount.name.encode(), b"w" if mount.writable else b"r"]
    return encoded


def interface(value: Interface) -> list[bytes]:
    """Returns the fields of an interface."""
    texts = (
        value.device,
        value.mac,
        value.address,
        str(value.prefix),
        str(value.mtu),
        value.gateway,
        value.gateway_mac,
    )
    return [text.encode() for text in texts]


def clock(now: int) -> list[bytes]:
    """Returns the fields of a release; `now` is the node's time in nanoseconds since the epoch."""
    return [f"{now // 10**9} {now % 10**9}".encode()]


def request(kind: bytes, number: bytes, fields: Iterable[bytes] = ()) -> bytes:
    """Returns a frame to the guest. Raises GuestFrameError when it is more than a guest takes."""
    words = list(fields)
    body = number + b"".join(struct.pack(">I", len(word)) + word + b"\0" for word in words)
    if len(body) > MAX_REQUEST or len(words) > MAX_FIELDS:
        raise GuestFrameError("the command, its environment and its files are too much for a virtual machine")
    return HEADER.pack(kind, len(body)) + body


def signal_request(number: bytes, signal: int) -> bytes:
    """Returns the frame that sends the command a signal."""
    body = number + bytes([signal])
    return HEADER.pack(SIGNAL, len(body)) + body


def parse_header(data: bytes) -> tuple[bytes, int]:
    """Returns kind and length of a frame from the guest. Raises GuestFrameError."""
    try:
        kind, length = HEADER.unpack(data)
    except struct.error as error:
        raise GuestFrameError("a frame of the guest is cut off") from error
    if kind not in {BOOTED, ANSWERED} or length > MAX_ANSWER:
        raise GuestFrameError("what comes from the guest is no frame")
    return kind, length


def parse_answer(data: bytes) -> tuple[bytes, int]:
    """Returns the number of the request, and the error number of the answer. Raises GuestFrameError."""
    try:
        number, error = ANSWER.unpack(data)
    except struct.error as problem:
        raise GuestFrameError("an answer of the guest has no such length") from problem
    return number, error


_STATUS = re.compile(rb"killed (\d{1,18})|exit (\d{1,3}) (\d{1,18})")
# What a process cannot have was not written by our first process.
_LARGEST_CODE = 255


@dataclass(frozen=True, slots=True)
class GuestStatus:
    """What a guest says of itself: the exit code of the command, None while there is none, and how many processes were
    killed as its memory was used up.
    """

    exit_code: int | None = None
    memory_kills: int = 0


def parse_status(data: bytes) -> GuestStatus:
    """Returns what a guest has said so far: lines `killed KILLS`, and as the last one `exit CODE KILLS`.
    Never raises.
    """
    kills = 0
    for line in data.split(b"\n")[:-1]:
        match = _STATUS.fullmatch(line)
        if match is None or int(match[2] or 0) > _LARGEST_CODE:
            break
        kills = int(match[1] or match[3])
        if match[2] is not None:
            return GuestStatus(int(match[2]), kills)
    return GuestStatus(None, kills)
