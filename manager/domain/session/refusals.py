"""Reasons why a request for a session is refused. Pure values: the API makes errors of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

# So many names are told.
_NAMED = 16

# Field path, or whose quota it is, and what is wrong there.
Violation: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class InvalidFields:
    """Fields are wrong: paths and descriptions, at least one."""

    violations: tuple[Violation, ...]


def no_project(caller: str, projects: Sequence[str]) -> str:
    """Returns what a caller who is not in exactly one project, and names none, is told of the field."""
    if not projects:
        return f"is required, and you are in none: an administrator runs `retinue projects member PROJECT {caller}`"
    return f"is required, as you are in several: give one of {', '.join(sorted(projects)[:_NAMED])}"


@dataclass(frozen=True, slots=True)
class ProjectDenied:
    """The owner may not use the project, or there is none; the owner's own, as far as they are known."""

    project: str
    own: tuple[str, ...] = ()


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
    """No root of the resource group grants the directory to the project; or files there belong to numbers of the
    account of `without_owner`, who has none.
    """

    source: str
    writable: bool
    without_owner: str = ""


@dataclass(frozen=True, slots=True)
class QuotaExceeded:
    """Quotas are exceeded: whose they are and what is wrong there, at least one."""

    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class NameTaken:
    """A live session of the owner in the project has the name, or an earlier one of the same request."""

    name: str
    within: bool = False


@dataclass(frozen=True, slots=True)
class DependencyRefused:
    """A session of the same request that it depends on is refused; `path` is that of the field that names it."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class BatchRefused:
    """Another session of the same request is refused, and the request is for all or nothing."""

    number: int


@dataclass(frozen=True, slots=True)
class EndpointManaged:
    """The session names an endpoint, whose replicas are made by its controller only."""

    name: str


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
    | EndpointManaged
    | BatchRefused
)


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that is refused; `name` is the one it asks for, empty without one."""

    name: str
    reason: Reason


def words(reason: Reason) -> str:  # noqa: PLR0911  # one for each reason
    """Returns a reason in words, for those who did not send the request themselves."""
    match reason:
        case InvalidFields(violations) | QuotaExceeded(violations):
            return "; ".join(f"{what}: {text}" for what, text in violations)
        case ProjectDenied(project, _):
            return f"the owner may not use project {project}"
        case FeatureUnavailable(kind, _, feature):
            return f"a session of type {kind} cannot have {feature}"
        case ImageNotAllowed(image, registry, group):
            return f"image {image} may not be used: resource group {group} does not allow registry {registry}"
        case MountNotAllowed(source, _, without_owner):
            why = f": the account of {without_owner} has no numbers on the nodes" if without_owner else ""
            return f"{source} may not be mounted{why}"
        case TemplateNotFound(name) | NameTaken(name, _) | DependencyRefused(_, name):
            return f"{type(reason).__name__}: {name}"
        case BatchRefused(number):
            return f"{number} sessions of the same request are refused"
        case EndpointManaged(name):
            return f"the replicas of endpoint {name} are made by its controller"
