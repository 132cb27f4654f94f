"""Reasons why a request for a session is refused. Pure values: the API makes errors of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# Field path, or whose quota it is, and what is wrong there.
Violation: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class InvalidFields:
    """Fields are wrong: paths and descriptions, at least one."""

    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class ProjectDenied:
    """The owner may not use the project, or there is none."""

    project: str


@dataclass(frozen=True, slots=True)
class TemplateNotFound:
    """The template does not exist, or the caller may not read it."""

    name: str
    # 0 for the newest.
    version: int


@dataclass(frozen=True, slots=True)
class FeatureUnavailable:
    """Sessions of the type, in small letters, do not have the feature, which has a name and words for people."""

    session_type: str
    feature: str
    words: str


@dataclass(frozen=True, slots=True)
class ImageNotAllowed:
    """The resource group does not allow images of the registry."""

    image: str
    registry: str
    group: str


@dataclass(frozen=True, slots=True)
class MountNotAllowed:
    """No root of the resource group grants the directory to the project."""

    source: str
    writable: bool


@dataclass(frozen=True, slots=True)
class QuotaExceeded:
    """Quotas are exceeded: whose they are and what is wrong there, at least one."""

    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class NameTaken:
    """A live session of the owner in the project has the name."""

    name: str


@dataclass(frozen=True, slots=True)
class DependencyRefused:
    """A session of the same request that it depends on is refused; `path` is that of the field that names it."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class DependencyFailed:
    """A session that it depends on ended without success; `result` is its result, or the state in which it ended."""

    path: str
    name: str
    result: str


Reason: TypeAlias = (
    InvalidFields
    | ProjectDenied
    | TemplateNotFound
    | FeatureUnavailable
    | ImageNotAllowed
    | MountNotAllowed
    | QuotaExceeded
    | NameTaken
    | DependencyRefused
    | DependencyFailed
)


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that is refused; `name` is the one it asks for, empty without one."""

    name: str
    reason: Reason
