"""Checks the content of templates, and applies updates to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.api.sessions.override_convert import mask_paths, overrides_of, spec_of
from retinue.manager.api.sessions.spec_convert import to_spec
from retinue.manager.domain import errors, preconditions
from retinue.manager.domain.session.admission import admit, completed
from retinue.manager.domain.session.features import FEATURES
from retinue.manager.domain.session.overrides import Overrides
from retinue.manager.v1 import session_pb2
from retinue.manager.v1 import template_service_pb2 as pb

if TYPE_CHECKING:
    from retinue.manager.server.fields import Violations

MAX_DESCRIPTION = 256
MAX_SPEC_BYTES = 256 * 1024
_SPEC, _DESCRIPTION = "spec", "description"


def check_content(template: pb.Template, violations: Violations) -> None:
    """Checks description and spec. Raises FeatureUnavailable for a feature that the
    template's own type does not have.
    """
    violations.text("template.description", template.description, MAX_DESCRIPTION)
    spec = template.spec
    if spec.ByteSize() > MAX_SPEC_BYTES:
        violations.add("template.spec", f"must be at most {MAX_SPEC_BYTES} bytes")
        return
    if spec.HasField("template"):
        violations.add("template.spec.template", "a template is not made from another")
    if spec.project:
        violations.add("template.spec.project", "is that of the template, or of the session")
    for position, webhook in enumerate(spec.webhooks):
        if webhook.secret:
            violations.add(
                f"template.spec.webhooks[{position}].secret", "is given with a session: templates keep no secrets"
            )
    stand_in = session_pb2.SessionSpec()
    stand_in.CopyFrom(spec)
    stand_in.type = spec.type or session_pb2.SESSION_TYPE_BATCH
    try:
        partial = to_spec(stand_in, default_name="template", default_project="template")
    except ValueError as error:
        violations.add(f"template.{error.args[0]}", error.args[1])
        return
    for path, text in admit(completed(partial))[1]:
        violations.add(f"template.{path}", text)
    if spec.type:
        for feature in sorted(partial.features() - FEATURES[partial.type]):
            raise preconditions.FeatureUnavailable.of_type(partial.type, feature)


def updated(request: pb.UpdateTemplateRequest, description: str, spec: session_pb2.SessionSpec) -> pb.Template:
    """Description and spec after an update; unchecked but for the mask. Raises InvalidRequest."""
    given = request.template
    paths = list(request.update_mask.paths)
    if not paths:
        paths = [
            name for name, there in ((_DESCRIPTION, bool(given.description)), (_SPEC, given.HasField("spec"))) if there
        ]
    inner = [path.removeprefix(f"{_SPEC}.") for path in paths if path.startswith(f"{_SPEC}.")]
    roots, wrong = mask_paths(inner, "update_mask")
    wrong += [
        ("update_mask", f"unknown path {path[:64]!r}; known are description, spec, and paths below spec")
        for path in paths
        if path not in (_DESCRIPTION, _SPEC) and not path.startswith(f"{_SPEC}.")
    ]
    if wrong:
        raise errors.InvalidRequest(wrong)
    made = pb.Template(description=given.description if _DESCRIPTION in paths else description)
    if _SPEC in paths:
        made.spec.CopyFrom(given.spec)
    elif roots:
        change = Overrides(overrides_of(given.spec, "template.spec").only(roots).given, frozenset(roots))
        made.spec.CopyFrom(spec_of(overrides_of(spec, "template.spec").then(change)))
    else:
        made.spec.CopyFrom(spec)
    return made
