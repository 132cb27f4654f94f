"""Reasons why requests for sessions are refused, as errors of the API."""

from __future__ import annotations

from typing import assert_never

from retinue.manager.domain.session import refusals
from retinue.manager.server import errors, preconditions


def to_error(reason: refusals.Reason) -> errors.ApiError:  # noqa: PLR0911  # one for each reason
    """Returns the error that a refused caller gets."""
    match reason:
        case refusals.InvalidFields(violations):
            return errors.InvalidRequest(violations)
        case refusals.ProjectDenied(project, own):
            return errors.ProjectDenied(project, own)
        case refusals.TemplateNotFound(name, version):
            return errors.NotFound("template", name if version == 0 else f"{name} in version {version}")
        case refusals.FeatureUnavailable(kind, feature, words):
            message = f"a session of type {kind} cannot have {words}"
            return preconditions.FeatureUnavailable(message, f"session_type/{kind}", {"feature": feature})
        case refusals.ImageNotAllowed(image, registry, group):
            return errors.ImageNotAllowed(image, registry, group)
        case refusals.MountNotAllowed(source, writable, without_owner):
            return errors.MountNotAllowed(source, writable=writable, without_owner=without_owner)
        case refusals.QuotaExceeded(violations):
            return errors.QuotaExceeded(violations)
        case refusals.NameTaken(name, within):
            return errors.NameTaken("session", name, "an earlier session of the request has it" if within else "")
        case refusals.DependencyRefused(path, name):
            return preconditions.DependencyRefused(path, name)
        case refusals.BatchRefused(number):
            return preconditions.BatchRefused(number)
        case refusals.EndpointManaged(name):
            return preconditions.EndpointManaged(name)
        case _:
            assert_never(reason)
