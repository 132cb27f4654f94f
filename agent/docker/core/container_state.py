"""Reads what an engine says of containers and of the files in them. Pure."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from retinue.agent.docker.core.container_spec import AGENT_LABEL, ATTEMPT_LABEL
from retinue.agent.runtime.bwrap_status import known_exit_code

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN_EXIT_CODE = 255
"""In place of one that no process has, as an engine says that lost how a container ended; never 0, which is success."""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """The state of a container. `pid` is the node's number of its first process, 0 when there is none.

    `end_time` is in seconds since the epoch, None before its end; `exit_code` counts from then on.
    """

    attempt_id: str
    agent_id: str
    fresh: bool
    running: bool
    pid: int
    exit_code: int
    out_of_memory: bool
    error: str
    end_time: float | None


@dataclass(frozen=True, slots=True)
class Written:
    """Disk use of a container: directories that are volumes of its own, and bytes written over its image."""

    volumes: tuple[str, ...] = ()
    layer: int = 0


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file in a container: whether it is a plain one, and its size in bytes."""

    plain: bool
    size: int


def parse_file(header: str) -> tuple[FileFacts, str]:
    """Reads the header of the answer to `HEAD /containers/ID/archive`;
    also where the file leads if it is a link, all others followed.
    """
    found = json.loads(base64.b64decode(header))
    # As Go has it: kinds of files are the highest bits of a mode.
    plain = not int(found["mode"]) & (0x8F28 << 16)
    return FileFacts(plain, int(found["size"])), str(found.get("linkTarget") or "")


def content_of(archive: bytes) -> bytes:
    """Returns the content of the one file in the answer to `GET /containers/ID/archive`. Raises ValueError."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
            member = opened.next()
            file = None if member is None else opened.extractfile(member)
            if file is None:
                raise ValueError("there is no plain file in it")
            # Whatever size a sparse file claims.
            return file.read(len(archive))
    except tarfile.TarError as error:
        raise ValueError(str(error)) from error


def parse_state(answer: Mapping[str, Any]) -> ContainerState:
    """Reads the answer to `GET /containers/ID/json`."""
    state, labels = answer["State"], answer["Config"].get("Labels") or {}
    running = bool(state["Running"])
    code = known_exit_code(state["ExitCode"])
    return ContainerState(
        attempt_id=labels.get(ATTEMPT_LABEL, ""),
        agent_id=labels.get(AGENT_LABEL, ""),
        fresh=state["Status"] == "created",
        running=running,
        pid=int(state["Pid"]),
        exit_code=UNKNOWN_EXIT_CODE if code is None else code,
        out_of_memory=bool(state["OOMKilled"]),
        error=str(state.get("Error") or ""),
        end_time=None if running else parse_time(state["FinishedAt"]),
    )


def parse_time(text: str) -> float | None:
    """Returns the seconds since the epoch from the engine's time, which has up to nine decimals;
    its year 1 means never.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return None if moment.year <= 1 else moment.timestamp()
