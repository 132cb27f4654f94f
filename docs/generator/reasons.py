"""Makes the page of reasons from the enums of the protos."""

from __future__ import annotations

from docs.generator.markdown import line, table
from docs.generator.protos import Contract

_ENUMS = ("SessionReason", "AttemptReason", "ConditionType", "AgentConditionType", "AgentConditionReason")


def page(contract: Contract) -> str:
    """Returns the whole page."""
    sections = "\n".join(f"## {name}\n\n{_section(contract, name)}" for name in _ENUMS)
    return f"""# Reasons

Sessions, kernels, attempts and conditions carry a reason as an UPPER_SNAKE word: a value of one of these enums without
its prefix. Clients must accept words that they do not know: later versions may add some. Reasons of errors have
[a page of their own](errors.md).

{sections}"""


def values(contract: Contract, name: str) -> dict[str, str]:
    """Returns the values of an enum without their prefix, except the zero value, with their comments.
    Raises LookupError.
    """
    for file in contract.files:
        for enum, place in file.enums():
            if enum.name == name:
                prefix = enum.value[0].name.removesuffix("UNSPECIFIED")
                return {
                    value.removeprefix(prefix): comment for value, number, comment in file.values(enum, place) if number
                }
    raise LookupError(name)


def _section(contract: Contract, name: str) -> str:
    about = next(
        file.comments.get(place, "") for file in contract.files for enum, place in file.enums() if enum.name == name
    )
    rows = [(f"`{reason}`", line(comment)) for reason, comment in values(contract, name).items()]
    return f"{line(about)}\n\n{table(['reason', 'meaning'], rows)}"
