"""The closed sets of reasons that an agent reports, as `attempt_reason.proto` and the manager's `reason.proto` document them."""

from __future__ import annotations

from enum import StrEnum


class AttemptReason(StrEnum):
    """The reason why an attempt ended, or could not start."""

    EXITED = "EXITED"
    STOPPED = "STOPPED"
    KILLED = "KILLED"
    OOM_KILLED = "OOM_KILLED"
    DISK_EXCEEDED = "DISK_EXCEEDED"
    NODE_REBOOTED = "NODE_REBOOTED"
    RECORD_LOST = "RECORD_LOST"
    START_FAILED = "START_FAILED"
    ALREADY_REMOVED = "ALREADY_REMOVED"
    DEVICE_MISSING = "DEVICE_MISSING"
    MOUNT_REFUSED = "MOUNT_REFUSED"
    IMAGE_UNSUPPORTED = "IMAGE_UNSUPPORTED"
    IMAGE_NOT_FOUND = "IMAGE_NOT_FOUND"
    IMAGE_DENIED = "IMAGE_DENIED"
    IMAGE_PULL_FAILED = "IMAGE_PULL_FAILED"
    IMAGE_INVALID = "IMAGE_INVALID"
    IMAGE_NEEDS_MORE = "IMAGE_NEEDS_MORE"
    IMAGE_DIFFERS = "IMAGE_DIFFERS"


class ConditionReason(StrEnum):
    """The reason of a condition, within its type."""

    DOCKER = "DOCKER"
    PROCESS = "PROCESS"
    RECORDS_REBUILT = "RECORDS_REBUILT"
    UNKNOWN_KERNELS = "UNKNOWN_KERNELS"
    UNRESPONSIVE = "UNRESPONSIVE"
