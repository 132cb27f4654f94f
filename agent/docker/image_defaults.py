"""Applies the defaults of an image to an attempt: least resources, shared memory, variables. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import ImageFacts
from retinue.agent.docker.core.image_labels import LabelError, core_environment, read_labels, shortfalls
from retinue.agent.docker.images import ImageError
from retinue.agent.host.core.limits import thread_variables
from retinue.rpc.core.amounts import MEMORY, format_amount
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.docker.images import Image

MAX_SHOWN = 8
"""Slots that a message names."""
INVALID, NEEDS_MORE = AttemptReason.IMAGE_INVALID, AttemptReason.IMAGE_NEEDS_MORE


def fitted(spec: AttemptSpec, image: Image) -> tuple[AttemptSpec, ImageFacts]:
    """Returns the attempt with the values that its image gives and its request does not,
    and the facts to report of the image.

    Raises ImageError when the labels cannot be read, or ask for more than the attempt has.
    """
    if image.excess:
        raise ImageError(INVALID, f"image {spec.image} cannot be used: {image.excess}")
    try:
        labels = read_labels(image.labels)
    except LabelError as error:
        raise ImageError(INVALID, f"image {spec.image}: {error}") from error
    if short := shortfalls(labels, spec.slots):
        wanted = ", ".join(f"{slot}={format_amount(slot, labels.least[slot])}" for slot in short[:MAX_SHOWN])
        raise ImageError(NEEDS_MORE, f"image {spec.image} needs at least {wanted}")
    shared = spec.shared_memory
    if not shared and labels.shared_memory < spec.slots.get(MEMORY, labels.shared_memory + 1):
        shared = labels.shared_memory
    threads = {name: value for name, value in thread_variables(spec.slots).items() if name not in image.variables}
    environment = threads | core_environment(labels, spec.slots) | dict(spec.environment)
    facts = ImageFacts(image.identity, labels.service_ports)
    stop = spec.stop_signal or image.stop_signal
    if spec.image_command and not image.command:
        why = "has no command of its own that can be run: name one behind `--`"
        raise ImageError(INVALID, f"image {spec.image} {why}")
    fitting = replace(
        spec,
        command=(*spec.command, *image.command) if spec.image_command else spec.command,
        shared_memory=shared,
        environment=environment,
        stop_signal=stop,
        image_directory=image.working_directory,
    )
    return fitting, facts
