"""Programs that are started in a session's main kernel on demand: their definitions,
and what they become when asked for. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retinue.manager.domain.session.service_ports import PublicAddress

MAX_APPS, MAX_ALLOWED = 32, 64
ANY = "*"
"""Among the arguments that a caller may add: all others, too."""

_PLACE = re.compile(r"\{(port|session|host|url)\}")
Violations = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class AppSpec:
    """A program that listens at the app port of its own name, and what a caller who starts it may add."""

    name: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = ""
    allowed_arguments: tuple[str, ...] = ()
    allowed_environment: tuple[str, ...] = ()

    def wrong_additions(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Violations:
        """Returns additions that the definition does not allow: (field path, description)."""
        wrong: Violations = [
            (f"arguments[{position}]", f"is not allowed; allowed are {', '.join(self.allowed_arguments) or 'none'}")
            for position, argument in enumerate(arguments)
            if ANY not in self.allowed_arguments and argument.partition("=")[0] not in self.allowed_arguments
        ]
        wrong += [
            (
                f"environment[{name[:64]!r}]",
                f"is not allowed; allowed are {', '.join(self.allowed_environment) or 'none'}",
            )
            for name in sorted(environment)
            if name not in self.allowed_environment
        ]
        return wrong

    def at(
        self, port: int, session_id: str, address: PublicAddress, arguments: Sequence[str] = ()
    ) -> tuple[list[str], dict[str, str]]:
        """Returns the argument vector and the variables with the number and the address of its port and the session's
        id in their places, and added arguments.
        """
        values = {"port": str(port), "session": session_id, "host": address.host, "url": address.url}

        def filled(text: str) -> str:
            return _PLACE.sub(lambda place: values[place[1]], text)

        command = [*map(filled, self.command), *arguments]
        return command, {name: filled(value) for name, value in self.environment.items()}
