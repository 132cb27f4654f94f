"""Reads the labels of an image: least resources, shared memory, ports, variables. Pure.

Labels are `retinue.…`; those of the reference system, `ai.backend.…`, mean the same where the former are missing, so
that its images work as they are. A label that cannot be read is an error of the image: nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.agent.attempts import ServicePort
from retinue.agent.host.core.limits import cores_of
from retinue.rpc.core.amounts import MEMORY, parse_amount, parse_slots

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_SLOTS = "retinue.min-slots"
SERVICE_PORTS = "retinue.service-ports"
SHARED_MEMORY = "retinue.shared-memory"
CORE_VARIABLES = "retinue.core-variables"
THEIR_MINIMUM = "ai.backend.resource.min."
THEIR_SERVICE_PORTS = "ai.backend.service-ports"
THEIR_SHARED_MEMORY = "ai.backend.resource.preferred.shmem"
THEIR_CORE_VARIABLES = "ai.backend.envs.corecount"
_READ = (
    *(MIN_SLOTS, SERVICE_PORTS, SHARED_MEMORY, CORE_VARIABLES),
    *(THEIR_SERVICE_PORTS, THEIR_SHARED_MEMORY, THEIR_CORE_VARIABLES),
)
PORTS = range(1, 65_536)
MAX_PORTS = 64
MAX_LABEL = 4096
"""Characters of a label that is read."""
MAX_SLOTS, MAX_VARIABLES = 64, 64
"""In the smallest unit: no node has more of anything."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62})")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PORT = re.compile(r"([^:\[\],]+):([a-z]+):(?:([0-9]+)|\[([0-9, ]+)\])")


class LabelError(Exception):
    """A label of an image cannot be read; the text says which."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Amounts in the smallest unit; `shared_memory` in bytes, 0 when nothing is said.

    `core_variables` are names of variables that are to hold the number of a kernel's cores.
    """

    least: Mapping[str, int] = field(default_factory=dict)
    shared_memory: int = 0
    service_ports: tuple[ServicePort, ...] = ()
    core_variables: tuple[str, ...] = ()


def read_labels(labels: Mapping[str, str]) -> Labels:
    """Returns the values of an image's labels. Raises LabelError."""
    _check_sizes(labels)
    ports = labels.get(SERVICE_PORTS, labels.get(THEIR_SERVICE_PORTS, ""))
    shared = labels.get(SHARED_MEMORY) or labels.get(THEIR_SHARED_MEMORY, "")
    variables = labels.get(CORE_VARIABLES, labels.get(THEIR_CORE_VARIABLES, ""))
    names = tuple(filter(None, (name.strip() for name in variables.split(","))))
    if not all(map(_VARIABLE.fullmatch, names)):
        raise LabelError(f"its label for variables holds {variables!r}")
    if len(names) > MAX_VARIABLES:
        raise LabelError(f"its label for variables names more than {MAX_VARIABLES}")
    try:
        amount = parse_amount(MEMORY, shared, zero=True) if shared else 0
        read = Labels(_least(labels), amount, parse_service_ports(ports), names)
    except ValueError as error:
        raise LabelError(f"its labels cannot be read: {error}") from error
    if len(read.least) > MAX_SLOTS:
        raise LabelError(f"its labels name more than {MAX_SLOTS} slots")
    return read


def _check_sizes(labels: Mapping[str, str]) -> None:
    """Raises LabelError when a label that is read is too long, or there are too many:
    before anything looks for what is in them.
    """
    minimums = [name for name in labels if name.startswith(THEIR_MINIMUM)]
    if len(minimums) > MAX_SLOTS:
        raise LabelError(f"its labels name more than {MAX_SLOTS} slots")
    for name in (*_READ, *minimums):
        if len(labels.get(name, "")) + len(name) > MAX_LABEL:
            raise LabelError(f"its label {name[:64]!r} is longer than {MAX_LABEL} characters")


def _least(labels: Mapping[str, str]) -> dict[str, int]:
    if MIN_SLOTS in labels:
        return parse_slots(labels[MIN_SLOTS])
    theirs = {
        name.removeprefix(THEIR_MINIMUM): value for name, value in labels.items() if name.startswith(THEIR_MINIMUM)
    }
    amounts = {slot: parse_amount(slot, value.strip(), zero=True) for slot, value in theirs.items()}
    return {slot: amount for slot, amount in amounts.items() if amount > 0}


def parse_service_ports(text: str) -> tuple[ServicePort, ...]:
    """Ports from `NAME:PROTOCOL:PORT` or `NAME:PROTOCOL:[PORT,PORT]`, separated by commas. Raises ValueError."""
    found: list[ServicePort] = []
    rest = text.strip()
    while rest:
        match = _PORT.match(rest)
        if match is None or (match.end() < len(rest) and rest[match.end()] != ","):
            raise ValueError(f"{rest!r} is not NAME:PROTOCOL:PORT")
        name, protocol, one, many = match.groups()
        numbers = tuple(int(number) for number in (one or many).split(",") if number.strip())
        if _NAME.fullmatch(name) is None or not numbers or any(number not in PORTS for number in numbers):
            raise ValueError(f"{match.group()!r} is not a service port")
        # A terminal is no port of a service.
        if protocol != "pty":
            found.append(ServicePort(name, protocol, numbers))
        rest = rest[match.end() + 1 :].strip()
    taken = [number for port in found for number in port.ports]
    if len({port.name for port in found}) < len(found) or len(set(taken)) < len(taken) or len(taken) > MAX_PORTS:
        raise ValueError(f"{text!r} names a port or a service twice, or too many")
    return tuple(found)


def shortfalls(labels: Labels, slots: Mapping[str, int]) -> list[str]:
    """Returns the names of the slots of which a kernel has less than its image needs, sorted."""
    return sorted(slot for slot, amount in labels.least.items() if slots.get(slot, 0) < amount)


def core_environment(labels: Labels, slots: Mapping[str, int]) -> dict[str, str]:
    """Variables with the number of a kernel's cores, rounded up, for libraries that would count those of the node."""
    cores = cores_of(slots)
    return {} if cores is None else dict.fromkeys(labels.core_variables, str(cores))
