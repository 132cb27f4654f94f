"""The page of errors: reasons from the proto, codes from the classes that raise them."""

from __future__ import annotations

from collections.abc import Iterator

import retinue.manager.domain.preconditions  # noqa: F401  # defines classes, as does what it imports
from docs.generator.markdown import line, table
from docs.generator.protos import Contract
from retinue.rpc.core.errors import ApiError
from retinue.rpc.errors import DOMAIN, MAX_VIOLATIONS

_PREFIX = "ERROR_REASON_"


def page(contract: Contract) -> str:
    """Returns the whole page."""
    codes: dict[str, set[str]] = {}
    for kind in _kinds(ApiError):
        if hasattr(kind, "reason") and hasattr(kind, "code"):
            codes.setdefault(kind.reason, set()).add(kind.code.name)
    rows = []
    for file in contract.files:
        for enum, place in file.enums():
            if enum.name == "ErrorReason":
                for name, number, comment in file.values(enum, place):
                    reason = name.removeprefix(_PREFIX)
                    if number:
                        rows.append(
                            (
                                f"`{reason}`",
                                ", ".join(f"`{code}`" for code in sorted(codes.get(reason, ()))) or "none",
                                line(comment),
                            )
                        )
    return f"""# Errors

Every error of the API carries `google.rpc.ErrorInfo` with the domain `{DOMAIN}` and one of these reasons; what is wrong with a request is in
`google.rpc.BadRequest`, at most {MAX_VIOLATIONS} fields by their paths. Reasons without a code are used between agents and manager only.

{table(["reason", "code", "meaning"], rows)}"""


def _kinds(root: type[ApiError]) -> Iterator[type[ApiError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from _kinds(kind)
