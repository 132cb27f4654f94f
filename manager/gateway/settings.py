"""The settings of a gateway. Apart from it, so that a manager without one loads no engine's messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Settings of a gateway: where it listens, and the domain whose hosts lead to it."""

    # `host:port`; port 0 means any that is free.
    listen: str
    domain: str = "localhost"
    # The port that users see; None: the one it listens at.
    number: int | None = None
    # Files of a certificate for `*.domain` and its key, in PEM. None: the manager's own authority issues one, but for
    # `localhost`, where nothing leaves the machine.
    certificate: tuple[Path, Path] | None = None
    # Whether bytes go to nodes unencrypted, past manager and agent, where that is possible.
    direct: bool = True
    # Whether it leads to the web console, too, at `console.domain`.
    console: bool = True

    @property
    def secure(self) -> bool:
        """Returns True when it speaks TLS."""
        return self.certificate is not None or self.domain.rpartition(".")[2] != "localhost"
