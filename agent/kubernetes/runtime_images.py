"""The images that are on a node, as its container runtime has them: asked by the runtime's own interface (CRI), which
kubelet uses as well. Nothing is changed by it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from retinue.agent.attempts import ImageIdentity
from retinue.agent.docker.core.image_bounds import command_of, excess, variables_of, working_directory
from retinue.agent.docker.image_platform import unfit_platform
from retinue.agent.docker.images import Image
from retinue.agent.docker.registries import parse_reference
from retinue.agent.errors import KernelRuntimeError
from retinue.agent.kernel.core.signals import signal_named

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from signal import Signals

NONSENSE = "its configuration cannot be read"
NO_LAYERS = "it is no image of a container: it has no layers"
TIMEOUT = 10.0
"""Seconds that the runtime may take to answer."""
MAX_WORDS = 500
PACKAGE = "runtime.v1"
STATUS = f"/{PACKAGE}.ImageService/ImageStatus"
# The part of the interface that is used: the names of messages, and of their fields by number.
_ASKED, _FOUND = "ImageStatusRequest", "ImageStatusResponse"
_TEXT, _FLAG = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BOOL
_MESSAGES: dict[str, dict[int, tuple[str, int | str, bool]]] = {
    "ImageSpec": {1: ("image", _TEXT, False)},
    _ASKED: {1: ("image", "ImageSpec", False), 2: ("verbose", _FLAG, False)},
    "Image": {1: ("id", _TEXT, False)},
    # A map is a list of its entries.
    "Entry": {1: ("key", _TEXT, False), 2: ("value", _TEXT, False)},
    _FOUND: {1: ("image", "Image", False), 2: ("info", "Entry", True)},
}


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """An image's user, as `USER[:GROUP]` by number or name, its labels, what of it rules out a kernel, in words,
    the names of its variables, the signal that it is to be ended by, where its command starts, the system and
    machine that it is for, and its command.
    """

    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    excess: str = ""
    variables: frozenset[str] = frozenset()
    stop_signal: Signals | None = None
    working_directory: str = ""
    system: str = ""
    machine: str = ""
    command: tuple[str, ...] = ()


def read_config(text: str) -> ImageConfig:
    """Reads the JSON that runtimes add to the status of an image; one that leaves the configuration out
    has not said anything.
    """
    if not text:
        return ImageConfig()
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ImageConfig(excess=NONSENSE)
    system, machine, empty = "", "", False
    for name in ("imageSpec", "config"):
        if isinstance(document, dict):
            system, machine = str(document.get("os") or ""), str(document.get("architecture") or "")
            rootfs = document.get("rootfs")
            empty = isinstance(rootfs, dict) and not rootfs.get("diff_ids")
        document = document.get(name) if isinstance(document, dict) else ""
        if document is None:
            return ImageConfig(excess=NO_LAYERS if empty else "", system=system, machine=machine)
    if not isinstance(document, dict):
        return ImageConfig(excess=NONSENSE)
    user, labels = document.get("User") or "", document.get("Labels") or {}
    variables, volumes = document.get("Env") or [], document.get("Volumes") or {}
    kinds = ((user, str), (labels, dict), (variables, list), (volumes, dict))
    if not all(isinstance(value, kind) for value, kind in kinds):
        return ImageConfig(excess=NONSENSE)
    labels = {str(name): str(value) for name, value in labels.items()}
    stop = signal_named(str(document.get("StopSignal") or ""))
    unfit, directory = NO_LAYERS if empty else excess(document), working_directory(document)
    command = command_of(document)
    return ImageConfig(user, labels, unfit, variables_of(document), stop, directory, system, machine, command)


class RuntimeImages:
    """The images of the container runtime that listens at a socket. Methods belong on one event loop."""

    def __init__(self, socket: Path) -> None:
        """Asks for nothing yet."""
        self._socket = socket
        self._asked, self._found = _classes()
        self._channel: grpc.aio.Channel | None = None

    async def find(self, reference: str) -> Image | None:
        """Returns an image if it is on the node. Raises KernelRuntimeError."""
        if self._channel is None:
            # A path is no name of a host, which some runtimes demand.
            options = [("grpc.default_authority", "localhost")]
            self._channel = grpc.aio.insecure_channel(f"unix://{self._socket}", options)
        parts = parse_reference(reference)
        # As kubelet does: without a tag, runtimes take the beginning of any image's id for a name as well.
        name = reference if parts.tag or parts.digest else f"{reference}:latest"
        asked = self._asked(image={"image": name}, verbose=True).SerializeToString()
        try:
            # Decoded here: an answer that makes no sense would be none.
            found = self._found.FromString(await self._channel.unary_unary(STATUS)(asked, timeout=TIMEOUT))
        except DecodeError as error:
            raise KernelRuntimeError(f"the answer of the container runtime at {self._socket} makes no sense") from error
        except grpc.aio.AioRpcError as error:
            why = (error.details() or error.code().name)[:MAX_WORDS]
            raise KernelRuntimeError(f"the container runtime at {self._socket} does not answer: {why}") from error
        if not found.HasField("image"):
            return None
        config = read_config(next((entry.value for entry in found.info if entry.key == "info"), ""))
        identity = ImageIdentity("", found.image.id)
        unfit = config.excess or await asyncio.to_thread(unfit_platform, config.system, config.machine)
        return Image(
            identity,
            config.user,
            config.labels,
            unfit,
            config.variables,
            config.stop_signal,
            config.working_directory,
            config.command,
        )

    async def close(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            await self._channel.close()


def _classes() -> tuple[Any, Any]:
    """Returns the classes of the request and of the answer."""
    file = FileDescriptorProto(name="runtime.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (title, kind, repeated) in fields.items():
            label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            entry = message.field.add(name=title, number=number, label=label)
            if isinstance(kind, str):
                entry.type, entry.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                entry.type = kind  # type: ignore[assignment]
    pool = DescriptorPool()
    pool.Add(file)
    asked, found = (GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in (_ASKED, _FOUND))
    return asked, found
