"""The features of each type of session: the one table that admission and the API go by. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from retinue.manager.domain.session.states import SessionType

if TYPE_CHECKING:
    from collections.abc import Mapping


class Feature(StrEnum):
    """Something that not every type of session has, in words for people."""

    CODE_EXECUTION = "code execution"
    SERVICE_PORTS = "service ports"
    CLUSTERING = "clustering"
    BOOTSTRAP = "a bootstrap script"
    RESULT = "a result"
    DEPENDENCIES = "dependencies"
    START_TIME = "a start time"
    RETRIES = "retries"
    ATTACH = "commands beside its own"
    FILES = "a work directory"
    APPS = "apps"
    SFTP = "SFTP"


_ALL = frozenset({Feature.SERVICE_PORTS, Feature.CLUSTERING})
# Of sessions that run something of their user's.
_PROGRAMS = _ALL | {Feature.BOOTSTRAP, Feature.ATTACH, Feature.FILES, Feature.APPS}

FEATURES: Mapping[SessionType, frozenset[Feature]] = {
    SessionType.INTERACTIVE: _PROGRAMS | {Feature.CODE_EXECUTION},
    SessionType.BATCH: _PROGRAMS | {Feature.RESULT, Feature.DEPENDENCIES, Feature.START_TIME, Feature.RETRIES},
    SessionType.INFERENCE: _PROGRAMS,
    SessionType.SYSTEM: _ALL | {Feature.SFTP},
}


def has(kind: SessionType, feature: Feature) -> bool:
    """Returns whether sessions of a type have a feature."""
    return feature in FEATURES[kind]
