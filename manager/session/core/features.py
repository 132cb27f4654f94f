"""The features of each type of session: the one table that admission and the API go by. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from retinue.manager.session.core.states import SessionType


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


_ALL = frozenset({Feature.SERVICE_PORTS, Feature.CLUSTERING, Feature.BOOTSTRAP})

FEATURES: Mapping[SessionType, frozenset[Feature]] = {
    SessionType.INTERACTIVE: _ALL | {Feature.CODE_EXECUTION},
    SessionType.BATCH: _ALL | {Feature.RESULT, Feature.DEPENDENCIES, Feature.START_TIME, Feature.RETRIES},
    SessionType.INFERENCE: _ALL,
    SessionType.SYSTEM: _ALL,
}


def has(kind: SessionType, feature: Feature) -> bool:
    """Returns whether sessions of a type have a feature."""
    return feature in FEATURES[kind]
