"""What happens to sessions, as the journal records it: JSON by the names of the fields,
of which none may hold a secret. Pure.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import PlainValidator, TypeAdapter, ValidationError

from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.attempts import AttemptPause, FailingStep, FaultyPath, LayerReport, Step
from retinue.manager.domain.session.images import NO_IMAGE, SeenImage
from retinue.manager.domain.session.new_session import NewKernel, NewSession
from retinue.manager.domain.session.spec_codec import DecodedSpec, Encoder, UnreadableSpec, decode
from retinue.manager.domain.session.states import KernelState, Result, SessionState
from retinue.rpc.core.retries import Retries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class SessionCreated:
    """A session was accepted, without variables and scripts, and waits for `reason`:
    journals are read by more people than its owner.
    """

    session: NewSession
    spec: Annotated[DecodedSpec, PlainValidator(decode)]
    kernels: tuple[NewKernel, ...]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SessionMoved:
    """The session moved; values as they were after the move, `network` empty without one."""

    from_state: SessionState
    to_state: SessionState
    result: Result
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    retries: int = 0
    network: str = ""


@dataclass(frozen=True, slots=True)
class KernelMoved:
    """A kernel moved; values as they were after the move, agent and epoch those of the attempt it is about."""

    kernel_id: uuid.UUID
    hostname: str
    from_state: KernelState
    to_state: KernelState
    agent_id: str | None
    epoch: int
    address: str = ""
    exit_code: int | None = None
    reason: str = ""
    image: SeenImage = NO_IMAGE
    # Of one that has terminated: when its agent observed that.
    end_time: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class PulledBytes:
    """Bytes of an image that an agent has pulled, of those layers whose size is known."""

    bytes: int
    total: int


@dataclass(frozen=True, slots=True)
class ImagePulled:
    """The pull of an image for a kernel progressed."""

    kernel_id: uuid.UUID
    hostname: str
    agent_id: str
    epoch: int
    image: str
    progress: PulledBytes
    layers: tuple[LayerReport, ...]


class AccessMethod(StrEnum):
    """A way in which a kernel is accessed."""

    ATTACH = "ATTACH"
    CODE = "CODE"
    PORT = "PORT"
    HTTP = "HTTP"
    UPLOAD = "UPLOAD"
    DOWNLOAD = "DOWNLOAD"
    APP_START = "APP_START"
    APP_STOP = "APP_STOP"
    SFTP = "SFTP"
    SSH_CERTIFICATE = "SSH_CERTIFICATE"
    SSH_KEYS = "SSH_KEYS"


@dataclass(frozen=True, slots=True)
class KernelAccess:
    """A kernel was accessed: who, where and how; `port` only by a port, `app` only where one is started or stopped.

    `source` is the address of the caller, `connection_address` the one that logs of an SFTP server name,
    `key_fingerprint` of a key that was certified.

    What is run or sent is not recorded: it may hold secrets.
    """

    method: AccessMethod
    hostname: str
    user: str
    token_id: uuid.UUID | None
    port: int = 0
    app: str = ""
    source: str = ""
    connection_address: str = ""
    key_fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a session, of `agent` where it follows from one."""

    type: str
    message: str
    since: dt.datetime | None = None
    agent: str = ""


@dataclass(frozen=True, slots=True)
class ReasonChanged:
    """The reason or the conditions of a session changed without a move;
    `new` are the types of conditions that were not there before.

    `forced`: its grace was shortened while it ended.
    """

    reason: str
    message: str
    conditions: tuple[Condition, ...] = ()
    new: tuple[str, ...] = ()
    forced: bool = False


@dataclass(frozen=True, slots=True)
class SessionUpdated:
    """A caller changed a session: all that can be changed, as it was then, and who did."""

    name: str
    priority: int
    hold: bool
    user: str


@dataclass(frozen=True, slots=True)
class UnreadableEvent:
    """An entry that another version of the manager wrote, or that is damaged."""

    kind: str
    error: str


PATH_CONDITIONS = frozenset({ConditionType.PATH_BROKEN, ConditionType.PATH_UNPROVED})
EventBody: TypeAlias = (
    SessionCreated | SessionMoved | KernelMoved | ImagePulled | KernelAccess | ReasonChanged | SessionUpdated
)
KINDS: Mapping[type[EventBody], str] = {
    SessionCreated: "CREATED",
    SessionMoved: "SESSION_MOVED",
    KernelMoved: "KERNEL_MOVED",
    ImagePulled: "IMAGE_PULL",
    KernelAccess: "KERNEL_ACCESSED",
    ReasonChanged: "REASON_CHANGED",
    SessionUpdated: "SESSION_UPDATED",
}
_PARSERS: Mapping[str, TypeAdapter[EventBody]] = {kind: TypeAdapter(body) for body, kind in KINDS.items()}
_CONDITION, _PULLED_BYTES = TypeAdapter(Condition), TypeAdapter(PulledBytes)


def stored_creation(body: SessionCreated, encoder: Encoder) -> dict[str, object]:
    """Returns an entry about a session that was created as it is written; others are written as they are.
    Raises TypeError for a spec that could not be read.
    """
    if isinstance(body.spec, UnreadableSpec):
        raise TypeError(body.spec.error)
    return {
        "session": body.session,
        "spec": encoder.document(body.spec, body.session.name),
        "kernels": body.kernels,
        "reason": body.reason,
        "message": body.message,
    }


def parse_event(kind: str, stored: str) -> EventBody | UnreadableEvent:
    """Returns an entry of the journal from its kind and its JSON. Never raises."""
    try:
        return _PARSERS[kind].validate_json(stored)
    except (LookupError, ValidationError) as error:
        return UnreadableEvent(kind, repr(error))


def parse_pulled_bytes(stored: object) -> PulledBytes | None:
    """Returns the progress of a pull; None when there is none, or it cannot be read. Never raises."""
    try:
        return _PULLED_BYTES.validate_python(stored) if stored else None
    except ValidationError:
        return None


def with_memory_kills(
    conditions: tuple[Condition, ...], hostname: str, kills: int, since: dt.datetime | None
) -> tuple[Condition, ...]:
    """Returns the conditions with the one that says how many processes of a kernel were killed for want of memory."""
    processes = "1 process was" if kills == 1 else f"{kills} processes or more were"
    prefix = f"{hostname}: "
    new = Condition(ConditionType.OOM_KILLED, f"{prefix}{processes} killed, as its memory was used up", since)
    others = (item for item in conditions if item.type != new.type or not item.message.startswith(prefix))
    return conditions if new in conditions else (*others, new)


# Types of the conditions that say what agents try again.
RETRIED = frozenset({ConditionType.NETWORK_DEGRADED, ConditionType.RETRYING})
_FAILING: Mapping[Step, str] = {
    Step.NETWORK: "its network on agent {agent} cannot be made or mended",
    Step.CREATE: "{hostname}: it cannot be created on agent {agent}",
    Step.ATTACH: "{hostname}: it cannot be joined to its network on agent {agent}",
    Step.START: "{hostname}: its command cannot be started on agent {agent}",
    Step.STOP: "{hostname}: it cannot be ended on agent {agent}",
    Step.OTHER: "{hostname}: a step for it fails on agent {agent}",
}


@dataclass(frozen=True, slots=True)
class FailingKernel:
    """A report of the steps for a kernel that an agent fails at; none when it fails at none. `survived`: the kernel has
    ended, and others of the session are on that agent, which say how its network is.
    """

    agent: str
    hostname: str
    steps: tuple[FailingStep, ...]
    survived: bool = False


def with_failing_steps(conditions: tuple[Condition, ...], kernel: FailingKernel) -> tuple[Condition, ...]:
    """Returns the conditions with those that say what an agent fails at for a kernel, or for the network of the
    session there, in place of what was said of these before.
    """
    new = tuple(_failing(kernel, step) for step in kernel.steps)
    prefix = f"{kernel.hostname}: "

    def stays(item: Condition) -> bool:
        if item.type not in RETRIED or item.agent != kernel.agent:
            return True
        if item.type == ConditionType.NETWORK_DEGRADED:
            return kernel.survived
        return not item.message.startswith(prefix)

    kept = tuple(item for item in conditions if stays(item))
    return conditions if set(new) | set(kept) == set(conditions) else (*kept, *new)


def _failing(kernel: FailingKernel, step: FailingStep) -> Condition:
    step_text = _FAILING[step.step].format(agent=kernel.agent, hostname=kernel.hostname)
    since = None if step.since is None else step.since.timestamp()
    message = f"{step_text}: {step.error if since is None else Retries(since, step.tries, step.error)}"
    kind = ConditionType.NETWORK_DEGRADED if step.step is Step.NETWORK else ConditionType.RETRYING
    return Condition(kind, message, step.since, kernel.agent)


def with_faulty_paths(
    conditions: tuple[Condition, ...], agent_id: str, paths: Iterable[FaultyPath]
) -> tuple[Condition, ...]:
    """Returns the conditions with what an agent says of the paths to its node in place of what it said before."""
    new = tuple(
        Condition(
            ConditionType.PATH_UNPROVED if path.unproved else ConditionType.PATH_BROKEN,
            path.message,
            path.since,
            agent_id,
        )
        for path in paths
    )
    known = tuple(item for item in conditions if item.type in PATH_CONDITIONS and item.agent == agent_id)
    if known == new:
        return conditions
    return (*(item for item in conditions if item not in known), *new)


def with_pause(conditions: tuple[Condition, ...], hostname: str, pause: AttemptPause | None) -> tuple[Condition, ...]:
    """Returns the conditions with the one that says what keeps a kernel from running; without it when nothing does."""
    prefix = f"{hostname}: "
    others = tuple(
        item for item in conditions if item.type != ConditionType.PAUSED or not item.message.startswith(prefix)
    )
    if pause is None:
        return others
    new = Condition(ConditionType.PAUSED, f"{prefix}paused: {pause.message}", pause.since)
    return conditions if new in conditions else (*others, new)


def parse_conditions(stored: object) -> tuple[Condition, ...]:
    """Returns the conditions of a session, in their order; one that cannot be read is UNREADABLE. Never raises."""
    return tuple(map(_condition, stored if isinstance(stored, list) else [stored]))


def _condition(stored: object) -> Condition:
    try:
        return stored if isinstance(stored, Condition) else _CONDITION.validate_python(stored)
    except ValidationError:
        return Condition(ConditionType.UNREADABLE, "a condition that another version of the manager wrote")
